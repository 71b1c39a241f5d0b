import json

import numpy as np
import pytest
import torch

from troop.core.env import Continuous, EnvSpec, Field
from troop.core.errors import EnvFault
from troop.core.numpy_env import first_step
from troop.envs import EnvGuard, Toy


def _zero_action(envs: int) -> torch.Tensor:
    return torch.zeros(envs, 1)


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
@pytest.mark.parametrize("fault", ["nan_obs", "inf_obs", "nan_reward", "inf_reward"])
@pytest.mark.reliability("N1")
def test_a_faulty_row_is_restarted_and_the_others_are_not(autoreset, fault):
    env = Toy("Faulty", 3, limit=10, autoreset=autoreset, faults=((4, 1, fault),)).make(0)
    env.reset(0)
    for _ in range(3):
        assert env.step(_zero_action(3)).faults == 0
    step = env.step(_zero_action(3))
    assert step.faults == 1
    assert step.valid.tolist() == [True, False, True]
    assert step.reward.tolist() == [1, 0, 1]
    assert not step.terminated.any() and not step.truncated.any()
    assert step.obs["obs"].squeeze(1).tolist() == pytest.approx([0.4, 0.0, 0.4])
    assert step.next_obs is step.obs
    step = env.step(_zero_action(3))
    assert step.faults == 0 and step.valid.all()
    assert step.obs["obs"].squeeze(1).tolist() == pytest.approx([0.5, 0.1, 0.5])


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
def test_a_fault_in_the_last_step_of_an_episode_clears_the_end_flags(autoreset):
    env = Toy("Faulty", 2, limit=3, autoreset=autoreset, faults=((3, 0, "nan_reward"),)).make(0)
    env.reset(0)
    for _ in range(2):
        env.step(_zero_action(2))
    step = env.step(_zero_action(2))
    assert step.truncated.tolist() == [False, True] and step.valid.tolist() == [False, True]
    after = env.step(_zero_action(2))
    assert bool(after.valid[0]) and after.next_obs["obs"][0].item() == pytest.approx(1 / 3)


@pytest.mark.reliability("N1")
def test_a_fault_at_reset_is_repaired():
    step = Toy("Faulty", 2, faults=((0, 1, "nan_obs"),)).make(0).reset(0)
    assert step.faults == 1 and torch.isfinite(step.obs["obs"]).all() and not step.valid.any()


class BrokenEnv:
    """Returns the given observations from `reset` and `restart`."""

    def __init__(self, obs):
        self.spec = EnvSpec("broken", {"obs": Field((2,))}, Continuous(1), 2)
        self.obs = obs
        self.restarts = 0

    def reset(self, seed):
        return first_step({"obs": self.obs}, 2)

    def restart(self, rows):
        self.restarts += 1
        return {"obs": self.obs[rows]}


@pytest.mark.reliability("N1")
def test_an_env_that_is_never_finite_raises_after_a_few_restarts():
    broken = BrokenEnv(np.array([[0.0, 0.0], [float("nan"), 0.0]], np.float32))
    message = r"Env 'broken' returned NaN or infinite observations.*nan in column 0 of obs\['obs'\] in row 1"
    with pytest.raises(EnvFault, match=message):
        EnvGuard(broken).reset(0)
    assert broken.restarts <= 10


@pytest.mark.parametrize("obs", [np.zeros((2, 3), np.float32), np.zeros((2, 2))])
@pytest.mark.reliability("N4")
def test_a_wrong_shape_or_dtype_raises_a_fault_that_names_both(obs):
    with pytest.raises(EnvFault, match=r"broken.*obs.*float(32|64).*spec declares"):
        EnvGuard(BrokenEnv(obs)).reset(0)


def test_a_sum_that_overflows_is_no_fault():
    step = EnvGuard(BrokenEnv(np.full((2, 2), 3e38, np.float32))).reset(0)
    assert step.faults == 0


def test_an_env_that_is_faulty_in_every_step_names_row_column_and_value():
    faults = tuple((step, 1, "inf_obs") for step in range(1, 40))
    env = Toy("Faulty", 3, limit=100, faults=faults).make(0)
    env.reset(0)
    message = (
        r"Env 'toy:Faulty' returned inf in column 0 of obs\['obs'\] in row 1 in each of 20 steps in a row"
    )
    with pytest.raises(EnvFault, match=message):
        for _ in range(25):
            env.step(_zero_action(3))


def test_faults_of_different_rows_do_not_end_a_run():
    faults = tuple((step, step % 3, "nan_reward") for step in range(1, 60))
    env = Toy("Faulty", 3, limit=100, faults=faults).make(0)
    env.reset(0)
    assert sum(env.step(_zero_action(3)).faults for _ in range(50)) == 50


def test_the_first_faulty_transition_is_kept():
    env = Toy("Faulty", 3, limit=10, faults=((2, 1, "nan_obs"), (3, 2, "nan_obs"))).make(0)
    env.reset(0)
    for action in (0.0, 0.5, 1.0):
        env.step(torch.full((3, 1), action))
    (text,) = env.files.values()
    record = json.loads(text)
    assert record["env"] == "toy:Faulty" and record["row"] == 1 and record["step"] == 2
    assert record["fault"] == "nan in column 0 of obs['obs']"
    assert record["obs"]["obs"] == pytest.approx([0.1]) and record["action"] == [0.5]
    assert record["next_obs"]["obs"] == [pytest.approx(float("nan"), nan_ok=True)]
