"""What recurrent TD3 and SAC share: the policy's memories, and learning from sequences of a replay."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Generic, NamedTuple, cast

import torch
from torch import Tensor

from troop.algorithms.optim import AverageActor, merge_batch
from troop.core.algorithm import Policy
from troop.core.batch import State, Trajectory
from troop.core.env import PRIVILEGED, Continuous, EnvSpec, Obs
from troop.core.peers import Peers
from troop.functional.repeated_noise import HeldNoise
from troop.functional.sequences import n_step_returns, sequence_priority
from troop.nets.critics import Critics
from troop.nets.encoder import ObservationEncoder
from troop.nets.memory import Actor, Memory, MemoryActor, MemoryCritics
from troop.nets.network_config import NetworkConfig
from troop.nets.normalizer import Normalizer
from troop.nets.recurrent import CoreState


class MemoryPolicy(Policy, Generic[Actor]):
    """Normalizer of observations, actor and critics, each of the two with a memory of its own.

    The policy holds the critics and advances both memories while acting, so that sequences are stored with
    the states of both. Memories read what the actor sees; critics also read the privileged observation of
    the current step. Rows that do not explore follow the averaged actor, if there is one: their actions and
    the states of their actor's memory are computed by its weights.
    """

    def __init__(
        self,
        spec: EnvSpec,
        make_memory: partial[Memory],
        make_actor: Callable[[int], Actor],
        critic: NetworkConfig,
        critics: int,
        noise_repeats: int,
        normalize_observations: bool,
        average_tau: float,
    ) -> None:
        super().__init__()
        assert isinstance(spec.action, Continuous)
        self.encoder = ObservationEncoder(spec.shapes())
        # One normalizer over all columns serves actor and critics: the actor's columns come first.
        self.normalizer = Normalizer(self.encoder.columns)
        self.normalize = normalize_observations
        privileged = spec.width(PRIVILEGED)
        inputs = self.encoder.columns - privileged
        memory = make_memory(inputs)
        self.actor: MemoryActor[Actor] = MemoryActor(memory, make_actor(memory.features))
        self.average_actor = AverageActor(self.actor, average_tau) if average_tau else None
        memory = make_memory(inputs, appended=privileged)
        heads = Critics(memory.features + spec.action.size, critic, 1, critics)
        self.critic = MemoryCritics(memory, heads)
        self.held_noise = HeldNoise(spec.action.size, noise_repeats, spec.episode_limit)

    def initial_state(self, rows: int) -> State:
        """Return the states of both memories and of held noise."""
        actor, critic = self.actor.memory.initial_state(rows), self.critic.memory.initial_state(rows)
        return {"actor": actor, "critic": critic} | (self.held_noise.initial_state(rows) or {})

    def inputs(self, obs: Obs, skip: tuple[str, ...] = ()) -> Tensor:
        """Return the normalized columns of all observations but those in `skip`; the actor's come first."""
        x = self.encoder.vector(obs, skip)
        return self.normalizer(x) if self.normalize else x

    @property
    def averaged(self) -> MemoryActor[Actor]:
        """The averaged actor; only with `average_tau`."""
        assert self.average_actor is not None
        return cast(MemoryActor[Actor], self.average_actor.actor)

    def advance(
        self, obs: Obs, state: State, exploring: Tensor
    ) -> tuple[Tensor, Tensor | None, dict[str, CoreState]]:
        """Return the features [B, F] of the actor and of the averaged one, and the next states of memories.

        There is one observation per row; `exploring` [B]. The second features are None if no row needs them.
        """
        assert state is not None
        x = self.inputs(obs, (PRIVILEGED,)).unsqueeze(0)
        features, actor = self.actor.memory(x, state["actor"])
        _, critic = self.critic.memory(x, state["critic"])
        memories = {"actor": _entry(actor, 0), "critic": _entry(critic, 0)}
        if self.average_actor is None or exploring.all():
            return features[0], None, memories
        averaged, states = self.averaged.memory(x, state["actor"])
        own = exploring.unsqueeze(-1)
        memories["actor"] = {name: torch.where(own, h[0], states[name][0]) for name, h in actor.items()}
        return features[0], averaged[0], memories


