"""A RunObserver that keeps everything it receives, for runs of a few seconds on real engines."""


class RecordingObserver:
    """Keeps log lines, notes, evaluations and the newest checkpoint."""

    def __init__(self):
        self.lines, self.notes, self.evaluations, self.state = [], [], [], {}
        self.counters = None  # of the newest checkpoint or log line

    def log(self, counters, metrics):
        self.counters = counters
        self.lines.append(metrics)

    def log_evaluation(self, counters, metrics):
        self.evaluations.append(metrics)

    def save(self, counters, state, last):
        self.counters, self.state = counters, state

    def note(self, text):
        self.notes.append(text)

    def stop_requested(self):
        return False

    def restore(self, nodes):
        """Return the parts of these nodes in the newest checkpoint."""
        prefixes = tuple(f"{name}." for name in nodes)
        return {key: part for key, part in self.state.items() if key.startswith(prefixes)}
