"""Every env backend against C1: true successors, valid rows, flags, seeds, restarts."""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
import torch

from troop.core.env import Continuous, EnvConfig, Step
from troop.core.errors import SetupProblem
from troop.envs import EnvPool, Gymnasium, Toy, preprocessing

SHORT = (("max_episode_steps", 7),)


@dataclass(frozen=True)
class Case:
    """A backend, how its episodes end under random actions, and its equation of motion, if known."""

    config: EnvConfig
    ends: str  # "truncated", "terminated", "either", or "later" than the rollout
    style: str  # "same_step" or "next_step"
    motion: str = ""


def _toys() -> dict[str, Case]:
    cases = {}
    for style in ("same_step", "next_step"):
        for name, ends in {"Clock": "truncated", "Countdown": "terminated", "PointMass": "truncated"}.items():
            cases[f"toy-{name}-{style}"] = Case(Toy(name, 3, limit=7, autoreset=style), ends, style)
        cases[f"toy-Chain-{style}"] = Case(Toy("Chain", 3, limit=3, autoreset=style), "either", style)
        discrete = Toy("Clock", 3, limit=7, autoreset=style, discrete=True, privileged=True)
        cases[f"toy-discrete-{style}"] = Case(discrete, "truncated", style)
    return cases


def _gymnasiums() -> dict[str, Case]:
    cases = {}
    for mode in ("same_step", "next_step", "disabled"):
        style = "next_step" if mode == "next_step" else "same_step"
        for how in ("sync", "async"):
            pendulum = Gymnasium("Pendulum-v1", 3, mode, how, SHORT)
            cases[f"gym-pendulum-{mode}-{how}"] = Case(pendulum, "truncated", style, "pendulum")
            cartpole = Gymnasium("CartPole-v1", 3, mode, how)
            cases[f"gym-cartpole-{mode}-{how}"] = Case(cartpole, "terminated", style)
    return cases


CASES = {
    **_toys(),
    **_gymnasiums(),
    "envpool-pendulum": Case(EnvPool("Pendulum-v1", 3, 1, SHORT), "truncated", "next_step", "pendulum"),
    "envpool-cartpole": Case(EnvPool("CartPole-v1", 3, 1), "terminated", "next_step"),
    "envpool-cheetah": Case(EnvPool("HalfCheetah-v5", 3, 1, SHORT), "truncated", "next_step"),
    "envpool-walker": Case(EnvPool("WalkerWalk-v1", 3, 1, SHORT), "truncated", "next_step"),
    "envpool-lander": Case(EnvPool("LunarLander-v3", 3, 1, SHORT), "truncated", "next_step"),
    "envpool-catch": Case(EnvPool("Catch-v0", 3, 1), "terminated", "next_step"),
    "envpool-minigrid": Case(EnvPool("MiniGrid-DoorKey-5x5-v0", 3, 1, SHORT), "truncated", "next_step"),
    "envpool-procgen": Case(EnvPool("BigfishEasy-v0", 3, 1), "later", "next_step"),
    "envpool-pong": Case(EnvPool("Pong-v5", 3, 1, SHORT), "truncated", "next_step"),
    "envpool-breakout-lives": Case(EnvPool("Breakout-v5", 3, 1, preprocessing()), "terminated", "next_step"),
    "envpool-go1": Case(EnvPool("Go1JoystickFlatTerrain-v1", 3, 1, SHORT), "truncated", "next_step"),
}


def _needs(case: Case) -> None:
    if isinstance(case.config, EnvPool):
        pytest.importorskip("envpool")
        try:
            _ = case.config.spec
        except SetupProblem as problem:  # Procgen wants Qt on the machine
            pytest.skip(str(problem))


@pytest.fixture(params=CASES, ids=str)
def case(request: Any) -> Case:
    chosen = CASES[request.param]
    _needs(chosen)
    return chosen


def actions(config: EnvConfig, steps: int, seed: int = 0) -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    kind = config.spec.action
    if isinstance(kind, Continuous):
        return [torch.rand(config.envs, kind.size, generator=random) * 2.4 - 1.2 for _ in range(steps)]
    return [torch.randint(kind.choices, (config.envs,), generator=random) for _ in range(steps)]


def rollout(case: Case, steps: int = 40, seed: int = 3) -> list[Step]:
    env = case.config.make(seed)
    came = [env.reset(seed)]
    came += [env.step(action) for action in actions(case.config, steps)]
    env.close()
    env.close()
    return came


def same(first: Step, second: Step, rows: list[int] | None = None) -> bool:
    rows = list(range(len(first.reward))) if rows is None else rows
    pairs = [(first.obs[k], second.obs[k]) for k in first.obs]
    pairs += [(first.next_obs[k], second.next_obs[k]) for k in first.obs]
    for name in ("reward", "terminated", "truncated", "valid"):
        pairs.append((getattr(first, name), getattr(second, name)))
    return all(torch.equal(a[rows], b[rows]) for a, b in pairs)


