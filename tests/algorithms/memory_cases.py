"""Sequences made by hand, and an independent version of recurrent TD3 and SAC that steps row by row."""

import math

import torch

from troop.core.batch import Trajectory
from troop.core.env import Continuous, EnvSpec, Field

OBS, PRIVILEGED, ACTIONS, STEPS, STREAMS = 3, 2, 2, 8, 5
SPEC = EnvSpec(
    "test", {"obs": Field((OBS,)), "privileged": Field((PRIVILEGED,))}, Continuous(ACTIONS), 4, 100
)
SMALL = {
    "sequence_length": STEPS,
    "burn_in": 3,
    "overlap": 4,
    "embedding": 5,
    "core_size": 6,
    "actor_hidden": (7,),
    "critic_hidden": (9,),
    "actor_init": 0.5,
    "critic_lr": 1e-2,
    "actor_lr": 1e-2,
    "tau": 0.1,
}


def sequences(policy, seed=0):
    """Return sequences with padding, episode starts, a termination, and time limits of both reset modes.

    Stream 0 is within an episode. Stream 1 starts after three rows of padding. Stream 2 terminates after row
    5; its later rows are padding. Stream 3 is cut off by a time limit at row 4 and reset within that step, so
    that its successor is a final observation. Stream 4 is cut off at row 5: its successor is the next entry,
    and row 6 is the reset.
    """
    random = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=random)

    shape = (STEPS, STREAMS)
    valid, ended = torch.ones(shape, dtype=torch.bool), torch.zeros(shape, dtype=torch.bool)
    started = torch.zeros(STEPS + 1, STREAMS, dtype=torch.bool)
    discount = torch.full(shape, 0.9)
    valid[:3, 1], started[3, 1] = False, True
    ended[5, 2], discount[5, 2], valid[6:, 2] = True, 0.0, False
    ended[4, 3], started[5, 3] = True, True
    ended[5, 4], valid[6, 4], started[7, 4] = True, False, True
    state = policy.initial_state(STREAMS)
    return Trajectory(
        obs={"obs": draw(STEPS + 1, STREAMS, OBS), "privileged": draw(STEPS + 1, STREAMS, PRIVILEGED)},
        action=draw(*shape, ACTIONS).clamp(-1, 1),
        reward=draw(*shape) * valid,
        discount=discount * valid,
        ended=ended,
        valid=valid,
        started=started,
        final_obs={"obs": draw(1, OBS), "privileged": draw(1, PRIVILEGED)},
        final_index=torch.tensor([4 * STREAMS + 3]),
        state={name: {"h": draw(*part["h"].shape)} for name, part in state.items()},
        weight=torch.rand(STREAMS, generator=random) + 0.5,
        index=torch.arange(STREAMS),
    )


def copies(module):
    """Return detached copies of a module's parameters by name."""
    return {name: x.detach().clone().requires_grad_() for name, x in module.named_parameters()}


def cell(weights, x, h):
    """Return the next state of the GRU after the embedding, and the embedding, of one row."""
    e = torch.relu(weights["memory.embed.weight"] @ x + weights["memory.embed.bias"])
    names = ("weight_x", "weight_h", "bias", "bias_h")
    w_x, w_h, bias, bias_h = (weights[f"memory.core.{name}"] for name in names)
    zeros = torch.zeros(2 * len(h))
    bias_hh = torch.cat((zeros, bias_h))
    h = torch.gru_cell(e[None], h[None], w_x, w_h, bias, bias_hh)[0]
    return h, e


def features(weights, batch, name, cfg):
    """Return {(t, b): features} of the steps after the burn-in, and of their successors.

    `name` is "actor" or "critic": that of the stored state; critics also read the privileged observation.
    """
    now, after = {}, {}
    finals = {int(i): row for row, i in enumerate(batch.final_index)}

    def features_of(h, e, obs, private):
        parts = [h, e]
        if cfg.input_shortcut:
            parts.append(obs)
        if name == "critic":
            parts.append(private)
        return torch.cat(parts)

    for b in range(STREAMS):
        h = batch.state[name]["h"][b]
        for t in range(STEPS + 1):
            if batch.started[t, b]:
                h = torch.zeros_like(h)
            before, obs = h, batch.obs["obs"][t, b]
            h, e = cell(weights, obs, before)
            h = h.detach() if t < cfg.burn_in else h
            row = features_of(h, e, obs, batch.obs["privileged"][t, b])
            if t < STEPS:
                now[t, b] = row
            if t and (t - 1) * STREAMS + b not in finals:
                after[t - 1, b] = row
            if t < STEPS and t * STREAMS + b in finals:
                at = finals[t * STREAMS + b]
                final_obs, final_private = (batch.final_obs[key][at] for key in ("obs", "privileged"))
                final_h, final_e = cell(weights, final_obs, h)
                after[t, b] = features_of(final_h, final_e, final_obs, final_private)
    return now, after


def head(weights, x, prefix, critic=None):
    """Return the outputs of a network with one hidden layer of ReLUs; `critic` selects one of an ensemble."""
    layers = [weights[f"{prefix}.layers.{i}"] for i in range(4)]
    w1, b1, w2, b2 = layers if critic is None else (x[critic] for x in layers)
    return w2 @ torch.relu(w1 @ x + b1) + b2


def steps_of(batch, burn_in):
    """Return (t, b) of the rows that are learned from, in the order in which noise is drawn, and all rows."""
    every = [(t, b) for t in range(burn_in, STEPS) for b in range(STREAMS)]
    return [(t, b) for t, b in every if batch.valid[t, b]], every


def n_step_target(batch, values, t, b, n):
    """Return the discounted sum of up to n rewards of one episode and the value after them."""
    total, factor = 0.0, 1.0
    for k in range(n):
        total += factor * float(batch.reward[t + k, b])
        factor *= float(batch.discount[t + k, b])
        last = t + k == STEPS - 1 or batch.ended[t + k, b] or not batch.valid[t + k + 1, b]
        if last or k == n - 1:
            return total + factor * values[t + k, b]
    raise AssertionError


def critic_loss(critic, targets, batch, cfg):
    """Return the loss and the priority of each sequence."""
    now, _ = features(critic, batch, "critic", cfg)
    steps, _ = steps_of(batch, cfg.burn_in)
    loss, errors = 0.0, {}
    for t, b in steps:
        x = torch.cat((now[t, b], batch.action[t, b]))
        both = [head(critic, x, "head.nets", i)[0] - targets[t, b] for i in (0, 1)]
        loss = loss + batch.weight[b] * sum(error.square() for error in both)
        errors.setdefault(b, []).append(max(abs(float(error)) for error in both))
    own = [errors[b] for b in range(STREAMS)]
    priority = torch.tensor([0.9 * max(x) + 0.1 * sum(x) / len(x) for x in own])
    return loss / len(steps), priority


def gaussian(actor, x, noise, low=-5.0, high=2.0):
    """Return the sampled action and its log-density."""
    mean, unbounded = head(actor, x, "head.net").chunk(2)
    log_std = low + 0.5 * (high - low) * (unbounded.tanh() + 1)
    action = torch.tanh(mean + log_std.exp() * noise)
    density = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
    return action, (density - torch.log(1 - action.square() + 1e-12)).sum()
