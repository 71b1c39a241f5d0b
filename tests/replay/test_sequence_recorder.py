"""Sequences against a list of everything that happened: steps, successors, recurrent states, coverage."""

import copy
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from troop.core.algorithm import PolicyOutput
from troop.core.batch import SequenceSpec
from troop.envs import Toy
from troop.replay.recorders.sequences import SequenceRecorder, VectorSequenceRecorder

GAMMA = 0.9
specs = st.tuples(st.integers(1, 9), st.integers(0, 8), st.integers(0, 8)).map(
    lambda x: SequenceSpec(x[0], min(x[1], x[0] - 1), min(x[1], x[0] - 1, x[2]), GAMMA)
)


class Log:
    """Everything that happened in each env; the action of step n of env e is (100 e + n) / 1000."""

    def __init__(self, config, seed=0):
        self.env = config.make(seed)
        self.envs = config.envs
        self.step = self.env.reset(seed)
        self.steps = [[] for _ in range(config.envs)]
        self.state = torch.zeros(config.envs, 2)  # steps of the episode, steps of the run

    def act(self, recorder):
        """Make one vector step with a policy whose state counts the steps of the episode."""
        self.state[self.step.started, 0] = 0
        state = {"core": {"count": self.state.clone()}}
        number = len(self.steps[0])
        action = (torch.arange(self.envs).unsqueeze(1) * 100 + number) / 1000
        obs = {name: x.clone() for name, x in self.step.obs.items()}
        started = self.step.started.clone()
        output = PolicyOutput(action, None, {"double": action[:, 0] * 2})
        recorder.on_action(obs, output, state, number)
        self.state += 1
        self.step = step = self.env.step(action)
        for env in range(self.envs):
            row = {
                "obs": obs["obs"][env],
                "next_obs": step.next_obs["obs"][env].clone(),
                "action": action[env],
                "reward": float(step.reward[env]),
                "terminated": bool(step.terminated[env]),
                "ended": bool(step.terminated[env] | step.truncated[env]),
                "valid": bool(step.valid[env]),
                "started": bool(started[env]),
                "state": state["core"]["count"][env],
            }
            self.steps[env].append(row)
        return recorder.on_step(step)

    def check(self, sequences, spec, forced=()):
        """Compare each sequence with the log; return (env, step) of all steps that are learned from."""
        learned = []
        for part in sequences:
            assert part.length == spec.length and not len(part.final_index)
            for column in range(len(part)):
                learned += self._check_column(part, column, spec, forced)
        return learned

    def _check_column(self, part, column, spec, forced):
        valid = part.valid[:, column].nonzero().flatten().tolist()
        assert valid == list(range(valid[0], valid[-1] + 1)), "valid rows are consecutive"
        first, last = valid[0], valid[-1]
        env, number = divmod(round(float(part.action[first, column, 0]) * 1000), 100)
        rows = self.steps[env][number : number + len(valid)]
        for t, row in zip(valid, rows, strict=True):
            assert row["valid"]
            assert torch.equal(part.obs["obs"][t, column], row["obs"])
            assert torch.equal(part.obs["obs"][t + 1, column], row["next_obs"])  # also at time limits
            assert torch.equal(part.action[t, column], row["action"])
            assert float(part.extras["double"][t, column]) == float(row["action"][0] * 2)
            assert int(part.extras["version"][t, column]) == number + t - first
            assert float(part.reward[t, column]) == row["reward"]
            assert float(part.discount[t, column]) == pytest.approx(0 if row["terminated"] else GAMMA)
            assert bool(part.started[t, column]) == row["started"]
            # A full sequence was returned before the forced reset.
            cut = number + t - first in forced and t == last < spec.length - 1
            assert bool(part.ended[t, column]) == (row["ended"] or cut)
        assert not any(row["ended"] for row in rows[:-1]), "a sequence crosses an episode's end"
        assert not any(row["started"] for row in rows[1:])
        outside = [t for t in range(spec.length) if t < first or t > last]
        for name in ("reward", "discount", "ended", "valid", "action"):
            assert not getattr(part, name)[outside, column].any()
        if first:  # rows before the first step are those of an episode's first sequence
            assert rows[0]["started"]
        else:
            assert torch.equal(part.state["core"]["count"][column], rows[0]["state"])
        return [(env, number + t - first) for t in valid if t >= spec.burn_in]


@settings(max_examples=60, deadline=None)
@given(
    specs,
    st.sampled_from(["same_step", "next_step"]),
    st.sampled_from(["Countdown", "PointMass"]),
    st.integers(1, 12),
    st.lists(st.integers(1, 40), max_size=2),
)
def test_sequences_are_the_steps_that_happened_and_leave_out_none(spec, autoreset, task, limit, forced):
    log = Log(Toy(task, 3, limit=limit, autoreset=autoreset))
    recorder, sequences, cuts = VectorSequenceRecorder(3, spec), [], set()
    for number in range(40):
        sequences += log.act(recorder)
        if number in forced or number == 39:
            sequences += recorder.flush(log.step.obs)
            log.step = log.env.reset(number)
            cuts.add(number)
    learned = Counter(log.check(sequences, spec, cuts))
    happened = {(e, n) for e in range(3) for n, row in enumerate(log.steps[e]) if row["valid"]}
    assert set(learned) == happened
    if spec.burn_in == spec.overlap:
        assert set(learned.values()) <= {1}


