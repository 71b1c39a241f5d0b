"""ActorCriticPolicy: the stochastic policy and the state values of PPO, A2C and IMPALA."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from troop.core.algorithm import Policy, PolicyOutput
from troop.core.batch import State, Trajectory, select_state
from troop.core.env import ACTION_MASK, PRIVILEGED, Continuous, EnvSpec, Obs
from troop.functional.distributions import Categorical, DiagonalGaussian, Distribution
from troop.nets.actor_critic import ActorCritic, ActorCriticConfig
from troop.nets.encoder import VECTOR, Inputs
from troop.nets.normalizer import Normalizer


class ActorCriticPolicy(Policy):
    """Actor and critic with their observation normalizer, if any."""

    def __init__(
        self,
        spec: EnvSpec,
        network: ActorCriticConfig,
        normalize_observations: bool,
        log_std_init: float | None = 0.0,
        record_outputs: bool = False,
    ) -> None:
        super().__init__()
        self.record_outputs = record_outputs
        action = spec.action
        if isinstance(action, Continuous):
            self.distribution: Distribution = DiagonalGaussian(action.size)
        else:
            self.distribution = Categorical(action.factors or (action.choices,))
        shapes, privileged = spec.shapes(privileged=False), spec.width(PRIVILEGED)
        shapes.pop(ACTION_MASK, None)
        self.net = ActorCritic(shapes, privileged, self.distribution.outputs, network)
        self.columns = self.net.encoder.columns
        width = self.columns + privileged
        self.normalizer = Normalizer(width, eps=1e-4) if normalize_observations and width else None
        self.log_std: nn.Parameter | None = None
        if isinstance(action, Continuous):
            initial = -0.25 * math.log(action.size) if log_std_init is None else log_std_init
            self.log_std = nn.Parameter(torch.full((action.size,), initial))

    def initial_state(self, rows: int) -> State:
        """Return the state of the recurrent core; None without one."""
        return None if self.net.core is None else {"core": {**self.net.core.initial_state(rows)}}

    def vector(self, obs: Obs) -> Tensor | None:
        """Return the columns of all vectors, the privileged ones last; None if there are only images."""
        parts = [self.net.encoder.vector(obs)] if self.columns else []
        parts += [obs[PRIVILEGED]] if PRIVILEGED in obs else []
        return torch.cat(parts, -1) if len(parts) > 1 else next(iter(parts), None)

    def inputs(self, obs: Obs) -> tuple[Inputs, Tensor | None]:
        """Return the inputs of the encoder and the privileged columns, normalized if enabled."""
        inputs: dict[str, Tensor] = {name: obs[name] for name in self.net.encoder.images}
        x = self.vector(obs)
        if x is None:
            return inputs, None
        if self.normalizer is not None:
            x = self.normalizer(x).clamp(-10, 10)
        if self.columns:
            inputs[VECTOR] = x[..., : self.columns]
        return inputs, x[..., self.columns :] if PRIVILEGED in obs else None

    def distribution_outputs(self, features: Tensor, obs: Obs) -> Tensor:
        """Return the outputs of the action distribution [N, P] for features of the network."""
        outputs = self.net.policy_outputs(features)
        if self.log_std is not None:
            return torch.cat((outputs, self.log_std.expand_as(outputs)), -1)
        if ACTION_MASK in obs and isinstance(self.distribution, Categorical):
            return self.distribution.mask_logits(outputs, obs[ACTION_MASK] > 0.5)
        return outputs

    def features(self, x: Inputs, state: State, started: Tensor | None) -> tuple[Tensor, State]:
        """Return the features [N, F] of which both heads are functions, and the states after each row."""
        features = self.net.encode(x)
        if self.net.core is None:
            return features, None
        assert state is not None and started is not None
        features, states = self.net.unroll(features, state["core"], started)
        return features, {"core": {**states}}

    def forward(
        self, obs: Obs, state: State = None, started: Tensor | None = None
    ) -> tuple[Tensor, Tensor, State]:
        """Return the outputs of the action distribution [N, P], values [N] and the states after each row.

        With a core the rows are T x B steps, `state` [B, ...] precedes them and `started` is [T, B].
        """
        x, privileged = self.inputs(obs)
        features, states = self.features(x, state, started)
        return self.distribution_outputs(features, obs), self.net.values(features, privileged), states

    @torch.no_grad()
    def act(self, obs: Obs, state: State, explore: Tensor) -> PolicyOutput:
        """Return sampled actions, the most probable ones where `explore` [B] is 0, and their log_prob.

        With `record_outputs` also the outputs of the action distribution [B, P].

        Continuous actions may lie outside of [-1, 1]; the env clips them.
        """
        x, _ = self.inputs(obs)
        batch = next(iter(obs.values())).shape[0]
        started = torch.zeros(1, batch, dtype=torch.bool, device=explore.device)
        features, state = self.features(x, state, started)
        outputs, exploring = self.distribution_outputs(features, obs), explore > 0
        action = self.distribution.sample(outputs) if exploring.any() else self.distribution.mode(outputs)
        if not exploring.all() and exploring.any():
            rows = exploring.view(-1, *(1,) * (action.dim() - 1))
            action = torch.where(rows, action, self.distribution.mode(outputs))
        extras = {"log_prob": self.distribution.log_prob(outputs, action)}
        return PolicyOutput(action, state, extras | ({"outputs": outputs} if self.record_outputs else {}))


def evaluate_trajectory(policy: ActorCriticPolicy, batch: Trajectory) -> tuple[Tensor, Tensor, Tensor]:
    """Return outputs [T x B, P], values [T + 1, B] and the values of the final observations [K]."""
    steps, streams = batch.length, len(batch)
    obs = {name: x.flatten(0, 1) for name, x in batch.obs.items()}
    outputs, values, states = policy(obs, batch.state, batch.started)
    final_values = values[:0]
    if len(batch.final_index):
        state = select_state(states, batch.final_index)  # after the step that the time limit cut off
        started = torch.zeros(1, len(batch.final_index), dtype=torch.bool, device=values.device)
        _, final_values, _ = policy(batch.final_obs, state, started)
    return outputs[: steps * streams], values.view(steps + 1, streams), final_values
