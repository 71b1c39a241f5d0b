"""Groups on every engine: collectives, pauses between rounds, and restarts of all members as one."""

import copy
import os
import signal
import socket
import threading
import time

import pytest
import torch

from troop.core.engine import Checkpoint, Until
from troop.core.program import Program
from troop.engines import Inline, Processes, Ray
from troop.engines.distributed_group import RendezvousServer, interface_towards
from troop.engines.inline_group import InlineGroup, InlineMember
from troop.engines.pool import HostHandle

ENGINES = {
    "inline": Inline(threads=1, log_s=1e-9, checkpoint_s=0.05),
    "processes": Processes(threads=1, log_s=0.02, checkpoint_s=0.2, step_limit_s=30),
    "ray": Ray(threads=1, log_s=0.02, checkpoint_s=0.5, step_limit_s=30),
}


class GroupObserver:
    """Keeps notes and checkpoints, and restores from the newest."""

    def __init__(self):
        self.saves, self.notes = [], []

    def log(self, counters, metrics):
        pass

    def log_evaluation(self, counters, metrics):
        pass

    def save(self, counters, state, last):
        self.saves.append((counters, copy.deepcopy(state)))

    def restore(self, nodes):
        prefixes = tuple(f"{node}." for node in nodes)
        return {key: part for key, part in self.saves[-1][1].items() if key.startswith(prefixes)}

    def note(self, text):
        self.notes.append(text)

    def stop_requested(self):
        return False


