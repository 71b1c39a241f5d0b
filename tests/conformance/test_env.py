"""Conformance of every env backend to `VectorEnv`: successors, valid rows, end flags, seeds, restarts."""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
import torch

from troop.core.env import Continuous, EnvConfig, Step
from troop.core.errors import SetupProblem
from troop.envs import EnvPool, FrameConfig, Gymnasium, Toy, preprocessing

SHORT_EPISODES = (("max_episode_steps", 7),)


@dataclass(frozen=True)
class Case:
    """An env, and how its episodes end under random actions."""

    config: EnvConfig
    ends: str  # "truncated", "terminated", "either", or "never" within the rollout
    autoreset: str  # "same_step" or "next_step"
    dynamics: str = ""  # name of the equation of motion, if the test has one


def _toy_cases() -> dict[str, Case]:
    cases = {}
    for autoreset in ("same_step", "next_step"):
        ends_of = {"Clock": "truncated", "Countdown": "terminated", "PointMass": "truncated"}
        for name, ends in (ends_of | {"Reach": "truncated"}).items():
            config = Toy(name, 3, limit=7, autoreset=autoreset)
            cases[f"toy-{name}-{autoreset}"] = Case(config, ends, autoreset)
        chain = Toy("Chain", 3, limit=3, autoreset=autoreset)
        cases[f"toy-Chain-{autoreset}"] = Case(chain, "either", autoreset)
        discrete = Toy("Clock", 3, limit=7, autoreset=autoreset, discrete=True, privileged=True)
        cases[f"toy-discrete-{autoreset}"] = Case(discrete, "truncated", autoreset)
        last_step = Toy("PointMass", 3, limit=7, autoreset=autoreset, last_step=True)
        cases[f"toy-last-step-{autoreset}"] = Case(last_step, "truncated", autoreset)
        hidden = Toy("PointMass", 3, limit=7, autoreset=autoreset, hide=(1,), last_step=True)
        cases[f"toy-hidden-{autoreset}"] = Case(hidden, "truncated", autoreset)
        cue = Toy("Cue-v0", 3, cues=3, delay=5, autoreset=autoreset)
        cases[f"toy-Cue-{autoreset}"] = Case(cue, "terminated", autoreset)
    return cases


def _gymnasium_cases() -> dict[str, Case]:
    cases = {}
    for mode in ("same_step", "next_step", "disabled"):
        autoreset = "next_step" if mode == "next_step" else "same_step"
        for workers in (0, 2):
            pendulum = Gymnasium("Pendulum-v1", 3, mode, workers, SHORT_EPISODES)
            cases[f"gym-pendulum-{mode}-{workers}-workers"] = Case(
                pendulum, "truncated", autoreset, "pendulum"
            )
            cartpole = Gymnasium("CartPole-v1", 3, mode, workers)
            cases[f"gym-cartpole-{mode}-{workers}-workers"] = Case(cartpole, "terminated", autoreset)
    return cases


