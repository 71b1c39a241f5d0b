"""DQN: Mnih et al. 2015, "Human-level control through deep reinforcement learning".

Its improvements are fields, each the difference its paper is: `double` (van Hasselt et al. 2016), `dueling`
(Wang et al. 2016), `n_step` (Sutton 1988), `noisy` (Fortunato et al. 2018). More in docs/algorithms/dqn.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from troop.algorithms.optim.optimizer import OptimizerConfig
from troop.algorithms.optim.target import frozen, hard_update, soft_update
from troop.core.algorithm import Policy, PolicyOutput, State, UpdateResult
from troop.core.batch import NStep, Transition
from troop.core.config import bounded
from troop.core.env import OBS, Discrete, EnvSpec, Obs
from troop.core.exploration import Exploration, LinearSchedule
from troop.core.peers import NO_PEERS, Peers
from troop.functional import td
from troop.nets.cnn import fitting, misfit
from troop.nets.noisy import Noise, scale_noise
from troop.nets.normalizer import Normalizer
from troop.nets.q_network import QNetwork

STEADY = 1000  # updates after which the normalizer looks at every tenth batch only


@dataclass(frozen=True)
class DQNConfig:
    """The paper's Atari settings, in env steps and updates instead of emulator frames."""

    gamma: float = bounded(0.99, low=0, high=1)
    n_step: int = bounded(1, low=1, high=64)
    """Steps of reward before the bootstrap."""
    double: bool = False
    """The online net chooses the next action, the target net judges it."""
    dueling: bool = False
    """Two streams, value and advantage, from the last hidden layer on."""
    rescale_torso: bool = True
    """Dueling only: scale the gradient into the shared layers by 1/sqrt(2)."""
    noisy: float = bounded(0.0, low=0, high=10)
    """sigma0 of noisy layers, which explore too; 0 for plain layers (the paper's is 0.5, with no epsilon)."""
    loss: Literal["huber", "squared"] = "huber"
    target_period: int = bounded(2500, low=1)
    """Copy the online net into the target net every this many updates, where `tau` is 0."""
    tau: float = bounded(0.0, low=0, high=1)
    """Above 0 the target net moves by this share at every update instead."""
    optimizer: Literal["adam", "rmsprop", "rmsprop_tf"] = "rmsprop_tf"
    lr: float = bounded(2.5e-4, above=0)
    eps: float = bounded(0.01 / 32**2, above=0)
    decay: float = bounded(0.95, low=0, below=1)
    """Of RMSProp's running means."""
    centered: bool = True
    """RMSProp divides by the deviation of gradients instead of their size."""
    max_grad_norm: float = bounded(0.0, low=0)
    """Clip gradients to this norm; 0 does not clip."""
    weight_decay: float = bounded(0.0, low=0)
    epsilon_start: float = bounded(1.0, low=0, high=1)
    epsilon_end: float = bounded(0.1, low=0, high=1)
    epsilon_steps: int = bounded(250_000, low=0)
    """Env steps, over all envs, in which epsilon goes from start to end."""
    net: Literal["auto", "mlp", "nature", "nips", "impala", "small"] = "auto"
    """Torso for images; auto is nature from 36x36 pixels on and small below, nips the lighter one of 2013."""
    hidden: tuple[int, ...] = bounded((512,), low=1)
    """Hidden layers after the torso."""
    layer_norm: bool = False
    """Normalize hidden layers after the torso: steadier with small nets, batches and large steps."""
    bootstrap_on_truncation: bool = True
    """A time limit is not the world's end; off only for tasks whose time limit is part of the task."""
    normalize_observations: bool = False
    """Running mean and deviation of vector observations."""

    @property
    def atoms(self) -> int:
        """Of a categorical value; 0 for a number."""
        return 0

    @property
    def experience(self) -> NStep:
        """n-step transitions."""
        return NStep(self.n_step, self.gamma, self.bootstrap_on_truncation)

    @property
    def exploration(self) -> Exploration:
        """Epsilon in a line; on top of noise, which stays on and anneals itself, where there is some."""
        noise = 1.0 if self.noisy else 0.0
        return LinearSchedule(noise + self.epsilon_start, noise + self.epsilon_end, self.epsilon_steps)

    def unsupported_reason(self, spec: EnvSpec) -> str | None:
        """Choices only, from vectors or images [channels, height, width] of bytes or floats."""
        if not isinstance(spec.action, Discrete):
            return (
                f"{spec.id} has continuous actions; the DQN family chooses among discrete ones. "
                "Continuous ones are for FastTD3, TD3, DDPG and SAC"
            )
        field = spec.obs[OBS]
        if field.dtype not in (torch.uint8, torch.float32):
            return f"{spec.id} has observations of {field.dtype}; expected torch.uint8 or torch.float32"
        if len(field.shape) == 1:
            if self.net not in ("auto", "mlp"):
                return f"{spec.id} has vector observations {field.shape}; the {self.net} torso reads images"
            return None
        return self._refuse_image(spec.id, field.shape)

    def _refuse_image(self, name: str, shape: tuple[int, ...]) -> str | None:
        """Why such images cannot be read."""
        if len(shape) != 3:
            return f"{name} has observations {shape}; expected [n] or images [channels, height, width]"
        if shape[2] <= 4 and shape[2] < shape[0]:
            return f"{name} has images {shape}, channels last; expected [channels, height, width]"
        if self.normalize_observations:
            return (
                f"{name} has images {shape}; normalize_observations is for vectors, pixels are divided by 255"
            )
        if self.net == "mlp":
            return None
        reason = misfit(fitting(shape) if self.net == "auto" else self.net, shape)
        return f"{name}: {reason}" if reason else None

    def policy(self, spec: EnvSpec) -> DQNPolicy:
        """The acting part alone."""
        return DQNPolicy(spec, self)

    def algorithm(self, spec: EnvSpec, peers: Peers = NO_PEERS, device: str = "cpu") -> DQN:
        """The learner."""
        return DQN(spec, self, peers, device)


