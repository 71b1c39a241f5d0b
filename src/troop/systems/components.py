"""What systems with actors of their own share: hands, rates of exploration, the evaluator."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from troop.core.algorithm import Algorithm, AlgorithmConfig
from troop.core.batch import NStep, Transition
from troop.core.env import EnvConfig, EnvSpec
from troop.core.errors import BadInput
from troop.core.exploration import Exploration, LinearSchedule, PerEnv, PerEpisodeUniform
from troop.core.flow import WeightSource
from troop.core.peers import NO_PEERS, Peers
from troop.core.program import Program, Schedule, build, derive_seed
from troop.replay.recorders.chunks import ChunkRecorder
from troop.roles.actor import Sampler
from troop.roles.collector import Collector, EnvFactory
from troop.roles.evaluator import Evaluator
from troop.systems.settings import RunSettings


def epsilon_ladder(rows: int, epsilon: float = 0.4, alpha: float = 7.0) -> list[float]:
    """Ape-X's constants, eps^(1 + alpha i / (N - 1)) for row i of N; one row alone has eps itself."""
    return [float(epsilon ** (1 + alpha * i / max(1, rows - 1))) for i in range(rows)]


def ramp(rows: int, low: float, high: float) -> list[float]:
    """Equal steps from low to high; one row alone has the middle."""
    if rows == 1:
        return [(low + high) / 2]
    return [low + (high - low) * i / (rows - 1) for i in range(rows)]


def exploration_rates(exploration: Exploration, rows: int, epsilon: float, alpha: float) -> list[float]:
    """A constant for each of all rows: a ladder for who anneals an epsilon, a ramp for who draws a noise."""
    if isinstance(exploration, PerEpisodeUniform):
        return ramp(rows, exploration.low, exploration.high)
    if isinstance(exploration, LinearSchedule) and exploration.start != exploration.end:
        noise = math.floor(
            exploration.end
        )  # noisy nets count from 1 on: their noise stays, epsilon comes on top
        return [noise + rung for rung in epsilon_ladder(rows, epsilon, alpha)]
    return exploration.begin(rows, torch.device("cpu")).tolist()


def n_step(algorithm: AlgorithmConfig[Transition]) -> NStep:
    """The windows an algorithm wants; BadInput if it wants trajectories."""
    experience = algorithm.experience
    if not isinstance(experience, NStep):
        raise BadInput(f"{type(algorithm).__name__} wants trajectories; this system hands out transitions.")
    return experience


def stream_length(spec: EnvSpec, capacity: int, rows: int, least: int) -> int:
    """Rows of replay for each of `rows` streams; BadInput if that is less than a window and a piece need."""
    margin = max((field.stack for field in spec.obs.values()), default=1)
    if (length := capacity // rows) < least + margin:
        raise BadInput(
            f"--system.replay-capacity is {capacity}; with {rows} env streams it must be at least "
            f"{rows * (least + margin)}."
        )
    return length


def seeded_learner(
    make: Any, spec: EnvSpec, seed: int, device: str, peers: Peers = NO_PEERS
) -> Algorithm[Transition]:  # noqa: ANN401
    """A learner whose first weights depend on `seed` alone: copies on any host begin as one."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "first weights"))
        algorithm: Algorithm[Transition] = make(spec, peers=peers, device=device)
    return algorithm


@dataclass(frozen=True)
class ActorConfig:
    """How one actor collects."""

    seed: int
    first_stream: int  # its first stream
    chunk_length: int  # vector steps in a piece
    exploration: tuple[float, ...] | Exploration
    actor_priorities: bool  # rows leave with their initial priority
    recreate_every: int = 0
    double_buffered: bool = True  # two halves in turn, where the envs can be halved
    device: str = "cpu"


def make_sampler(algorithm: AlgorithmConfig[Transition], env: EnvConfig, config: ActorConfig) -> Sampler:
    """A policy of its own with one collector, or two that take turns."""
    policy: Any = algorithm.policy(env.spec).to(config.device)
    parts = 2 if config.double_buffered and not config.recreate_every and env.envs % 2 == 0 else 1
    share, collectors, recorders = env.envs // parts, [], []
    for part in range(parts):
        recorder = ChunkRecorder(
            share,
            config.first_stream + part * share,
            config.chunk_length,
            n_step(algorithm),
            policy if config.actor_priorities else None,
        )
        explore = config.exploration
        if isinstance(explore, tuple):
            explore = PerEnv(explore[part * share : (part + 1) * share])
        make = partial(_halved(env, parts).make, device=config.device)
        world = EnvFactory(
            make,
            derive_seed(config.seed, f"half {part}") if parts > 1 else config.seed,
            config.recreate_every,
        )
        collectors.append(Collector(world, policy, recorder, explore))
        recorders.append(recorder)
    return Sampler(policy, collectors, list(recorders))


def _halved(env: EnvConfig, parts: int) -> EnvConfig:
    half = env.with_envs(env.envs // parts)
    threads = getattr(half, "threads", None)
    if threads and parts > 1:
        half = dataclasses.replace(half, threads=max(1, threads // parts))  # type: ignore[type-var]
    return half


def add_evaluator(
    program: Program,
    algorithm: AlgorithmConfig[Transition],
    env: EnvConfig,
    weights: WeightSource,
    setting: RunSettings,
) -> None:
    """A node that evaluates the newest policy on schedule, in envs of its own and on the CPU."""
    evaluation, spec = setting.evaluation, env.spec
    own = env.for_evaluation().with_envs(evaluation.episodes)
    program.add(
        "evaluator",
        Evaluator,
        partial(own.make, device="cpu"),
        build(_policy, algorithm, spec),
        weights,
        derive_seed(setting.seed, "evaluate"),
        min(evaluation.longest, (spec.episode_limit or evaluation.longest) + 1),
    )
    program.schedule("evaluator", Schedule(evaluation.env_steps, evaluation.seconds))


def _policy(algorithm: AlgorithmConfig[Transition], spec: EnvSpec) -> nn.Module:
    return algorithm.policy(spec)
