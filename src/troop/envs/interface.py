"""EnvInterface: what one env of a backend returns and takes, converted to and from rows of tensors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from troop.core.env import OBS, PRIVILEGED, Continuous, EnvConfig, EnvSpec, Obs
from troop.core.errors import BadInput
from troop.envs.actions import ActionConverter
from troop.envs.envpool.adapter import EnvPool
from troop.envs.frames import FrameConfig
from troop.envs.gymnasium.adapter import Gymnasium
from troop.envs.last_step import without_last_step
from troop.envs.observations import ObsConverter


@dataclass(frozen=True)
class EnvInterface:
    """Reads observations and writes actions of an env as its backend spells them.

    Without `converter` the backend has no format of its own: observations are named rows of the spec.
    """

    spec: EnvSpec
    converter: ObsConverter | None = None
    actions: ActionConverter | None = None
    frames: FrameConfig = field(default_factory=FrameConfig)
    hide: tuple[int, ...] = ()  # columns of `obs` of the backend that are not in the spec

    def read(self, raw: Any) -> tuple[Obs, bool, bool]:  # noqa: ANN401 - arrays, dicts and tuples of arrays
        """Return named rows, whether `raw` was one row, and whether its images remain to be stacked.

        Takes observations of the backend (a nested dict, images with channels last), one or a batch, else
        named ones of the spec. Raises BadInput for another shape.
        """
        if self.converter is not None:
            try:
                rows, single = self.converter.read_rows(raw, skip=(PRIVILEGED,))
            except BadInput:
                if (named := self._read_named(raw)) is None:
                    raise
                return *named, False
            if self.hide:
                columns = [column for column in range(rows[OBS].shape[1]) if column not in self.hide]
                rows[OBS] = rows[OBS][:, columns]
            frames = {k: self.frames.convert(x) if x.ndim == 4 else x for k, x in rows.items()}
            return {k: _tensor(x) for k, x in frames.items()}, single, self.frames.stack > 1
        if (named := self._read_named(raw)) is None:
            expected = ", ".join(f"'{name}' {shape}" for name, shape in self.spec.shapes(False).items())
            raise BadInput(
                f"The policy of {self.spec.id} takes observations {expected}, not {_describe(raw)}."
            )
        return *named, False

    def _read_named(self, raw: Any) -> tuple[Obs, bool] | None:  # noqa: ANN401
        """Return rows of named observations, and whether `raw` was one row; None if it has another shape."""
        shapes = self.spec.shapes(privileged=False)
        named = raw if isinstance(raw, dict) else {name: raw for name in shapes} if len(shapes) == 1 else {}
        ranks = {name: np.ndim(named[name]) - len(shapes[name]) for name in shapes if name in named}
        if len(ranks) < len(shapes) or len(set(ranks.values())) > 1 or not set(ranks.values()) <= {0, 1}:
            return None
        single = 0 in ranks.values()
        if any(tuple(np.shape(named[name])[0 if single else 1 :]) != shape for name, shape in shapes.items()):
            return None
        rows = {name: _tensor(named[name]).to(self.spec.obs[name].dtype) for name in shapes}
        return {name: x.unsqueeze(0) if single else x for name, x in rows.items()}, single

    def write(self, action: Tensor) -> np.ndarray:
        """Return actions [N, ...] of a policy in the units, dtype and shape of the backend."""
        action = action.detach().cpu()
        if self.actions is not None:
            return self.actions.to_env(action.numpy())
        return (action.clamp(-1, 1) if isinstance(self.spec.action, Continuous) else action).numpy()


def find_interface(env: EnvConfig) -> EnvInterface:
    """Return the interface of an env config."""
    spec = without_last_step(env.spec)
    if isinstance(env, EnvPool | Gymnasium):
        return EnvInterface(spec, env.layout.converter, env.layout.actions, env.frames, env.hide)
    return EnvInterface(spec)


def _tensor(value: Any) -> Tensor:  # noqa: ANN401
    return value if isinstance(value, Tensor) else torch.as_tensor(np.asarray(value))


def _describe(raw: Any) -> str:  # noqa: ANN401
    if isinstance(raw, dict):
        return ", ".join(f"'{name}' {tuple(np.shape(value))}" for name, value in raw.items())
    return f"{tuple(np.shape(raw))}"
