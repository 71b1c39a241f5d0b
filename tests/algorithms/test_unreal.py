"""UNREAL: a whole update against an independent version, and each auxiliary task by hand."""

import copy
import dataclasses

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from troop.algorithms import ImpalaConfig, PPOConfig, UnrealConfig
from troop.algorithms.actor_critic_policy import evaluate_trajectory
from troop.algorithms.trajectory_replay import TrajectoryReplay, reward_candidates
from troop.algorithms.unreal import Unroll
from troop.core.batch import Trajectory
from troop.core.env import Continuous, Discrete, EnvSpec, Field
from troop.functional.pixel_control import cell_grid, pixel_change
from troop.nets.auxiliary_heads import PixelControlHead

LAST = {"last_action": Field((3,)), "last_reward": Field((1,))}
IMAGES = EnvSpec("images", {"obs": Field((2, 9, 8), torch.uint8), **LAST}, Discrete(3), 4)
VECTORS = EnvSpec("vectors", {"obs": Field((5,)), **LAST}, Discrete(3), 4)
SMALL = {"unroll_length": 8, "replay_length": 24, "core_size": 6, "torso_features": 8, "hidden": (8, 8)}


def trajectory(spec, steps=8, streams=4, seed=0, core_size=6):
    """Return random rows with a termination, a time limit, an env fault and a reset row."""
    generator = torch.Generator().manual_seed(seed)

    def draw(field, *shape):
        if field.dtype == torch.uint8:
            return torch.randint(0, 256, (*shape, *field.shape), dtype=torch.uint8, generator=generator)
        return torch.randn(*shape, *field.shape, generator=generator)

    ended = torch.zeros(steps, streams, dtype=torch.bool)
    started, valid, discount = torch.zeros(steps + 1, streams, dtype=torch.bool), ~ended, ended + 0.99
    ended[2, 0], discount[2, 0], started[3, 0] = True, 0.0, True  # terminated, reset within the step
    ended[4, 1], started[5, 1] = True, True  # time limit, reset within the step
    valid[3, 2], discount[3, 2], started[4, 2] = False, 0.0, True  # an env fault
    ended[1, 3], discount[1, 3], valid[2, 3], discount[2, 3] = True, 0.0, False, 0.0  # a row that only resets
    started[3, 3] = True
    reward = torch.randn(steps, streams, generator=generator) * (torch.rand(steps, streams) < 0.5)
    return Trajectory(
        {name: draw(field, steps + 1, streams) for name, field in spec.obs.items()},
        torch.randint(0, 3, (steps, streams), generator=generator),
        torch.where(valid, reward, 0.0),
        discount,
        ended,
        valid,
        started,
        {name: draw(field, 1) for name, field in spec.obs.items()},
        torch.tensor([4 * streams + 1]),
        {"core": {name: torch.randn(streams, core_size, generator=generator) for name in ("h", "c")}},
        {name: torch.zeros(steps, streams) for name in ("episode_return", "version", "log_prob")},
    )


def acted_by(learner, batch):
    """Return the batch with the log-probabilities of the learner's policy: no lag."""
    with torch.no_grad():
        outputs, _, _ = evaluate_trajectory(learner.policy, batch)
    log_prob = learner.policy.distribution.log_prob(outputs, batch.action.flatten(0, 1))
    batch.extras["log_prob"] = log_prob.view_as(batch.reward)
    return batch


def prepared(spec, seed=0, **settings):
    """Return a learner whose replay has room for one more trajectory."""
    torch.manual_seed(seed)
    learner = UnrealConfig(**SMALL | settings).algorithm(spec)
    for seed in (1, 2):
        learner.replay.add(trajectory(spec, seed=seed))
    return learner


