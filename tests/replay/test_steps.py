"""StepRecorder and replay against the transitions that the env made."""

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


def play(config, n, steps, resets=()):
    """Return the replay and, per env, a list of episodes of (obs, action, reward, terminated, next_obs)."""
    env, recorder = config.make(3), StepRecorder(config.envs)
    replay = UniformReplay(config.spec, NStep(n, GAMMA), ReplaySize(2 * steps, 1), seed=0)
    step, episodes = env.reset(3), [[[]] for _ in range(config.envs)]
    for i in range(steps):
        obs, action = step.obs, policy(step.obs)
        recorder.on_action(obs, PolicyOutput(action))
        step = env.step(action)
        rollouts = recorder.on_step(step)
        for e in range(config.envs):
            if step.valid[e]:
                successor = step.next_obs["obs"][e].tolist()
                terminated = bool(step.terminated[e])
                episodes[e][-1].append(
                    (obs["obs"][e].tolist(), action[e].tolist(), step.reward[e].item(), terminated, successor)
                )
            if not step.valid[e] or step.terminated[e] or step.truncated[e]:
                episodes[e].append([])
        if i in resets:
            rollouts += recorder.flush(step.obs)
            step = env.reset(100 + i)
            for of_env in episodes:
                of_env.append([])
        for rollout in rollouts:
            replay.add(rollout)
    env.close()
    return replay, episodes


def expected(episodes, n):
    """Return (obs, action, next_obs) -> [(reward, discount)] of all n-step transitions.

    Values are lists because a point at the wall can return to the same position after other numbers of steps.
    """
    transitions = defaultdict(list)
    for window in (ep[i : i + n] for of_env in episodes for ep in of_env for i in range(len(ep))):
        total = sum(GAMMA**i * row[2] for i, row in enumerate(window))
        discount = 0.0 if window[-1][3] else GAMMA ** len(window)
        successor = window[-1][4] if discount else ()  # the successor of a termination is not used
        transitions[*window[0][0], *window[0][1], *successor].append((total, discount))
    return transitions


def sampled(replay, rows=4000):
    """Return the same mapping of sampled transitions."""
    batch = replay.sample(rows)
    columns = (batch.obs["obs"], batch.action, batch.reward, batch.discount, batch.next_obs["obs"])
    rows = zip(*(x.tolist() for x in columns), strict=True)
    return {(*obs, *action, *(after if d else ())): (r, d) for obs, action, r, d, after in rows}


def check(replay, episodes, n):
    """All sampled transitions were made, and all that were made with complete windows are sampled."""
    made, drawn = expected(episodes, n), sampled(replay)
    for key, transition in drawn.items():
        assert any(transition == pytest.approx(one, abs=1e-5) for one in made.get(key, []))
    assert set(expected([of_env[:-3] for of_env in episodes], n)) <= set(drawn)


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("name", ["Clock", "Countdown", "PointMass", "Chain"])
@pytest.mark.reliability("N5")
def test_replay_contains_the_transitions_made_with_either_autoreset_mode(name, n):
    rows = []
    for style in ("same_step", "next_step"):
        replay, episodes = play(Toy(name, 3, limit=4, autoreset=style), n, 60)
        check(replay, episodes, n)
        rows.append([[row for episode in of_env for row in episode] for of_env in episodes])
    for same_step, next_step in zip(*rows, strict=True):  # next_step uses steps for resets: it has fewer rows
        assert len(next_step) > 30 and next_step == same_step[: len(next_step)]


@pytest.mark.parametrize("style", ["same_step", "next_step"])
@pytest.mark.parametrize("n", [1, 3])
def test_forced_reset_is_not_a_transition(style, n):
    check(*play(Toy("PointMass", 3, limit=9, autoreset=style), n, 40, resets=(4, 8, 22, 31)), n)


@pytest.mark.parametrize("style", ["same_step", "next_step"])
@pytest.mark.reliability("N1")
def test_rows_with_env_faults_are_never_sampled(style):
    faults = ((3, 0, "nan_obs"), (4, 1, "inf_reward"), (5, 0, "nan_reward"), (7, 2, "inf_obs"))
    replay, episodes = play(Toy("Faulty", 3, limit=6, autoreset=style, faults=faults), 2, 40)
    check(replay, episodes, 2)
    batch = replay.sample(3000)
    for x in (batch.reward, batch.discount, batch.obs["obs"], batch.next_obs["obs"]):
        assert torch.isfinite(x).all()


def test_same_step_autoreset_adds_closing_rows_only_after_truncations():
    terminating, _ = play(Toy("Countdown", 2, limit=3), 1, 30)
    assert len(terminating) == 60
    truncating, _ = play(Toy("Clock", 2, limit=3), 1, 30)
    assert len(truncating) == 60 + 2 * 10


@pytest.mark.parametrize("n", [1, 3])
def test_replay_contains_the_transitions_of_envpool(n):
    pytest.importorskip("envpool")
    check(*play(EnvPool("Pendulum-v1", 3, 1, (("max_episode_steps", 7),)), n, 60, resets=(25,)), n)
