"""What FastTD3, TD3, DDPG and SAC have in common to be set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from troop.algorithms.optim.optimizer import OptimizerConfig
from troop.core.batch import NStep
from troop.core.config import bounded
from troop.core.env import OBS, Continuous, EnvSpec
from troop.nets.chain import Activation
from troop.nets.network_config import Kind, NetworkConfig

if TYPE_CHECKING:
    from troop.algorithms.actor_critic_policy import ActorCriticPolicy


@dataclass(frozen=True)
class ActorCriticConfig:
    """Critics over (observation, action) and a policy that climbs them."""

    gamma: float = bounded(0.99, low=0, high=1)
    n_step: int = bounded(1, low=1, high=64)
    tau: float = bounded(0.1, above=0, high=1)
    policy_delay: int = bounded(2, low=1)
    """One policy update every this many critic updates, counted across env steps; where the halves learn
    apart, the system keeps its own ratio."""
    critics: int = bounded(2, low=1, high=16)
    atoms: int = bounded(101, low=0, high=4096)
    """Atoms of the categorical critics; 0 for scalar critics."""
    v_min: float = -250.0
    v_max: float = 250.0
    """Range of the atoms: cover reward per step / (1 - gamma); too small a range caps learning silently."""
    clipped_double_q: bool = True
    """Regress every critic on the target with the lower value; off: each on its own."""
    categorical_min: Literal["lower_mean", "elementwise_min"] = "lower_mean"
    """The lower of categorical targets: the one with the lower mean, kept whole (FastTD3), or the least
    probability of each atom, against which critics have binary cross entropy (PQL-D)."""
    policy_q: Literal["auto", "min", "mean", "first"] = "auto"
    """What the policy climbs; auto is min with clipped double Q and mean without."""
    bootstrap_on_truncation: bool = True
    """A time limit is not the world's end; off only for tasks whose time limit is part of the task."""
    normalize_observations: bool = True
    normalize_rewards: bool = False
    net: Kind = "mlp"
    """Layers, or blocks on the unit sphere: simbav2 as its paper has them, simbav2_port as FastTD3's code."""
    actor_hidden: tuple[int, ...] = bounded((512, 256, 128), low=1)
    critic_hidden: tuple[int, ...] = bounded((1024, 512, 256), low=1)
    """Width of each layer, or of each block of SimbaV2, where all are the same."""
    activation: Activation = "relu"
    layer_norm: bool = False
    """LayerNorm before each activation: steadier with small batches and many updates per step."""
    actor_init: float = bounded(0.01, low=0)
    """Standard deviation of the weights of the policy's last layer; an MLP's, SimbaV2 has its own."""
    actor_lr: float = bounded(3e-4, above=0)
    critic_lr: float = bounded(3e-4, above=0)
    lr_end: float = bounded(1.0, above=0, high=1)
    """Fraction of the learning rates left at the end of the cosine; 1 keeps them constant."""
    lr_updates: int = bounded(200_000, low=1)
    """Critic updates over which the cosine runs."""
    beta2: float = bounded(0.999, low=0, below=1)
    """Of Adam's running mean of squared gradients."""
    weight_decay: float = bounded(0.1, low=0)
    max_grad_norm: float = bounded(0.0, low=0)
    """Clip gradients to this norm; 0 does not clip."""
    actor_carries_critic: bool = False
    """The policy carries the critics and tells the value of what it does, for actors that judge their rows
    (Ape-X DPG); a TD error is what the learner's priorities are only where `atoms` is 0."""
    compile: bool = False
    """Compile the two losses and their gradients with torch.compile: half a minute the first time, then
    1.15 to 1.4 times the updates of small nets on a CPU; needs a C++ compiler there."""
    amp: bool = False
    """bf16 autocast around targets and losses; only where the device has bf16 units."""

    @property
    def experience(self) -> NStep:
        """n-step transitions."""
        reach = min(abs(self.v_min), abs(self.v_max)) if self.atoms else 10.0
        scale = reach if self.normalize_rewards else None
        return NStep(self.n_step, self.gamma, self.bootstrap_on_truncation, scale)

    def unsupported_reason(self, spec: EnvSpec) -> str | None:
        """Continuous actions and vector observations only; and a support that is one."""
        if not isinstance(spec.action, Continuous):
            return (
                f"{spec.id} has discrete actions; FastTD3, TD3, DDPG and SAC take continuous ones. "
                "Discrete ones are for DQN, C51 and Rainbow"
            )
        if len(spec.obs[OBS].shape) != 1:
            return f"{spec.id} has image observations {spec.obs[OBS].shape}; this algorithm takes vectors"
        if self.atoms == 1 or (self.atoms and self.v_min >= self.v_max):
            return (
                f"v_min {self.v_min:g} to v_max {self.v_max:g} with {self.atoms} atoms is no range of values"
            )
        if self.atoms and self.normalize_rewards and not self.v_min < 0 < self.v_max:
            return f"normalize_rewards needs v_min < 0 < v_max, not {self.v_min:g} to {self.v_max:g}"
        for name in ("actor_hidden", "critic_hidden"):
            hidden = getattr(self, name)
            if self.net != "mlp" and (not hidden or len(set(hidden)) > 1):
                return f"{name} is {hidden}; SimbaV2 wants one number a block, all the same"
        return None

    def unsplittable_reason(self) -> str | None:
        """Whatever is whole can be split, unless a subclass knows better."""
        return None

    def policy(self, spec: EnvSpec) -> ActorCriticPolicy:
        """The acting part alone."""
        raise NotImplementedError

    def descent(self, device: str) -> OptimizerConfig:
        """How gradients become steps."""
        return OptimizerConfig(
            self.weight_decay,
            self.max_grad_norm,
            self.lr_end,
            self.lr_updates,
            device,
            beta2=self.beta2,
        )

    def shape(self, hidden: tuple[int, ...]) -> NetworkConfig:
        """Of a net with these hidden layers."""
        return NetworkConfig(hidden, self.layer_norm, self.activation, self.net)