class DQNPolicy(Policy):
    """The online net, and its normalizer if any; acts epsilon-greedily, or by its own noise."""

    def __init__(self, spec: EnvSpec, cfg: DQNConfig) -> None:
        super().__init__()
        assert isinstance(spec.action, Discrete)
        self.choices = spec.action.choices
        self.normalizer = Normalizer(spec.width()) if cfg.normalize_observations else None
        self.q = QNetwork(
            spec.obs[OBS].shape,
            self.choices,
            cfg.hidden,
            cfg.net,
            cfg.atoms,
            cfg.dueling,
            cfg.noisy,
            cfg.rescale_torso,
            cfg.layer_norm,
        )

    def values(self, outputs: Tensor) -> Tensor:
        """Q [B, A] from what the net gives."""
        return outputs

    def forward(self, x: Tensor, noise: Noise | None = None) -> Tensor:
        """Q [B, A] of observations, normalized if that is on."""
        return self.values(self.q(x, noise))

    def seen(self, obs: Obs) -> Tensor:
        """What the net is shown."""
        x = obs[OBS]
        return x if self.normalizer is None else self.normalizer(x)

    def initial_state(self, rows: int) -> State:
        """No memory."""
        return None

    @torch.no_grad()
    def act(self, obs: Obs, state: State, explore: Tensor) -> PolicyOutput:
        """Best actions but for exploration: `explore` [B] is each row's epsilon.

        Of a noisy net it is how much of its noise the row feels, up to 1, and what is above 1 its epsilon.
        With the action travel its value `q` and the best action's `value`, from which actors judge surprise.
        """
        x, rows, curious = self.seen(obs), len(explore), bool(explore.any())
        noise = self.q.draw(rows) if curious else None
        q = self(x, noise if noise is None else scale_noise(noise, explore.clamp_max(1.0)))
        value, action = q.max(1)
        if self.q.noisy:
            explore = explore - 1.0
            curious = curious and bool((explore > 0).any())
        if not curious:
            return PolicyOutput(action, None, {"q": value, "value": value})
        anything = torch.randint(self.choices, (rows,), device=q.device)
        action = torch.where(torch.rand(rows, device=q.device) < explore, anything, action)
        return PolicyOutput(action, None, {"q": td.chosen(q, action), "value": value})


