"""A Watch that keeps what it is told, for runs of a few seconds on real engines."""


class RunObserver:
    """Remembers lines, notes, evaluations and the last state."""

    def __init__(self):
        self.lines, self.notes, self.evaluations, self.state = [], [], [], {}

    def log(self, counters, metrics):
        self.lines.append(metrics)

    def evaluated(self, counters, metrics):
        self.evaluations.append(metrics)

    def save(self, counters, state, last):
        self.state = state

    def note(self, text):
        self.notes.append(text)

    def stop_asked(self):
        return False

    def restore(self, nodes):
        """What was last saved of these nodes."""
        names = tuple(f"{name}." for name in nodes)
        return {key: part for key, part in self.state.items() if key.startswith(names)}
