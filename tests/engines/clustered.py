"""A run on a cluster, of which a part is lost: `python clustered.py FOLDER ADDRESS LOST_S`."""

import json
import sys
from pathlib import Path

from fault_roles import CheckpointSource, Learner, Teller

from troop.core.engine import Until
from troop.core.program import Program
from troop.engines import Ray

FIRST = (1, 1_000_001)  # what the tellers begin with


def write_whole(path, text):
    """Write so that a reader on the way sees the old text or the new one, never a part."""
    half = path.with_suffix(".half")
    half.write_text(text)
    half.replace(path)


class RunObserver:
    """Writes down where the tellers are; ends the run some steps after both are on one machine."""

    def __init__(self, folder):
        self.folder, self.last, self.saves, self.notes, self.stop_at = folder, {}, [], [], None

    def log(self, counters, metrics):
        """Look where everyone is."""
        self.last |= metrics
        machines = [self.last.get(f"on/teller{i}") for i in range(2)]
        self.counters = counters
        if None in machines or counters.env_steps < 200:
            return
        write_whole(self.folder / "where", " ".join(str(int(machine)) for machine in machines))
        if counters.restarts and machines == [1, 1] and self.stop_at is None:
            self.stop_at = counters.env_steps + 200

    def stop_requested(self):
        """After the loss, when all goes on again."""
        return self.stop_at is not None and self.counters.env_steps >= self.stop_at

    def evaluated(self, counters, metrics):
        """Nothing."""

    def save(self, counters, state, last):
        """Keep."""
        self.saves.append(state)

    def restore(self, nodes):
        """Give back the newest."""
        names = tuple(f"{node}." for node in nodes)
        return {key: part for key, part in self.saves[-1].items() if key.startswith(names)}

    def note(self, text):
        """Keep."""
        self.notes.append(text)


def program():
    """Two tellers, a learner and a keeper."""
    made = Program("clustered")
    keeper = made.add("keeper", CheckpointSource)
    made.add("learner", Learner, keeper)
    for i in range(2):
        made.add(f"teller{i}", Teller, keeper, name=f"teller{i}", first=FIRST[i])
    return made


def run(address, lost, watch):
    """Run until a machine was lost and all go on; leaves a result in the watch's folder."""
    # A machine of five CPUs has room for one teller only.
    pace = {"threads": 1, "log_s": 0.05, "checkpoint_s": 2, "lost_limit_s": lost}
    engine = Ray(address, cpus=("teller0=3", "teller1=3"), strategy="spread", **pace)
    try:
        result = engine.run(program(), Until(minutes=1.5), 0, watch)
        told = {
            "status": result.status,
            "restarts": result.counters.restarts,
            "steps": result.counters.env_steps,
        }
    except BaseException as error:
        told = {"status": f"{type(error).__name__}: {error}"}
        raise
    finally:
        told |= {"notes": watch.notes, "kept": watch.saves[-1]["keeper.kept"] if watch.saves else []}
        write_whole(watch.folder / "result", json.dumps(told))


if __name__ == "__main__":
    run(sys.argv[2], float(sys.argv[3]), RunObserver(Path(sys.argv[1])))
