import pytest
import torch

from troop.core.env import Continuous, EnvSpec, Field, Step
from troop.core.errors import SetupProblem, TrainingFault
from troop.envs import EnvGuard, Toy


def _zero_action(envs: int) -> torch.Tensor:
    return torch.zeros(envs, 1)


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
@pytest.mark.parametrize("fault", ["nan_obs", "inf_obs", "nan_reward", "inf_reward"])
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
        false = torch.zeros(2, dtype=torch.bool)
        obs = {"obs": self.obs}
        return Step(obs, obs, torch.zeros(2), false, false, false)

    def restart(self, rows):
        self.restarts += 1
        return {"obs": self.obs[rows]}


def test_an_env_that_is_never_finite_raises_after_a_few_restarts():
    broken = BrokenEnv(torch.tensor([[0.0, 0.0], [float("nan"), 0.0]]))
    with pytest.raises(SetupProblem, match="Env 'broken' returned NaN or infinite observations"):
        EnvGuard(broken).reset(0)
    assert broken.restarts <= 10


@pytest.mark.parametrize("obs", [torch.zeros(2, 3), torch.zeros(2, 2, dtype=torch.float64)])
def test_a_wrong_shape_or_dtype_raises_a_fault_that_names_both(obs):
    with pytest.raises(TrainingFault, match=r"broken.*obs.*float(32|64).*spec declares"):
        EnvGuard(BrokenEnv(obs)).reset(0)


def test_a_sum_that_overflows_is_no_fault():
    step = EnvGuard(BrokenEnv(torch.full((2, 2), 3e38))).reset(0)
    assert step.faults == 0