class Member:
    """Meets the other members in every third step, and checks what the collectives return."""

    def __init__(self, group, kill_at="", kill_rank=1):
        self.group, self.kill_at, self.kill_rank = group, kill_at, kill_rank
        self.steps, self.rounds, self.shared = 0, 0, torch.zeros(2)
        self.synchronized = False

    def step(self):
        if not self.synchronized:
            state = self.group.broadcast_state({"shared": self.shared, "names": [str(self.rounds)]})
            assert state["names"] == [str(int(state["shared"][0]))]
            assert self.group.broadcast_state({"rank": self.group.rank}) == {"rank": 0}  # without tensors
            self.shared, self.synchronized = state["shared"].clone(), True
        self.steps += 1
        if self.steps % 3 == 0:
            self._meet()
        return {"count/env_steps": 1, "rounds": float(self.rounds)}

    def _meet(self):
        group, n = self.group, self.group.size
        assert float(group.all_reduce(torch.tensor(float(group.rank + 1)))) == n * (n + 1) / 2
        gathered = group.all_gather(torch.tensor([group.rank, self.rounds]))
        assert gathered[:, 0].tolist() == list(range(n)) and len(set(gathered[:, 1].tolist())) == 1
        self.rounds += 1
        self.shared[0] += 1
        due = self.kill_at and self.group.rank == self.kill_rank and self.rounds == 5
        if due and not os.path.exists(self.kill_at):
            open(self.kill_at, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        group.end_round()

    def state_dict(self):
        return {"steps": self.steps, "rounds": self.rounds, "shared": self.shared}

    def load_state_dict(self, state):
        self.steps, self.rounds = int(state["steps"]), int(state["rounds"])
        self.shared, self.synchronized = state["shared"].clone(), False


def program(size, **kwargs):
    program = Program("groups")
    for rank, ref in enumerate(program.group("members", size)):
        program.add(f"member{rank}", Member, ref, **kwargs)
    return program


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_members_meet_and_every_checkpoint_is_of_one_round(engine, size):
    if engine == "ray" and size != 2:
        pytest.skip("one size is enough on Ray")
    observer = GroupObserver()
    result = ENGINES[engine].run(program(size), Until(env_steps=300 * size), 1, observer)
    assert result.status == "done" and result.counters.env_steps >= 300 * size
    assert observer.saves
    for _, state in observer.saves:
        rounds = {int(state[f"member{rank}.rounds"]) for rank in range(size)}
        assert len(rounds) == 1 or engine == "inline"
    if engine != "inline":
        checkpoint = Checkpoint(*observer.saves[-1])
        rounds = int(checkpoint.state["member0.rounds"])
        observer = GroupObserver()
        ENGINES[engine].run(
            program(size), Until(env_steps=result.counters.env_steps + 60 * size), 1, observer, checkpoint
        )
        assert int(observer.saves[-1][1]["member0.rounds"]) > rounds


@pytest.mark.reliability("K7")
@pytest.mark.parametrize("engine", ["processes", "ray"])
@pytest.mark.parametrize("rank", [0, 2])
def test_killed_member_restarts_the_group_from_the_checkpoint(engine, rank, tmp_path):
    if engine == "ray" and rank:
        pytest.skip("one rank is enough on Ray")
    observer = GroupObserver()
    members = program(3, kill_at=str(tmp_path / "killed"), kill_rank=rank)
    result = ENGINES[engine].run(members, Until(env_steps=900), 1, observer)
    assert result.status == "done" and result.counters.restarts == 1
    notes = [note for note in observer.notes if "died" in note]
    assert len(notes) == 1 and notes[0].startswith(f"member{rank} died"), notes
    assert "with the 2 other members of members" in notes[0]
    last = observer.saves[-1][1]
    assert len({int(last[f"member{i}.rounds"]) for i in range(3)}) == 1


class SlowRounds(Member):
    """Rounds of a few milliseconds, so that many pass between two commands."""

    def step(self):
        time.sleep(0.002)
        return super().step()


@pytest.mark.parametrize("delayed", [0, 1])
def test_members_stop_at_the_same_round_although_one_gets_the_pause_later(delayed, monkeypatch):
    """The pause of one member arrives some rounds after that of the other."""
    send = HostHandle.send

    def send_late(host, *message, attached=()):
        if message[0] == "pause" and host.name == f"member{delayed}":
            threading.Timer(0.3, send, (host, *message)).start()
        else:
            send(host, *message, attached=attached)

    monkeypatch.setattr(HostHandle, "send", send_late)
    members = Program("groups")
    for rank, ref in enumerate(members.group("members", 2)):
        members.add(f"member{rank}", SlowRounds, ref)
    observer = GroupObserver()
    engine = Processes(threads=1, log_s=0.02, checkpoint_s=0.3, step_limit_s=30, stop_limit_s=5)
    result = engine.run(members, Until(env_steps=300), 1, observer)
    assert result.status == "done" and not observer.notes, observer.notes
    rounds = [[int(state[f"member{rank}.rounds"]) for rank in range(2)] for _, state in observer.saves]
    assert len(rounds) > 2 and all(one == two for one, two in rounds), rounds


class Failing(Member):
    """Raises in its fifth round."""

    def _meet(self):
        if self.rounds == 5 and self.group.rank:
            raise ValueError("no more rounds")
        super()._meet()


def test_member_that_always_fails_ends_the_run_with_its_own_error():
    from troop.engines.supervisor import RestartBudgetExceeded

    members = Program("groups")
    for rank, ref in enumerate(members.group("members", 2)):
        members.add(f"member{rank}", Failing, ref)
    observer = GroupObserver()
    engine = Processes(threads=1, log_s=0.02, checkpoint_s=1e9, restarts=1, step_limit_s=30)
    with pytest.raises(RestartBudgetExceeded, match=r"member1 died 2 times.*no more rounds"):
        engine.run(members, Until(minutes=2), 1, observer)


def test_rendezvous_listens_on_its_own_address_only():
    server = RendezvousServer("127.0.0.1", 5.0)
    socket.create_connection(("127.0.0.1", server.port), 2).close()
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.2", server.port), 2).close()
    first = server.rendezvous("a")
    server.renew("a")
    assert server.rendezvous("a").prefix != first.prefix and server.rendezvous("b").prefix != first.prefix
    assert interface_towards("127.0.0.1") == "lo"


def test_member_that_is_waited_for_steps_again():
    """One member meets in every step, the other in every second: both make the same number of collectives."""
    group, met = InlineGroup(2), []

    def step(rank, counts=[0, 0]):  # noqa: B006
        counts[rank] += 1
        if rank == 0 or counts[rank] % 2 == 0:
            met.append((rank, float(InlineMember(group, rank).all_reduce(torch.ones(())))))
        return {}

    for _ in range(4):
        group.step_all([lambda: step(0), lambda: step(1)])
    assert [rank for rank, _ in met].count(0) == [rank for rank, _ in met].count(1) == 4
    assert all(total == 2 for _, total in met)


def test_error_of_an_inline_member_is_raised_and_ends_the_round():
    group = InlineGroup(2)

    def fail():
        raise ValueError("member 1")

    with pytest.raises(ValueError, match="member 1"):
        group.step_all([lambda: InlineMember(group, 0).all_reduce(torch.ones(())), fail])


def test_members_without_work_leave_the_others_waiting_until_a_later_step():
    """Rank 1 gets work only after the call in which rank 0 began to wait: other roles step in between."""
    group, work, log = InlineGroup(2), [False], []

    def step(rank):
        if rank and not work[0]:
            return None
        total = InlineMember(group, rank).all_reduce(torch.tensor(float(rank + 1)))
        log.append((rank, float(total)))
        return {"rank": rank}

    steps = [lambda: step(0), lambda: step(1)]
    assert group.step_all(steps) == [None] and not log
    assert group.step_all(steps) == [None] and not log
    work[0] = True
    assert sorted(metrics["rank"] for metrics in group.step_all(steps)) == [0, 1]
    assert sorted(log) == [(0, 3.0), (1, 3.0)]
    work[0] = False
    assert group.step_all(steps) == [None]