CASES = {
    **_toy_cases(),
    **_gymnasium_cases(),
    "envpool-pendulum": Case(
        EnvPool("Pendulum-v1", 3, 1, SHORT_EPISODES), "truncated", "next_step", "pendulum"
    ),
    "envpool-cartpole": Case(EnvPool("CartPole-v1", 3, 1), "terminated", "next_step"),
    "envpool-cartpole-frames": Case(
        EnvPool("CartPole-v1", 3, 1, frames=FrameConfig(repeat=2)), "terminated", "same_step"
    ),
    "gym-pendulum-frames": Case(
        Gymnasium(
            "Pendulum-v1", 3, "next_step", settings=(("max_episode_steps", 14),), frames=FrameConfig(2)
        ),
        "truncated",
        "same_step",
    ),
    "envpool-walker-hidden": Case(
        EnvPool("WalkerWalk-v1", 3, 1, SHORT_EPISODES, hide=tuple(range(15, 24))), "truncated", "next_step"
    ),
    "gym-pendulum-hidden": Case(
        Gymnasium("Pendulum-v1", 3, settings=SHORT_EPISODES, hide=(2,)), "truncated", "same_step"
    ),
    "envpool-cheetah": Case(EnvPool("HalfCheetah-v5", 3, 1, SHORT_EPISODES), "truncated", "next_step"),
    "envpool-walker": Case(EnvPool("WalkerWalk-v1", 3, 1, SHORT_EPISODES), "truncated", "next_step"),
    "envpool-lander": Case(EnvPool("LunarLander-v3", 3, 1, SHORT_EPISODES), "truncated", "next_step"),
    "envpool-catch": Case(EnvPool("Catch-v0", 3, 1), "terminated", "next_step"),
    "envpool-minigrid": Case(
        EnvPool("MiniGrid-DoorKey-5x5-v0", 3, 1, SHORT_EPISODES), "truncated", "next_step"
    ),
    "envpool-procgen": Case(EnvPool("BigfishEasy-v0", 3, 1), "never", "next_step"),
    "envpool-pong": Case(EnvPool("Pong-v5", 3, 1, SHORT_EPISODES), "truncated", "next_step"),
    "envpool-breakout-lives": Case(EnvPool("Breakout-v5", 3, 1, preprocessing()), "terminated", "next_step"),
    "envpool-go1": Case(EnvPool("Go1JoystickFlatTerrain-v1", 3, 1, SHORT_EPISODES), "truncated", "next_step"),
}


def _skip_if_unavailable(case: Case) -> None:
    if isinstance(case.config, EnvPool):
        pytest.importorskip("envpool")
        try:
            _ = case.config.spec
        except SetupProblem as problem:  # Procgen needs Qt
            pytest.skip(str(problem))


@pytest.fixture(params=CASES, ids=str)
def case(request: Any) -> Case:
    case = CASES[request.param]
    _skip_if_unavailable(case)
    return case


def random_actions(config: EnvConfig, steps: int, seed: int = 0) -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    space = config.spec.action
    if isinstance(space, Continuous):
        return [torch.rand(config.envs, space.size, generator=random) * 2.4 - 1.2 for _ in range(steps)]
    return [torch.randint(space.choices, (config.envs,), generator=random) for _ in range(steps)]


def rollout(case: Case, steps: int = 40, seed: int = 3) -> list[Step]:
    env = case.config.make(seed)
    results = [env.reset(seed)]
    results += [env.step(action) for action in random_actions(case.config, steps)]
    env.close()
    env.close()
    return results


def equal(first: Step, second: Step, rows: list[int] | None = None) -> bool:
    rows = list(range(len(first.reward))) if rows is None else rows
    pairs = [(first.obs[k], second.obs[k]) for k in first.obs]
    pairs += [(first.next_obs[k], second.next_obs[k]) for k in first.obs]
    for name in ("reward", "terminated", "truncated", "valid"):
        pairs.append((getattr(first, name), getattr(second, name)))
    return all(torch.equal(a[rows], b[rows]) for a, b in pairs)


def test_every_row_of_a_rollout_conforms_to_step(case: Case) -> None:
    spec = case.config.spec
    results = rollout(case)
    assert not results[0].valid.any() and not results[0].reward.any()
    ends = {"terminated": 0, "truncated": 0}
    for step in results:
        for obs in (step.obs, step.next_obs):
            assert set(obs) == set(spec.obs)
            for name, field in spec.obs.items():
                assert obs[name].shape == (spec.envs, *field.shape) and obs[name].dtype == field.dtype
        assert step.reward.dtype == torch.float32 and step.reward.shape == (spec.envs,)
        assert not (step.terminated & step.truncated).any()
        invalid = ~step.valid
        assert not (invalid & (step.terminated | step.truncated)).any() and not step.reward[invalid].any()
    for previous, step in pairwise(results):
        ended_before = previous.terminated | previous.truncated
        ended = step.terminated | step.truncated
        next_step = case.autoreset == "next_step"
        assert torch.equal(~step.valid, ended_before if next_step else torch.zeros_like(ended_before))
        if next_step or not ended.any():
            assert step.next_obs is step.obs
        else:
            for name in step.obs:
                assert torch.equal(step.obs[name][~ended], step.next_obs[name][~ended])
            assert any(not torch.equal(step.obs[k][ended], step.next_obs[k][ended]) for k in step.obs)
        ends["terminated"] += int(step.terminated.sum())
        ends["truncated"] += int(step.truncated.sum())
    if case.ends == "never":  # Procgen's time limit of 1,000 steps cannot be changed
        return
    assert sum(ends.values()) > 0
    if case.ends != "either":
        assert ends[case.ends] == sum(ends.values())