def test_contract(case: Case) -> None:
    """One rollout, every claim of Step checked on each of its rows."""
    spec = case.config.spec
    came = rollout(case)
    assert not came[0].valid.any() and not came[0].reward.any()
    ended = torch.zeros(spec.envs, dtype=torch.bool)
    ends = {"terminated": 0, "truncated": 0}
    for step in came:
        for obs in (step.obs, step.next_obs):
            assert set(obs) == set(spec.obs)
            for name, field in spec.obs.items():
                assert obs[name].shape == (spec.envs, *field.shape) and obs[name].dtype == field.dtype
        assert step.reward.dtype == torch.float32 and step.reward.shape == (spec.envs,)
        assert not (step.terminated & step.truncated).any()
        opened = ~step.valid
        assert not (opened & (step.terminated | step.truncated)).any() and not step.reward[opened].any()
    for before, step in pairwise(came):
        ended = before.terminated | before.truncated
        now = step.terminated | step.truncated
        assert torch.equal(~step.valid, ended if case.style == "next_step" else torch.zeros_like(ended))
        if case.style == "next_step" or not now.any():
            assert step.next_obs is step.obs
        else:
            for name in step.obs:
                assert torch.equal(step.obs[name][~now], step.next_obs[name][~now])
            assert any(not torch.equal(step.obs[k][now], step.next_obs[k][now]) for k in step.obs)
        ends["terminated"] += int(step.terminated.sum())
        ends["truncated"] += int(step.truncated.sum())
    if case.ends == "later":  # Procgen knows no other time limit than its own thousand steps
        return
    assert sum(ends.values()) > 0
    if case.ends != "either":
        assert ends[case.ends] == sum(ends.values())


def test_truncates_on_the_last_step_of_the_clock(case: Case) -> None:
    if case.ends != "truncated":
        pytest.skip("ends otherwise")
    length = torch.zeros(case.config.envs)
    for step in rollout(case)[1:]:
        length = length + step.valid
        assert (length[step.truncated] == 7).all()
        length[step.truncated] = 0
    assert (length < 7).all()


def test_same_seed_same_rollout(case: Case) -> None:
    first, second = rollout(case), rollout(case)
    assert all(same(a, b) for a, b in zip(first, second, strict=True))
    other = rollout(case, seed=4)
    constant = isinstance(case.config, Toy) and case.config.id in ("Clock", "Chain")
    assert constant or not all(same(a, b) for a, b in zip(first, other, strict=True))


def test_reset_takes_a_new_seed_and_the_old_one_again(case: Case) -> None:
    env = case.config.make(1)
    taken = actions(case.config, 4)
    first = [env.reset(1), *(env.step(a) for a in taken)]
    env.reset(2)
    again = [env.reset(1), *(env.step(a) for a in taken)]
    env.close()
    assert all(same(a, b) for a, b in zip(first, again, strict=True))


@pytest.mark.parametrize("after", [3, 7], ids=["within", "at_the_end"])
def test_restart_touches_only_its_rows(case: Case, after: int) -> None:
    taken = actions(case.config, after + 5)
    left, right = case.config.make(5), case.config.make(5)
    for env in (left, right):
        env.reset(5)
        for action in taken[:after]:
            env.step(action)
    fresh = right.restart(torch.tensor([1]))
    assert all(fresh[name].shape == (1, *field.shape) for name, field in case.config.spec.obs.items())
    for index, action in enumerate(taken[after:]):
        stays, restarted = left.step(action), right.step(action)
        assert same(stays, restarted, [0, 2])
        if index == 0:
            assert bool(restarted.valid[1])
    left.close()
    right.close()


def test_successor_follows_the_equation_of_motion(case: Case) -> None:
    """Pendulum's next state computed by hand, also where the episode ends; proves the action scale, too."""
    if case.motion != "pendulum":
        pytest.skip("motion not known in closed form")
    came = rollout(case)
    worst = 0.0
    for before, action, step in zip(came[:-1], actions(case.config, 40), came[1:], strict=True):
        for row in range(case.config.envs):
            if not step.valid[row]:
                continue
            cos, sin, speed = (float(x) for x in before.obs["obs"][row])
            torque = 2 * float(action[row, 0].clamp(-1, 1))
            speed = max(-8, min(8, speed + (15 * sin + 3 * torque) * 0.05))
            angle = math.atan2(sin, cos) + speed * 0.05
            expected = torch.tensor([math.cos(angle), math.sin(angle), speed])
            worst = max(worst, float((step.next_obs["obs"][row] - expected).abs().max()))
    assert worst < 1e-4


def test_send_and_recv_are_step(case: Case) -> None:
    one, two = case.config.make(6), case.config.make(6)
    one.reset(6), two.reset(6)
    for action in actions(case.config, 3):
        two.send(action)
        assert same(one.step(action), two.recv())
    one.close()
    two.close()


def test_resized(case: Case) -> None:
    assert case.config.with_envs(5).spec.envs == 5 and case.config.with_envs(5).id == case.config.id