class DQN:
    """The learner: one batch, one gradient step of the online net towards the target net's opinion."""

    def __init__(self, spec: EnvSpec, cfg: DQNConfig, peers: Peers, device: str) -> None:
        self.cfg, self.peers = cfg, peers
        self.policy = cfg.policy(spec).to(device)
        self.q = self.policy.q
        how = OptimizerConfig(
            weight_decay=cfg.weight_decay,
            max_grad_norm=cfg.max_grad_norm,
            lr_end=1.0,
            lr_updates=1,
            device=device,
            kind=cfg.optimizer,
            eps=cfg.eps,
            decay=cfg.decay,
            centered=cfg.centered,
        )
        self.descent = how.on(peers, self.q, cfg.lr)
        self.target_q = frozen(self.q)
        self.row_loss = td.huber if cfg.loss == "huber" else td.half_squared
        self.updates = 0

    def update(self, batch: Transition) -> UpdateResult:
        """One gradient step, then the target net if it is due."""
        if (normalizer := self.policy.normalizer) is not None and (
            self.updates < STEADY or self.updates % 10 == 0
        ):
            normalizer.update(batch.obs[OBS])
        obs, next_obs = self.policy.seen(batch.obs), self.policy.seen(batch.next_obs)
        noise = self.q.draw()  # one noise for all that the online net says of this batch
        target = self.target(batch, next_obs, noise)
        rows, error, value = self.errors(td.chosen(self.q(obs, noise), batch.action), target)
        loss = (rows if batch.weight is None else rows * batch.weight).mean()
        skipped = self.descent.step(loss)
        self.updates += 1
        if self.cfg.tau:
            soft_update(self.target_q, self.q, self.cfg.tau)
        elif self.peers.period_elapsed(self.updates, self.cfg.target_period):
            hard_update(self.target_q, self.q)
        metrics = {"loss/critic": loss.detach(), "value/mean": value.mean(), "count/skipped_updates": skipped}
        # A row whose error is no number must not poison a whole replay.
        priority = error.nan_to_num(0.0, 0.0, 0.0) if batch.index is not None else None
        return UpdateResult(metrics, priority)

    @torch.no_grad()
    def target(self, batch: Transition, next_obs: Tensor, noise: Noise | None) -> Tensor:
        """What the chosen action's value is regressed on, [B]; `noise` is the online net's."""
        judged = self.target_q(next_obs, self.target_q.draw())
        value = td.double_q(self.q(next_obs, noise), judged) if self.cfg.double else judged.amax(1)
        return td.target(batch.reward, batch.discount, value)

    def errors(self, said: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Each row's loss, its priority |TD error|, and the value of its target; all [B]."""
        return self.row_loss(said, target), (said.detach() - target).abs_(), target

    @property
    def consecutive_skips(self) -> Tensor:
        """How many updates in a row were skipped for a loss that was not finite; a tensor, read it rarely."""
        return self.descent.consecutive_skips

    def state_dict(self) -> dict[str, Any]:
        """Weights, target, optimiser, counter."""
        return {
            "policy": self.policy.state_dict(),
            "target_q": self.target_q.state_dict(),
            "descent": self.descent.state_dict(),
            "updates": self.updates,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on as if never stopped."""
        for name in ("policy", "target_q", "descent"):
            getattr(self, name).load_state_dict(state[name])
        self.updates = int(state["updates"])