def test_episodes_are_truncated_exactly_at_the_time_limit(case: Case) -> None:
    if case.ends != "truncated":
        pytest.skip("episodes are not truncated")
    length = torch.zeros(case.config.envs)
    for step in rollout(case)[1:]:
        length = length + step.valid
        assert (length[step.truncated] == 7).all()
        length[step.truncated] = 0
    assert (length < 7).all()


def test_a_seed_determines_the_rollout(case: Case) -> None:
    first, second = rollout(case), rollout(case)
    assert all(equal(a, b) for a, b in zip(first, second, strict=True))
    other = rollout(case, seed=4)
    is_deterministic = isinstance(case.config, Toy) and case.config.id in ("Clock", "Chain")
    assert is_deterministic or not all(equal(a, b) for a, b in zip(first, other, strict=True))


def test_reset_with_the_same_seed_repeats_the_rollout(case: Case) -> None:
    env = case.config.make(1)
    actions = random_actions(case.config, 4)
    first = [env.reset(1), *(env.step(a) for a in actions)]
    env.reset(2)
    repeated = [env.reset(1), *(env.step(a) for a in actions)]
    env.close()
    assert all(equal(a, b) for a, b in zip(first, repeated, strict=True))


@pytest.mark.parametrize("after", [3, 7], ids=["within_episode", "at_episode_end"])
def test_restart_affects_only_the_given_rows(case: Case, after: int) -> None:
    actions = random_actions(case.config, after + 5)
    env, reference = case.config.make(5), case.config.make(5)
    for each in (env, reference):
        each.reset(5)
        for action in actions[:after]:
            each.step(action)
    first_obs = env.restart(torch.tensor([1]))
    assert all(first_obs[name].shape == (1, *field.shape) for name, field in case.config.spec.obs.items())
    for index, action in enumerate(actions[after:]):
        expected, step = reference.step(action), env.step(action)
        assert equal(expected, step, [0, 2])
        if index == 0:
            assert bool(step.valid[1])
    env.close()
    reference.close()


def test_next_obs_follows_the_equation_of_motion(case: Case) -> None:
    """Computes Pendulum's successors independently, including final observations and the action scale."""
    if case.dynamics != "pendulum":
        pytest.skip("no equation of motion")
    results = rollout(case)
    max_error = 0.0
    for previous, action, step in zip(
        results[:-1], random_actions(case.config, 40), results[1:], strict=True
    ):
        for row in range(case.config.envs):
            if not step.valid[row]:
                continue
            cos, sin, speed = (float(x) for x in previous.obs["obs"][row])
            torque = 2 * float(action[row, 0].clamp(-1, 1))
            speed = max(-8, min(8, speed + (15 * sin + 3 * torque) * 0.05))
            angle = math.atan2(sin, cos) + speed * 0.05
            expected = torch.tensor([math.cos(angle), math.sin(angle), speed])
            max_error = max(max_error, float((step.next_obs["obs"][row] - expected).abs().max()))
    assert max_error < 1e-4


def test_send_then_recv_equals_step(case: Case) -> None:
    step_env, send_env = case.config.make(6), case.config.make(6)
    step_env.reset(6), send_env.reset(6)
    for action in random_actions(case.config, 3):
        send_env.send(action)
        assert equal(step_env.step(action), send_env.recv())
    step_env.close()
    send_env.close()


def test_with_envs_changes_only_the_number_of_envs(case: Case) -> None:
    config = case.config.with_envs(5)
    assert config.spec.envs == 5 and config.with_envs(3) == case.config