def plain_unroll(p, spec, obs, state, started):
    """Return features of T + 1 observations of one stream, one at a time, and the states after each."""
    features, states = [], []
    for t in range(len(started)):
        if "obs" in spec.images:
            image = obs["obs"][t : t + 1] / 255
            x = F.relu(
                F.conv2d(image, p["net.encoder.torsos.0.0.weight"], p["net.encoder.torsos.0.0.bias"], 1, 1)
            )
            x = F.relu(
                F.conv2d(x, p["net.encoder.torsos.0.2.weight"], p["net.encoder.torsos.0.2.bias"], 1, 1)
            ).flatten(1)
        else:
            x = obs["obs"][t : t + 1]
        x = torch.cat((x, obs["last_action"][t : t + 1], obs["last_reward"][t : t + 1]), 1)
        x = F.linear(x, p["net.shared_layer.weight"], p["net.shared_layer.bias"])
        x = F.relu(x) if "obs" in spec.images else torch.tanh(x)
        h, c = ((1 - float(started[t])) * part for part in state)
        gates = x @ p["net.core.weight_x"].t() + h @ p["net.core.weight_h"].t() + p["net.core.bias"]
        i, f, g, o = gates.chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        state = (torch.sigmoid(o) * torch.tanh(c), c)
        features.append(state[0])
        states.append(state)
    return features, states


def head(p, name, x):
    layers = [value for key, value in p.items() if key.startswith(f"net.{name}.layers")]
    for weight, bias in zip(layers[:-2:2], layers[1:-2:2], strict=True):
        x = torch.tanh(x @ weight.t() + bias)
    return x @ layers[-2].t() + layers[-1]


