"""EnvPool, C++ simulators in batches, as VectorEnv.

An observation of several arrays (DMC) is concatenated in the order of EnvPool's own observation spec; a
scalar takes one column; pictures are planes, channels first. Playground's `state` is `obs`; of its
`privileged_state`, which begins with a copy of `state`, `privileged` keeps what comes after the copy. EnvPool
resets an env in the step after its end: that row is `valid=False`.
A termination on the very step of the time limit is reported by EnvPool, and so here, as a truncation.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from troop.core.config import bounded, suggest
from troop.core.env import PRIVILEGED, Continuous, Discrete, EnvSpec, Obs, Step, VectorEnv
from troop.core.errors import BadInput, SetupProblem
from troop.envs.envpool.atari import Setting, evaluation_settings
from troop.envs.envpool.catalog import unknown_id
from troop.envs.envpool.lazy_import import import_envpool
from troop.envs.envpool.slim_assets import slim_base_path
from troop.envs.envpool.spaces import leaves_of
from troop.envs.guard import EnvGuard
from troop.envs.observations import Bounds, Leaf, Packer, name_leaves, spread

RENDERING = {"render_mode", "from_pixels", "render_width", "render_height", "render_camera_id"}
OURS = (
    "num_envs",
    "batch_size",
    "num_threads",
    "seed",
    "env_seed",
    "gym_reset_return_info",
    "max_num_players",
)


@dataclass(frozen=True)
class EnvPool:
    """A task of EnvPool; `settings` are EnvPool's own, such as ("push_enable", False)."""

    id: str
    envs: int = bounded(16, low=1, high=2**20 - 1)
    threads: int = bounded(0, low=0)  # of the simulator; 0: as many as there are cores
    settings: tuple[Setting, ...] = ()
    slim_assets: bool = True  # models without what only a camera sees: 1,024 robots start in seconds

    @property
    def spec(self) -> EnvSpec:
        """Shapes and names; only tasks with privileged observations need two small simulators for it."""
        plan = _plan(self.id, self.settings, self.slim_assets)
        fields = dict(plan.packer.fields)
        return EnvSpec(self.id, fields, plan.action, self.envs, plan.limit)

    def make(self, seed: int, device: str = "cpu") -> VectorEnv:
        """The live env."""
        return EnvGuard(EnvPoolEnv(self, seed, device))

    def with_envs(self, envs: int) -> Self:
        """The same env with another number of copies."""
        return dataclasses.replace(self, envs=envs)

    def for_evaluation(self) -> Self:
        """Whole games and rewards as they are, where the settings of a game say otherwise."""
        settings = evaluation_settings(self.settings)
        return self if settings == self.settings else dataclasses.replace(self, settings=settings)


@dataclass(frozen=True)
class Plan:
    """How to talk with one task: found once, from EnvPool's spec."""

    packer: Packer
    action: Continuous | Discrete
    bounds: Bounds | None
    shape: tuple[int, ...]
    first_choice: int
    limit: int | None
    base_path: str


class EnvPoolEnv:
    """A pool of simulators; `send` returns at once, the C++ threads work until `recv`."""

    def __init__(self, cfg: EnvPool, seed: int, device: str, **options: Any) -> None:  # noqa: ANN401
        self.cfg = cfg
        self.spec = cfg.spec
        self.device = torch.device(device)
        self._plan = _plan(cfg.id, cfg.settings, cfg.slim_assets)
        self._options = options
        self.pool: Any = None
        self._used = False
        self._ended: np.ndarray = np.zeros(self.spec.envs, dtype=bool)
        self._build(seed)

    def reset(self, seed: int) -> Step:
        """Start every env anew; EnvPool takes a seed only when it is built, so a used pool is built again."""
        if self.pool is None or seed != self._seed or self._used:
            self._build(seed)
        self._used = True
        raw, _ = self.pool.reset()
        obs = self._plan.packer.pack(raw, self.device)
        self._ended[:] = False
        never = torch.zeros(self.spec.envs, dtype=torch.bool, device=self.device)
        return Step(obs, obs, torch.zeros(self.spec.envs, device=self.device), never, never, never)

    def send(self, action: Tensor) -> None:
        """Begin a step and return at once."""
        plan = self._plan
        if plan.bounds is None:
            given = action.detach().cpu().numpy().astype(np.int32) + plan.first_choice
        else:
            given = plan.bounds.stretch(action).reshape(self.spec.envs, *plan.shape)
        self.pool.send(given)

    def recv(self) -> Step:
        """The answer to the last `send`."""
        raw, reward, terminated, truncated, _ = self.pool.recv()
        ended = self._ended
        if ended.any():
            # These rows only open an episode; DMC nevertheless reports a reward for them.
            reward = np.where(ended, np.float32(0), reward)
            terminated, truncated = terminated & ~ended, truncated & ~ended
        self._ended = terminated | truncated
        obs = self._plan.packer.pack(raw, self.device)
        return Step(
            obs,
            obs,
            torch.from_numpy(reward).to(self.device),
            torch.from_numpy(terminated).to(self.device),
            torch.from_numpy(truncated).to(self.device),
            torch.from_numpy(~ended).to(self.device),
        )

    def step(self, action: Tensor) -> Step:
        """`send` and `recv` in one."""
        self.send(action)
        return self.recv()

    def restart(self, rows: Tensor) -> Obs:
        """Reset only these rows; not between `send` and `recv`."""
        chosen = rows.cpu().numpy().astype(np.int32)
        raw, _ = self.pool.reset(chosen)
        self._ended[chosen] = False
        return self._plan.packer.pack(raw, self.device)

    def close(self) -> None:
        """Give back threads and memory; may be called twice."""
        if self.pool is not None:
            self.pool.close()
            self.pool = None

    def _build(self, seed: int) -> None:
        self.close()
        options = {"base_path": self._plan.base_path, **dict(self.cfg.settings), **self._options}
        self.pool = _make(
            self.cfg.id, num_envs=self.spec.envs, num_threads=self.cfg.threads, seed=spread(seed), **options
        )
        self._seed, self._used = seed, False
        self._ended = np.zeros_like(self._ended)


