"""EnvRowRecorder: rows of envs that step at different times equal those of a StepRecorder."""

import numpy as np
import pytest
import torch

from troop.core.algorithm import PolicyOutput
from troop.core.batch import Rollout
from troop.envs import Toy
from troop.replay.recorders.env_rows import EnvRowRecorder
from troop.replay.recorders.steps import StepRecorder

FIELDS = ("action", "reward", "terminated", "truncated", "closing")


def rows_by_stream(rollouts, fields=FIELDS):
    """Return the rows of each stream in order, as tuples of numbers."""
    rows: dict[int, list] = {}
    for rollout in rollouts:
        for column, stream in enumerate(rollout.streams.tolist()):
            for t in range(len(rollout.reward)):
                values = [getattr(rollout, name)[t, column].tolist() for name in fields]
                rows.setdefault(stream, []).append((rollout.obs["obs"][t, column].tolist(), *values))
    return rows


def without_meaning(rows):
    """Blank action, reward and flags of closing rows, which have none."""
    return {stream: [(row[0], True) if row[-1] else row for row in values] for stream, values in rows.items()}


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
@pytest.mark.parametrize("length", [1, 3])
def test_rows_equal_those_of_a_step_recorder(autoreset, length):
    env = Toy("PointMass", 4, limit=5, autoreset=autoreset).make(3)
    whole, parts = StepRecorder(4, first_stream=8), EnvRowRecorder(4, length, first_stream=8)
    expected: list[Rollout] = []
    recorded: list[Rollout] = []
    step, generator = env.reset(3), np.random.default_rng(0)
    for _ in range(40):
        action = torch.rand(4, env.spec.action.size) * 2 - 1
        whole.on_action(step.obs, PolicyOutput(action))
        order = torch.from_numpy(generator.permutation(4))
        groups = order[:1], order[1:]
        for ids in groups:
            parts.on_action(ids, {k: x[ids] for k, x in step.obs.items()}, PolicyOutput(action[ids]))
        step = env.step(action)
        expected += whole.on_step(step)
        for ids in groups:
            obs = {k: x[ids] for k, x in step.obs.items()}
            next_obs = obs if step.next_obs is step.obs else {k: x[ids] for k, x in step.next_obs.items()}
            outcome = (step.reward, step.terminated, step.truncated, step.valid)
            recorded += parts.on_step(ids, type(step)(obs, next_obs, *(x[ids] for x in outcome)))
    found, wanted = (without_meaning(rows_by_stream(x)) for x in (recorded, expected))
    assert set(found) == {8, 9, 10, 11}
    for stream, rows in found.items():
        assert rows == wanted[stream][: len(rows)]
        assert len(wanted[stream]) - len(rows) < length + 1
    assert any(row[-1] is True for row in found[8])  # an episode ended at its time limit


def test_reset_drops_rows_that_were_not_returned():
    recorder, ids = EnvRowRecorder(2, 3), torch.arange(2)
    env = Toy("PointMass", 2, limit=50).make(1)
    step = env.reset(1)
    for _ in range(2):
        recorder.on_action(ids, step.obs, PolicyOutput(torch.zeros(2, env.spec.action.size)))
        step = env.step(torch.zeros(2, env.spec.action.size))
        assert recorder.on_step(ids, step) == []
    assert recorder.reset(torch.tensor([1])) == 2
    recorder.on_action(ids, step.obs, PolicyOutput(torch.zeros(2, env.spec.action.size)))
    (rollout,) = recorder.on_step(ids, env.step(torch.zeros(2, env.spec.action.size)))
    assert rollout.streams.tolist() == [0] and rollout.reward.shape == (3, 1)