def plain_q(p, x, cells):
    side = ((cells[0] - p["pixel_control.value.weight"].shape[2]) // 2 + 1,
            (cells[1] - p["pixel_control.value.weight"].shape[3]) // 2 + 1)  # fmt: skip
    x = F.relu(F.linear(x, p["pixel_control.layer.weight"], p["pixel_control.layer.bias"]))
    x = x.view(1, 32, *side)
    value, advantage = (
        F.conv_transpose2d(x, p[f"pixel_control.{n}.weight"], p[f"pixel_control.{n}.bias"], stride=2)
        for n in ("value", "advantage")
    )
    return (value + advantage - advantage.mean(1, keepdim=True))[0]


def by_stream(batch):
    """Yield each stream: its rows and its final observations by step."""
    streams = len(batch)
    for b in range(streams):
        finals = {
            int(index) // streams: {name: x[k] for name, x in batch.final_obs.items()}
            for k, index in enumerate(batch.final_index)
            if int(index) % streams == b
        }
        yield b, {name: x[:, b].float() for name, x in batch.obs.items()}, finals


def plain_losses(learner, p, batch, reward, pixel_control=False):
    """Return sums over all steps: policy, value and entropy losses, and that of pixel control; by loops."""
    cfg, spec = learner.cfg, IMAGES if learner.image or "net.encoder.torsos.0.0.weight" in p else VECTORS
    cells = cell_grid(9, 8, cfg.pixel_cells)[0]
    policy_loss = value_loss = entropy = control = torch.zeros(())
    for b, obs, finals in by_stream(batch):
        state = tuple(batch.state["core"][name][b : b + 1] for name in ("h", "c"))
        features, states = plain_unroll(p, spec, obs, state, batch.started[:, b])
        following, following_q = None, None
        for t in range(batch.length - 1, -1, -1):
            if not batch.valid[t, b]:
                following = following_q = None
                continue
            successor, image = features[t + 1], obs["obs"][t + 1]
            known = not batch.started[t + 1, b]
            if t in finals:
                final = {name: x.float().unsqueeze(0) for name, x in finals[t].items()}
                (successor,), _ = plain_unroll(p, spec, final, states[t], torch.zeros(1))
                image, known = final["obs"][0], True
            cut = bool(batch.ended[t, b]) or following is None
            value = head(p, "critic", successor).detach() if cut else following
            following = reward[t, b] + batch.discount[t, b] * value
            logits = head(p, "actor", features[t]).log_softmax(-1)[0]
            error = following - head(p, "critic", features[t])
            policy_loss = policy_loss - logits[batch.action[t, b]] * error.detach().squeeze()
            value_loss = value_loss + 0.5 * error.square().squeeze()
            entropy = entropy - (logits.exp() * logits).sum()
            if pixel_control:
                change = torch.zeros(cells)
                for row in range(cells[0]):
                    for column in range(cells[1]):
                        pixels = (image - obs["obs"][t])[:, row, column] / 255
                        change[row, column] = pixels.abs().mean() * known
                best = plain_q(p, successor, cells).amax(0).detach() if cut else following_q
                alive = float(batch.discount[t, b] > 0)
                following_q = change + alive * cfg.pixel_control_gamma * best
                taken = plain_q(p, features[t], cells)[batch.action[t, b]]
                control = control + 0.5 * (following_q - taken).square().sum()
    return policy_loss, value_loss, entropy, control


def plain_reward_prediction(learner, p, sample):
    total = torch.zeros(())
    for row, label in enumerate(sample.label):
        if "net.encoder.torsos.0.0.weight" in p:
            x = sample.obs["obs"][row] / 255
            for layer in (0, 2):
                weight, bias = (p[f"net.encoder.torsos.0.{layer}.{name}"] for name in ("weight", "bias"))
                x = F.relu(F.conv2d(x, weight, bias, 1, 1))
        else:
            x = torch.cat([sample.obs[name][row] for name in ("obs", "last_action", "last_reward")], -1)
            x = torch.tanh(F.linear(x, p["net.shared_layer.weight"], p["net.shared_layer.bias"]))
        x = x.reshape(1, -1)
        x = F.relu(F.linear(x, p["reward_prediction.hidden.weight"], p["reward_prediction.hidden.bias"]))
        logits = F.linear(x, p["reward_prediction.logits.weight"], p["reward_prediction.logits.bias"])
        total = total - logits.log_softmax(-1)[0, label]
    return total


def plain_update(learner, batch):
    """One update in plain PyTorch, with the same draws from the replay, and RMSProp of TensorFlow."""
    cfg = learner.cfg
    p = dict([*learner.policy.named_parameters(), *learner.heads.named_parameters()])
    p = {name: x.detach().clone().requires_grad_() for name, x in p.items()}
    replay = copy.deepcopy(learner.replay)
    replay.add(batch)
    window, sample = replay.sample(), replay.sample_rewards(len(batch))
    policy_loss, value_loss, entropy, _ = plain_losses(learner, p, batch, batch.reward.clamp(-1, 1))
    _, value_replay, _, control = plain_losses(
        learner, p, window, window.reward.clamp(-1, 1), bool(learner.image)
    )
    loss = policy_loss + cfg.value_coef * value_loss - cfg.entropy_coef * entropy
    loss = loss + cfg.pixel_control_coef * control + cfg.value_replay_coef * value_replay
    loss = loss + cfg.reward_prediction_coef * plain_reward_prediction(learner, p, sample)
    if cfg.reduction == "mean":
        loss = loss / batch.valid.sum()
    loss.backward()
    nn.utils.clip_grad_norm_([x for x in p.values() if x.numel()], cfg.max_grad_norm)
    with torch.no_grad():
        for x in (x for x in p.values() if x.numel()):
            square = cfg.decay * torch.ones_like(x) + (1 - cfg.decay) * x.grad.square()
            x -= cfg.lr * x.grad / (square + cfg.eps).sqrt()
    return p


@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("spec", [IMAGES, VECTORS], ids=lambda spec: spec.id)
def test_a_whole_update_matches_an_independent_version(spec, reduction):
    learner = prepared(spec, reduction=reduction, lr=0.1)
    batch = acted_by(learner, trajectory(spec))
    before = {name: x.detach().clone() for name, x in learner.policy.named_parameters()}
    torch.manual_seed(3)
    expected = plain_update(learner, batch)
    torch.manual_seed(3)
    metrics = learner.update(batch).metrics
    assert float(metrics["loss/reward_prediction"]) > 0 and float(metrics["loss/value_replay"]) > 0
    assert ("obs" in spec.images) == (float(metrics["loss/pixel_control"]) > 0)
    for name, x in [*learner.policy.named_parameters(), *learner.heads.named_parameters()]:
        assert torch.allclose(x, expected[name], atol=1e-5), (name, float((x - expected[name]).abs().max()))
    assert any((x - before[name]).abs().max() > 1e-4 for name, x in learner.policy.named_parameters())


def test_without_auxiliary_tasks_the_gradient_is_that_of_a2c():
    off = {"pixel_control_coef": 0.0, "reward_prediction_coef": 0.0, "value_replay_coef": 0.0}
    shared = {"entropy_coef": 0.01, "core": "lstm", "core_size": 6, "hidden": (8, 8)}
    common = {"optimizer": "rmsprop_tf", "lr": 0.1, "eps": 1e-3, "max_grad_norm": 40.0}
    unreal = UnrealConfig(
        **shared, **common, **off, unroll_length=8, reduction="mean", clip_rewards=False
    ).algorithm(VECTORS)
    plain = {"epochs": 1, "minibatches": 1, "clip": 0.0, "gae_lambda": 1.0, "normalize_advantages": "none"}
    unscaled = {"normalize_rewards": False, "normalize_observations": False}
    a2c = PPOConfig(**shared, **common, **plain, **unscaled, rollout_length=8).algorithm(VECTORS)
    a2c.policy.load_state_dict(unreal.policy.state_dict())
    batch = acted_by(unreal, trajectory(VECTORS))
    assert unreal.replay is None and not len(unreal.heads)
    unreal.update(batch)
    a2c.update(batch)
    for one, two in zip(unreal.policy.parameters(), a2c.policy.parameters(), strict=True):
        assert torch.allclose(one, two, atol=1e-6)


def test_without_auxiliary_tasks_the_gradient_on_lagged_data_is_that_of_impala():
    off = {"pixel_control_coef": 0.0, "reward_prediction_coef": 0.0, "value_replay_coef": 0.0}
    shared = {"core": "lstm", "core_size": 6, "hidden": (8, 8), "lr": 0.1, "eps": 1e-3, "unroll_length": 8}
    unreal = UnrealConfig(**shared, **off, entropy_coef=0.01, clip_rewards=False).algorithm(VECTORS)
    impala = ImpalaConfig(**shared, entropy_cost=0.01).algorithm(VECTORS)
    impala.policy.load_state_dict(unreal.policy.state_dict())
    batch, before = trajectory(VECTORS), copy.deepcopy(unreal.policy.state_dict())
    batch.extras["log_prob"] = torch.full((8, 4), -1.1) - torch.rand(8, 4)
    unreal.update(batch)
    impala.update(batch)
    for name, x in unreal.policy.state_dict().items():
        assert torch.allclose(x, impala.policy.state_dict()[name], atol=1e-6)
    assert any(not torch.equal(x, before[name]) for name, x in unreal.policy.state_dict().items())


@pytest.mark.parametrize(
    ("height", "width", "cells", "expected"),
    [(84, 84, 20, ((20, 20), (4, 4))), (10, 5, 20, ((10, 5), (1, 1))), (64, 96, 20, ((20, 20), (3, 4)))],
)
def test_grid_of_the_paper_and_of_small_images(height, width, cells, expected):
    assert cell_grid(height, width, cells) == expected
    q = PixelControlHead(7, 3, expected[0])(torch.zeros(2, 7))
    assert q.shape == (2, 3, *expected[0])
    if cells == 20 and height == 84:
        assert PixelControlHead(7, 3, (20, 20)).map == (9, 9)


def test_changed_pixel_is_the_mean_of_its_cell_and_the_border_does_not_count():
    image = torch.zeros(2, 1, 84, 84)
    after = image.clone()
    after[0, 0, 2 + 5, 2 + 4 * 7 + 1] = -0.4  # cell (1, 7) of the central 80x80 pixels
    after[1, 0, 0, 0] = after[1, 0, 83, 83] = 1.0  # outside of it
    change = pixel_change(image, after, 20)
    assert change.shape == (2, 20, 20) and float(change[1].sum()) == 0
    assert change[0].nonzero().tolist() == [[1, 7]] and float(change[0, 1, 7]) == pytest.approx(0.4 / 16)
    colour = torch.zeros(1, 2, 84, 84)
    assert float(pixel_change(colour, colour + torch.tensor([0.2, 0.6]).view(2, 1, 1), 20)[0, 3, 3]) == (
        pytest.approx(0.4)
    )


def test_pixel_control_returns_by_hand():
    """Frames of one pixel that grows by 0.1, 0.2, ... per step; best values 1, 2, ...; gamma 0.5."""
    spec = EnvSpec("pixel", {"obs": Field((1, 3, 3))}, Discrete(2), 2)
    learner = UnrealConfig(pixel_control_gamma=0.5, core_size=4, unroll_length=3).algorithm(spec)
    frames = torch.tensor([0.0, 0.1, 0.3, 0.6]).view(4, 1, 1, 1, 1).expand(4, 2, 1, 3, 3)
    flags = torch.zeros(3, 2, dtype=torch.bool)
    ended, started, discount = flags.clone(), torch.zeros(4, 2, dtype=torch.bool), torch.full((3, 2), 0.99)
    ended[1, 1], discount[1, 1], started[2, 1] = True, 0.0, True  # terminated; the last frame is not recorded
    obs = {"obs": frames}
    fields = {"final_obs": {"obs": frames[0, :0]}, "final_index": torch.zeros(0, dtype=torch.int64)}
    batch = Trajectory(obs, flags.long(), torch.zeros(3, 2), discount, ended, ~flags, started, **fields)
    best = torch.arange(1.0, 5.0).view(4, 1).expand(4, 18)
    returns = learner.pixel_control_returns(batch, best, torch.zeros(0, 3, 3)).view(3, 2, 9)
    first = [0.1 + 0.5 * (0.2 + 0.5 * (0.3 + 0.5 * 4)), 0.2 + 0.5 * (0.3 + 0.5 * 4), 0.3 + 0.5 * 4]
    second = [0.1, 0.0, 0.3 + 0.5 * 4]
    expected = torch.tensor([first, second]).t().unsqueeze(-1).expand(3, 2, 9)
    assert torch.allclose(returns, expected)
    limited = dataclasses.replace(  # at a time limit the frame is recorded, and its best value counts
        batch, discount=torch.full((3, 2), 0.99),
        final_obs={"obs": torch.full((1, 1, 3, 3), 0.9)}, final_index=torch.tensor([1 * 2 + 1]),
    )  # fmt: skip
    returns = learner.pixel_control_returns(limited, best, torch.full((1, 3, 3), 10.0)).view(3, 2, 9)
    assert torch.allclose(returns[:, 1, 0], torch.tensor([0.1 + 0.5 * (0.8 + 5.0), 0.8 + 5.0, 2.3]))


def test_only_the_newest_of_stacked_frames_counts():
    spec = EnvSpec("stack", {"obs": Field((4, 9, 8), torch.uint8, stack=4)}, Discrete(3), 4)
    learner = prepared(spec)
    batch, unroll = trajectory(spec), Unroll(torch.zeros(36, 6), torch.zeros(9, 4), torch.zeros(1, 6), None)
    loss = learner.pixel_control_loss(batch, unroll)
    batch.obs["obs"][:, :, :3] = 0
    batch.final_obs["obs"][:, :3] = 0
    assert float(learner.pixel_control_loss(batch, unroll)) == float(loss)
    batch.obs["obs"][:, :, 3] = 0
    assert float(learner.pixel_control_loss(batch, unroll)) != float(loss)


def test_rewards_are_predicted_from_three_observations_of_one_episode():
    batch = trajectory(VECTORS)
    expected = {"zero": [], "nonzero": []}
    for t in range(2, 8):
        for b in range(4):
            if batch.valid[t, b] and not batch.started[t - 1 : t + 1, b].any():
                expected["nonzero" if batch.reward[t, b] else "zero"].append(t * 4 + b)
    zero, nonzero = reward_candidates(batch)
    assert zero.tolist() == expected["zero"] and nonzero.tolist() == expected["nonzero"]
    assert 0 < len(nonzero) < 24 - 4 and len(reward_candidates(trajectory(VECTORS, steps=6)).zero)


def test_half_of_the_predicted_rewards_are_not_zero():
    """One step of 54 candidates has a reward: skewed sampling draws it every second time."""
    replay, spec = TrajectoryReplay(3), EnvSpec("count", {"obs": Field((1,))}, Discrete(3), 4)
    for seed in range(3):
        batch = trajectory(spec, seed=seed)
        batch.reward.zero_()
        batch.obs["obs"].copy_(torch.arange(9.0).view(9, 1, 1) + 100 * torch.arange(4.0).view(4, 1))
        batch.reward[6, 2] = -2.0 if seed == 1 else 0.0
        replay.add(batch)
    sample = replay.sample_rewards(4000)
    assert sample.obs["obs"].shape == (4000, 3, 1) and set(sample.label.tolist()) == {0, 2}
    assert float((sample.label == 2).float().mean()) == pytest.approx(0.5, abs=0.03)
    frames = sample.obs["obs"].squeeze(-1)
    assert (frames.diff() == 1).all() and (frames[sample.label == 2] == torch.tensor([204.0, 205, 206])).all()
    counts = torch.unique(frames[sample.label == 0], dim=0, return_counts=True)[1].float()
    assert counts.min() > 0.5 * counts.mean()  # the others are drawn uniformly


def test_one_kind_of_reward_is_enough_and_none_is_not():
    replay = TrajectoryReplay(1)
    assert replay.sample_rewards(3) is None
    batch = trajectory(VECTORS)
    replay.add(dataclasses.replace(batch, reward=torch.zeros(8, 4)))
    assert replay.sample_rewards(5).label.tolist() == [0] * 5
    replay.add(dataclasses.replace(batch, reward=torch.ones(8, 4)))
    assert len(replay.trajectories) == 1 and replay.sample_rewards(5).label.tolist() == [1] * 5


@pytest.mark.parametrize(
    ("task", "changed"),
    [
        ("pixel_control", ("torsos", "shared_layer", "core", "pixel_control")),
        ("reward_prediction", ("torsos", "reward_prediction")),
        ("value_replay", ("torsos", "shared_layer", "core", "critic")),
    ],
)
def test_each_task_changes_its_own_layers_and_never_the_policy_head(task, changed):
    learner = prepared(IMAGES)
    batch = trajectory(IMAGES)
    replay = learner.sample_replay(batch)
    index = ("pixel_control", "reward_prediction", "value_replay").index(task)
    named = [*learner.policy.named_parameters(), *learner.heads.named_parameters()]
    grads = torch.autograd.grad(
        learner.auxiliary_losses(replay)[index], [x for _, x in named], allow_unused=True
    )
    moved = {name for (name, _), grad in zip(named, grads, strict=True) if grad is not None and grad.any()}
    assert all(any(part in name for part in changed) for name in moved)
    assert all(any(part in name for name in moved) for part in changed)
    assert not any("actor" in name for name in moved)


def test_auxiliary_tasks_use_the_rewards_that_the_base_learns_from():
    learner = UnrealConfig(**SMALL, normalize_rewards=True).algorithm(VECTORS)
    batch = trajectory(VECTORS)
    batch.extras["episode_return"] = 5 * torch.randn(8, 4)
    learner.update(batch)
    scale = float(learner.return_scale.scale)
    count = float(learner.return_scale.count)
    replay = learner.sample_replay(batch)
    expected = (replay.trajectory.reward * scale).clamp(-1, 1)
    assert torch.allclose(replay.reward, expected) and scale < 0.5
    assert float(learner.return_scale.count) == count  # replayed returns are not counted again


def test_replay_copies_batches_and_is_part_of_the_state():
    learner, batch = prepared(IMAGES), trajectory(IMAGES)
    learner.update(batch)
    stored = learner.replay.trajectories[-1]
    assert torch.equal(stored.obs["obs"], batch.obs["obs"])
    batch.obs["obs"].zero_()
    assert stored.obs["obs"].any()
    other = UnrealConfig(**SMALL).algorithm(IMAGES)
    other.load_state_dict(copy.deepcopy(learner.state_dict()))
    for one in (learner, other):
        torch.manual_seed(5)
        for seed in (7, 8):
            one.update(trajectory(IMAGES, seed=seed))
    parameters = ([*each.policy.parameters(), *each.heads.parameters()] for each in (learner, other))
    assert all(torch.equal(x, y) for x, y in zip(*parameters, strict=True))


def test_envs_without_images_or_discrete_actions_are_named_in_one_sentence():
    config = UnrealConfig()
    assert config.notes(IMAGES) == []
    (note,) = config.notes(VECTORS)
    assert "pixel control does not apply to vectors: it has no images" in note and note.count(".") == 0
    (note,) = config.notes(dataclasses.replace(IMAGES, action=Continuous(2)))
    assert "no discrete actions" in note
    assert UnrealConfig(pixel_control_coef=0.0).notes(VECTORS) == []
    reason = UnrealConfig(core="none").unsupported_reason(VECTORS)
    assert reason is not None and "--core lstm" in reason
    assert UnrealConfig(core="none").unsupported_reason(IMAGES) is None
