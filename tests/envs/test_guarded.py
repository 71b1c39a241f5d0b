import pytest
import torch

from troop.core.env import Continuous, EnvSpec, Field, Step
from troop.core.errors import SetupProblem, TrainingFault
from troop.envs import EnvGuard, Toy


def _push(envs: int) -> torch.Tensor:
    return torch.zeros(envs, 1)


@pytest.mark.parametrize("style", ["same_step", "next_step"])
@pytest.mark.parametrize("what", ["nan_obs", "inf_obs", "nan_reward", "inf_reward"])
def test_a_broken_row_is_restarted_and_the_others_are_not(style, what):
    env = Toy("Faulty", 3, limit=10, autoreset=style, faults=((4, 1, what),)).make(0)
    env.reset(0)
    for _ in range(3):
        assert env.step(_push(3)).faults == 0
    step = env.step(_push(3))
    assert step.faults == 1
    assert step.valid.tolist() == [True, False, True]
    assert step.reward.tolist() == [1, 0, 1]
    assert not step.terminated.any() and not step.truncated.any()
    assert step.obs["obs"].squeeze(1).tolist() == pytest.approx([0.4, 0.0, 0.4])
    assert step.next_obs is step.obs
    step = env.step(_push(3))
    assert step.faults == 0 and step.valid.all()
    assert step.obs["obs"].squeeze(1).tolist() == pytest.approx([0.5, 0.1, 0.5])


@pytest.mark.parametrize("style", ["same_step", "next_step"])
def test_a_fault_on_the_last_step_of_an_episode_is_no_end(style):
    env = Toy("Faulty", 2, limit=3, autoreset=style, faults=((3, 0, "nan_reward"),)).make(0)
    env.reset(0)
    for _ in range(2):
        env.step(_push(2))
    step = env.step(_push(2))
    assert step.truncated.tolist() == [False, True] and step.valid.tolist() == [False, True]
    after = env.step(_push(2))
    assert bool(after.valid[0]) and after.next_obs["obs"][0].item() == pytest.approx(1 / 3)


def test_a_fault_at_reset_is_healed():
    step = Toy("Faulty", 2, faults=((0, 1, "nan_obs"),)).make(0).reset(0)
    assert step.faults == 1 and torch.isfinite(step.obs["obs"]).all() and not step.valid.any()


class Broken:
    """Answers whatever it is told to."""

    def __init__(self, obs):
        self.spec = EnvSpec("broken", {"obs": Field((2,))}, Continuous(1), 2)
        self.obs = obs
        self.restarts = 0

    def reset(self, seed):
        no = torch.zeros(2, dtype=torch.bool)
        obs = {"obs": self.obs}
        return Step(obs, obs, torch.zeros(2), no, no, no)

    def restart(self, rows):
        self.restarts += 1
        return {"obs": self.obs[rows]}


def test_an_env_that_is_never_finite_is_told_after_a_few_trials():
    broken = Broken(torch.tensor([[0.0, 0.0], [float("nan"), 0.0]]))
    with pytest.raises(SetupProblem, match="broken"):
        EnvGuard(broken).reset(0)
    assert broken.restarts <= 10


@pytest.mark.parametrize("obs", [torch.zeros(2, 3), torch.zeros(2, 2, dtype=torch.float64)])
def test_another_shape_or_dtype_is_named(obs):
    with pytest.raises(TrainingFault, match=r"broken.*obs.*float(32|64).*spec says"):
        EnvGuard(Broken(obs)).reset(0)


def test_a_large_but_finite_sum_is_no_fault():
    step = EnvGuard(Broken(torch.full((2, 2), 3e38))).reset(0)
    assert step.faults == 0