@pytest.mark.parametrize("burn_in", [0, 4])
def test_the_stored_state_belongs_to_entry_0_with_a_burn_in(burn_in):
    """SEED's code stores the state of the first step after the overlap: it is off by the burn-in."""
    spec = SequenceSpec(10, 4, burn_in, GAMMA)
    log = Log(Toy("Clock", 1, limit=100))
    recorder, sequences = VectorSequenceRecorder(1, spec), []
    for _ in range(40):
        sequences += log.act(recorder)
    counts = [int(part.state["core"]["count"][0, 0]) for part in sequences]
    rows = 10 - burn_in  # steps of the episode's first sequence
    assert counts == [0, *range(rows - 4, 40 - 9, 6)]
    for part in sequences[1:]:
        assert float(part.action[0, 0, 0]) * 1000 == pytest.approx(float(part.state["core"]["count"][0, 0]))


def test_an_env_fault_ends_the_sequence_before_it():
    config = Toy("Faulty", 2, limit=50, faults=((5, 1, "nan_obs"),))
    log, spec = Log(config), SequenceSpec(8, 2, 0, GAMMA)
    recorder, sequences = VectorSequenceRecorder(2, spec), []
    for _ in range(12):
        sequences += log.act(recorder)
    (broken,) = [part for part in sequences if int(part.valid.sum()) == 4]
    assert broken.valid[:, 0].tolist() == [True] * 4 + [False] * 4
    assert bool(broken.ended[3, 0]) and float(broken.discount[3, 0]) == pytest.approx(GAMMA)
    assert torch.equal(broken.obs["obs"][4, 0], log.steps[1][4]["obs"])
    assert not broken.obs["obs"][5:].any() and not broken.extras["version"][4:].any()


def test_restarted_envs_drop_their_unfinished_sequences_and_count_only_new_steps():
    spec, ids = SequenceSpec(6, 2, 1, GAMMA), torch.arange(2)
    log = Log(Toy("Clock", 2, limit=100))
    vector = VectorSequenceRecorder(2, spec)
    sequences = [part for _ in range(8) for part in log.act(vector)]
    assert len(sequences) == 1  # five steps after the burn-in; then two of them again and three new ones
    recorder: SequenceRecorder = vector.recorder
    assert recorder.reset(ids[:1]) == 3 and recorder.time.tolist() == [1, 5]
    assert recorder.started.tolist() == [True, False]


def test_a_restored_recorder_continues_in_the_middle_of_a_sequence():
    spec = SequenceSpec(7, 3, 2, GAMMA)
    log = Log(Toy("Countdown", 3, limit=6))
    recorder, other = (VectorSequenceRecorder(3, spec) for _ in range(2))
    for _ in range(9):
        log.act(recorder)
    other.load_state_dict(copy.deepcopy(recorder.state_dict()))

    class Both:
        """Records into two recorders and keeps what each returns."""

        def on_action(self, *args):
            recorder.on_action(*args)
            other.on_action(*args)

        def on_step(self, step):
            pairs.append((recorder.on_step(step), other.on_step(step)))
            return []

    pairs = []
    for _ in range(20):
        log.act(Both())
    compared = 0
    for first, second in pairs:
        for one, two in zip(first, second, strict=True):
            leaves = zip(*(torch.utils._pytree.tree_leaves(vars_of(x)) for x in (one, two)), strict=True)
            assert all(torch.equal(a, b) for a, b in leaves if isinstance(a, torch.Tensor))
            compared += 1
    assert compared > 5
    shorter = VectorSequenceRecorder(3, SequenceSpec(4, 3, 2, GAMMA))
    shorter.load_state_dict(copy.deepcopy(recorder.state_dict()))
    assert shorter.recorder.time.tolist() == [0, 0, 0]  # the episodes go on with their states
    assert torch.equal(shorter.recorder.started, recorder.recorder.started)


def vars_of(trajectory):
    return {name: getattr(trajectory, name) for name in trajectory.__slots__}


def test_specs_that_would_leave_out_steps_are_refused():
    for length, overlap, burn_in in ((4, 4, 0), (4, 1, 2), (4, -1, 0), (0, 0, 0)):
        with pytest.raises(ValueError, match="burn-in"):
            SequenceSpec(length, overlap, burn_in)


def test_initial_priorities_are_those_of_the_given_function_and_finite():
    log = Log(Toy("Clock", 2, limit=3))
    recorder = VectorSequenceRecorder(
        2,
        SequenceSpec(3),
        initial_priority=lambda part: torch.tensor([float("nan"), float(part.reward.sum())]),
    )
    sequences = [part for _ in range(3) for part in log.act(recorder)]
    assert sequences[0].priority.tolist() == [0.0, 6.0]