def _make(id: str, **options: Any) -> Any:  # noqa: ANN401 - EnvPool's classes are made at run time
    try:
        return import_envpool().make_gymnasium(id, **options)
    except (RuntimeError, ImportError, OSError, MemoryError) as error:
        raise SetupProblem(f"EnvPool cannot build '{id}': {error}") from error


@lru_cache(maxsize=64)
def _plan(id: str, settings: tuple[Setting, ...], slim: bool) -> Plan:
    spec = envpool_spec(id, settings)
    config = spec.config
    if config.max_num_players > 1:
        raise BadInput(f"'{id}' is a game for {config.max_num_players} players; Troop trains one agent.")
    from envpool.registration import registry

    module, base_path = registry.specs[id][0], config.base_path
    watched = any(name in ("render_mode", "from_pixels", "base_path") for name, _ in settings)
    if slim and not watched:
        base_path = slim_base_path(id, module, base_path)
    leaves = leaves_of(spec, module)
    if any(leaf.name == PRIVILEGED for leaf in leaves):
        leaves = _without_copy(leaves, id, {**dict(settings), "base_path": base_path})
    limit = config.max_episode_steps if 0 < config.max_episode_steps < 2**31 - 1 else None
    space = spec.gymnasium_action_space
    kind = type(space).__name__
    packer = Packer(name_leaves(leaves), id)
    if kind == "Discrete":
        return Plan(packer, Discrete(int(space.n)), None, (), int(space.start), limit, base_path)
    if kind != "Box" or not np.issubdtype(space.dtype, np.floating):
        raise BadInput(f"The actions of '{id}' are {space}; Troop knows one box of numbers or one choice.")
    bounds = Bounds.of(space.low, space.high)
    return Plan(packer, bounds.action, bounds, space.shape, 0, limit, base_path)


def envpool_spec(id: str, settings: tuple[Setting, ...]) -> Any:  # noqa: ANN401
    """EnvPool's own spec of a task with these settings; BadInput for a name it does not know."""
    envpool = import_envpool()
    if id not in envpool.list_all_envs():
        raise unknown_id(id, envpool.list_all_envs())
    try:
        known = set(envpool.make_spec(id).config._fields) | RENDERING
    except ImportError as error:
        raise SetupProblem(f"'{id}' needs what this machine does not have: {error}") from error
    for name, _ in settings:
        if name in OURS or name not in known:
            close = "".join(f"; did you mean '{word}'?" for word in suggest(name, known - set(OURS), 1))
            raise BadInput(f"EnvPool task '{id}' has no setting '{name}'{close or '.'}")
    try:
        return envpool.make_spec(id, **dict(settings))
    except (RuntimeError, TypeError, ValueError) as error:
        raise BadInput(f"EnvPool cannot make '{id}' with settings {dict(settings)}: {error}") from error


def _without_copy(leaves: list[Leaf], id: str, options: dict[str, Any]) -> list[Leaf]:
    """Let `privileged` skip its copy of `state`, if a short rollout shows that it begins with one."""
    state = next((leaf for leaf in leaves if leaf.path == ("state",)), None)
    if state is None:
        return leaves
    pool = _make(id, num_envs=2, num_threads=1, seed=1, **options)
    raw, _ = pool.reset()
    copied = True
    random = np.random.default_rng(0)
    for _ in range(5):
        public, private = (raw[name].reshape(2, -1) for name in ("state", "privileged_state"))
        copied = copied and np.array_equal(private[:, : state.width], public)
        raw = pool.step(random.uniform(-1, 1, (2, *pool.action_space.shape)))[0]
    pool.close()
    if not copied:
        return leaves
    return [dataclasses.replace(x, skip=state.width) if x.name == PRIVILEGED else x for x in leaves]
