"""The recorder against what really happened in the env."""

from collections import defaultdict

import pytest
import torch

from troop.core.algorithm import PolicyOutput
from troop.core.batch import NStep
from troop.envs import EnvPool, Toy
from troop.replay.recorders.steps import StepRecorder
from troop.replay.uniform import ReplaySize, UniformReplay

GAMMA = 0.9


def policy(obs):
    return torch.sin(obs["obs"].sum(-1, keepdim=True) * 7)


def live(config, n, steps, resets=()):
    """Play; (replay, the truth: per env a list of episodes of (obs, action, reward, ended, next_obs))."""
    env, recorder = config.make(3), StepRecorder(config.envs)
    replay = UniformReplay(config.spec, NStep(n, GAMMA), ReplaySize(2 * steps, 1), seed=0)
    now, truth = env.reset(3), [[[]] for _ in range(config.envs)]
    for i in range(steps):
        obs, action = now.obs, policy(now.obs)
        recorder.on_action(obs, PolicyOutput(action))
        now = env.step(action)
        pieces = recorder.on_step(now)
        for e in range(config.envs):
            if now.valid[e]:
                successor = now.next_obs["obs"][e].tolist()
                ended = bool(now.terminated[e])
                truth[e][-1].append(
                    (obs["obs"][e].tolist(), action[e].tolist(), now.reward[e].item(), ended, successor)
                )
            if not now.valid[e] or now.terminated[e] or now.truncated[e]:
                truth[e].append([])
        if i in resets:
            pieces += recorder.flush(now.obs)
            now = env.reset(100 + i)
            for episodes in truth:
                episodes.append([])
        for piece in pieces:
            replay.add(piece)
    env.close()
    return replay, truth


def expected(truth, n):
    """(obs, action, next_obs) -> [(reward, discount)] of all n-step transitions, by walking along.

    A list, as a point at the wall can come back to the same place with another number of steps.
    """
    found = defaultdict(list)
    for window in (ep[i : i + n] for episodes in truth for ep in episodes for i in range(len(ep))):
        total = sum(GAMMA**i * row[2] for i, row in enumerate(window))
        discount = 0.0 if window[-1][3] else GAMMA ** len(window)
        successor = window[-1][4] if discount else ()  # after the world's end nobody looks at it
        found[*window[0][0], *window[0][1], *successor].append((total, discount))
    return found


def sampled(replay, rows=4000):
    """The same of what is drawn."""
    batch = replay.sample(rows)
    columns = (batch.obs["obs"], batch.action, batch.reward, batch.discount, batch.next_obs["obs"])
    rows = zip(*(x.tolist() for x in columns), strict=True)
    return {(*obs, *action, *(after if d else ())): (r, d) for obs, action, r, d, after in rows}


def check(replay, truth, n):
    """All that is drawn happened, and all that happened is drawn but for windows not complete yet."""
    there_is, found = expected(truth, n), sampled(replay)
    for key, answer in found.items():
        assert any(answer == pytest.approx(one, abs=1e-5) for one in there_is.get(key, []))
    assert set(expected([episodes[:-3] for episodes in truth], n)) <= set(found)


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("name", ["Clock", "Countdown", "PointMass", "Chain"])
def test_the_replay_holds_what_happened_whichever_way_the_env_resets(name, n):
    seen = []
    for style in ("same_step", "next_step"):
        replay, truth = live(Toy(name, 3, limit=4, autoreset=style), n, 60)
        check(replay, truth, n)
        seen.append([[row for episode in episodes for row in episode] for episodes in truth])
    for same_step, next_step in zip(*seen, strict=True):  # which spends steps on resets and so sees less
        assert len(next_step) > 30 and next_step == same_step[: len(next_step)]


@pytest.mark.parametrize("style", ["same_step", "next_step"])
@pytest.mark.parametrize("n", [1, 3])
def test_a_forced_reset_is_no_transition(style, n):
    check(*live(Toy("PointMass", 3, limit=9, autoreset=style), n, 40, resets=(4, 8, 22, 31)), n)


@pytest.mark.parametrize("style", ["same_step", "next_step"])
def test_a_row_that_came_back_nan_never_reaches_the_replay(style):
    faults = ((3, 0, "nan_obs"), (4, 1, "inf_reward"), (5, 0, "nan_reward"), (7, 2, "inf_obs"))
    replay, truth = live(Toy("Faulty", 3, limit=6, autoreset=style, faults=faults), 2, 40)
    check(replay, truth, 2)
    batch = replay.sample(3000)
    for x in (batch.reward, batch.discount, batch.obs["obs"], batch.next_obs["obs"]):
        assert torch.isfinite(x).all()


def test_a_termination_in_the_same_step_needs_no_closing_row_and_a_truncation_one():
    terminating, _ = live(Toy("Countdown", 2, limit=3), 1, 30)
    assert len(terminating) == 60
    truncating, _ = live(Toy("Clock", 2, limit=3), 1, 30)
    assert len(truncating) == 60 + 2 * 10


@pytest.mark.parametrize("n", [1, 3])
def test_a_real_simulator(n):
    pytest.importorskip("envpool")
    check(*live(EnvPool("Pendulum-v1", 3, 1, (("max_episode_steps", 7),)), n, 60, resets=(25,)), n)
