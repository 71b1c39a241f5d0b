"""What acts, and what judges: the nets of an actor-critic."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from troop.algorithms.actor_critic_config import ActorCriticConfig
from troop.core.algorithm import Policy, State
from troop.core.env import OBS, PRIVILEGED, Continuous, EnvSpec, Obs
from troop.functional import categorical
from troop.nets.actors import DeterministicActor, GaussianActor
from troop.nets.critics import Critics
from troop.nets.normalizer import Normalizer


def critics(spec: EnvSpec, cfg: ActorCriticConfig) -> Critics:
    """The critics of an env: they see observation, privileged observation and action."""
    assert isinstance(spec.action, Continuous)
    inputs = spec.width(OBS) + spec.width(PRIVILEGED) + spec.action.size
    return Critics(inputs, cfg.shape(cfg.critic_hidden), cfg.atoms or 1, cfg.critics)


def observed(obs: Obs) -> Tensor:
    """All a critic may see, [B, obs + privileged]."""
    return torch.cat((obs[OBS], obs[PRIVILEGED]), -1) if PRIVILEGED in obs else obs[OBS]


class Value(nn.Module):
    """One number a row out of what critics say, [C, B, K]: what the policy climbs."""

    atoms: Tensor | None

    def __init__(self, cfg: ActorCriticConfig) -> None:
        super().__init__()
        atoms = torch.linspace(cfg.v_min, cfg.v_max, cfg.atoms) if cfg.atoms else None
        self.register_buffer("atoms", atoms, persistent=False)
        which = cfg.policy_q
        if which == "auto":
            which = "min" if cfg.clipped_double_q else "mean"
        self.which = which

    def forward(self, outputs: Tensor) -> Tensor:
        """Values [B]."""
        values = (
            outputs.squeeze(-1) if self.atoms is None else categorical.mean(outputs.softmax(-1), self.atoms)
        )
        return {"min": lambda: values.amin(0), "mean": lambda: values.mean(0), "first": lambda: values[0]}[
            self.which
        ]()


class ActorCriticPolicy(Policy):
    """Normalizer and actor in one, so that statistics travel with weights; and the critics, if it tells."""

    def __init__(
        self, spec: EnvSpec, cfg: ActorCriticConfig, actor: DeterministicActor | GaussianActor
    ) -> None:
        super().__init__()
        # One normalizer over all columns serves both: the policy reads its first ones.
        self.normalizer = Normalizer(spec.width(OBS) + spec.width(PRIVILEGED))
        self.actor = actor
        self.normalize = cfg.normalize_observations
        self.critic = critics(spec, cfg) if cfg.actor_carries_critic else None
        self.value = Value(cfg)

    def seen(self, obs: Obs) -> Tensor:
        """All that is observed, normalized if that is on; the policy's own columns come first."""
        x = observed(obs)
        return self.normalizer(x) if self.normalize else x

    def glanced(self, obs: Obs) -> Tensor:
        """What acting needs of it: the policy's own columns, or all where it tells values."""
        x = obs[OBS] if self.critic is None else observed(obs)
        return self.normalizer(x) if self.normalize else x

    def initial_state(self, rows: int) -> State:
        """No memory."""
        return None

    def proposed(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Actions for what is seen, to be climbed through; and their log-probabilities [B], if they have."""
        raise NotImplementedError

    def ahead(self, x: Tensor, actor: nn.Module) -> tuple[Tensor, Tensor | None]:
        """Actions of `actor` from which to bootstrap, and what acting so is worth beside their value, [B]."""
        raise NotImplementedError