def merge_observations(policy: MemoryPolicy[Actor], batch: Trajectory, updates: int, peers: Peers) -> None:
    """Merge the observations of the steps into the normalizer's statistics; call once per update."""
    if policy.normalize and (weight := Normalizer.merge_weight(updates)):
        x = policy.encoder.vector(batch.obs)[:-1][batch.valid]
        if len(x):
            merge_batch(policy.normalizer, x, weight, peers)


class Sequences(NamedTuple):
    """Sequences as an update reads them; the steps after the burn-in are rows [N], N = (T - burn_in) * B."""

    batch: Trajectory
    x: Tensor  # [T + 1, B, columns]: normalized observations
    final_x: Tensor  # [K, columns]: those of `batch.final_obs`
    burn_in: int
    action: Tensor  # [N, A]
    reward: Tensor  # [N]
    discount: Tensor  # [N]
    valid: Tensor  # [N] float: 1 for steps, 0 for other rows
    weight: Tensor  # [N]: `valid` times the importance weight of the sequence

    @classmethod
    def of(cls, policy: MemoryPolicy[Actor], batch: Trajectory, burn_in: int) -> Sequences:
        """Return the sequences with observations as the policy normalizes them."""
        valid = batch.valid[burn_in:].float()
        weight = valid if batch.weight is None else valid * batch.weight
        return cls(
            batch,
            policy.inputs(batch.obs),
            policy.inputs(batch.final_obs),
            burn_in,
            batch.action[burn_in:].flatten(0, 1),
            batch.reward[burn_in:].flatten(),
            batch.discount[burn_in:].flatten(),
            valid.flatten(),
            weight.flatten(),
        )

    def mean(self, x: Tensor) -> Tensor:
        """Return the mean of x [.., N] over steps."""
        return (x * self.valid).sum(-1) / self.valid.sum().clamp_min(1.0)

    def weighted_mean(self, x: Tensor) -> Tensor:
        """Return the mean of x [.., N] over steps, each multiplied by the weight of its sequence."""
        return (x * self.weight).sum(-1) / self.valid.sum().clamp_min(1.0)

    def features(self, memory: Memory, name: str) -> tuple[Tensor, Tensor]:
        """Return the features [N, F] of steps and of their successors; `name` is that of the stored state.

        The memory starts from the stored state, which older weights computed, and reads the burn-in without
        a gradient to bring it up to date (R2D2). The successor of a step that a time limit cut off is its
        final observation, read with the state after the step.
        """
        batch, x, burn_in = self.batch, self.x, self.burn_in
        assert batch.state is not None
        state: CoreState = batch.state[name]
        if burn_in:
            with torch.no_grad():
                _, states = memory(x[:burn_in], state, batch.started[:burn_in])
            state = _entry(states, -1)
        features, states = memory(x[burn_in:], state, batch.started[burn_in:])
        successors = features[1:].flatten(0, 1)
        index = batch.final_index - burn_in * len(batch)
        kept = index >= 0
        if len(index) and bool(kept.any()):
            after = {key: h.flatten(0, 1)[index[kept]] for key, h in states.items()}
            final, _ = memory(self.final_x[kept].unsqueeze(0), after)
            successors = successors.index_copy(0, index[kept], final[0])
        return features[:-1].flatten(0, 1), successors

    def target(self, next_value: Tensor, n: int) -> Tensor:
        """Return n-step targets [N] for the values [N] of successors; fewer steps where a sequence ends."""
        reward, discount, value = (
            x.view(-1, len(self.batch)) for x in (self.reward, self.discount, next_value)
        )
        return n_step_returns(reward, discount, self.batch.ended[self.burn_in :], value, n).flatten()

    def priority(self, td_error: Tensor, eta: float) -> Tensor:
        """Return the priorities [B] of the sequences for the absolute TD errors [N] of their steps (R2D2)."""
        learned = self.batch.valid[self.burn_in :]
        return sequence_priority(td_error.view_as(learned), learned, eta)


def _entry(states: CoreState, time: int) -> CoreState:
    """Return the states [B, ...] at one time of [T, B, ...]."""
    return {name: x[time] for name, x in states.items()}
