"""Parts that several systems are built from: samplers, learners, replay buffers, the evaluator."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol, TypeVar, cast

import torch

from troop.core.algorithm import AlgorithmConfig, Policy, PrioritizesSequences
from troop.core.batch import NStep, SequenceSpec, Trajectory, TrajectorySpec, Transition
from troop.core.config_json import encode
from troop.core.env import Continuous, EnvConfig, EnvSpec, VectorEnv
from troop.core.errors import BadInput
from troop.core.exploration import Exploration, PerEnv
from troop.core.flow import WeightSource
from troop.core.group import Group
from troop.core.peers import NO_PEERS, Peers
from troop.core.program import Program, Schedule, build, derive_seed
from troop.core.system import RunSettings
from troop.replay.prioritized import PrioritizedReplay, PriorityConfig
from troop.replay.recorders.chunks import ChunkRecorder
from troop.replay.recorders.sequences import InitialPriority, VectorSequenceRecorder
from troop.replay.recorders.trajectories import TrajectoryRecorder
from troop.replay.sequences import SequenceReplay, SequenceReplaySize
from troop.replay.uniform import ReplaySize, UniformReplay
from troop.roles.auto_compile import AutoCompileConfig
from troop.roles.collector import Collector, EnvFactory
from troop.roles.data_parallel import DataParallelTrainer
from troop.roles.evaluator import Evaluator
from troop.roles.sampler import Sampler, StatefulRecorder
from troop.roles.staggered_starts import StaggeredMake
from troop.roles.trainer import Trainer

MAX_RECORDED_ACTIONS = 2**26  # numbers kept to replay the actions of a resumed run: 256 MB of float32


def affordable_steps(spec: EnvSpec) -> int:
    """Return the vector steps whose actions may be recorded to restore the envs of a resumed run."""
    action_size = spec.action.size if isinstance(spec.action, Continuous) else 1
    return MAX_RECORDED_ACTIONS // (spec.envs * action_size)


def n_step_experience(algorithm: AlgorithmConfig[Transition], spec: EnvSpec, system: str = "chosen") -> NStep:
    """Return the n-step windows that the algorithm learns from; BadInput if it learns from other batches."""
    experience = algorithm.experience
    if not isinstance(experience, NStep):
        kind = "sequences" if isinstance(experience, SequenceSpec) else "trajectories"
        raise BadInput(
            f"{type(algorithm).__name__} learns from {kind}, but the {system} system samples n-step "
            "transitions; use an algorithm of the DQN, TD3 or SAC family."
        )
    return experience.within_time_limit(spec.episode_limit)


def replay_experience(
    algorithm: AlgorithmConfig[Transition] | AlgorithmConfig[Trajectory], spec: EnvSpec, system: str
) -> NStep | SequenceSpec:
    """Return the windows or sequences that the algorithm samples; BadInput if it learns from trajectories."""
    experience = algorithm.experience
    if isinstance(experience, SequenceSpec):
        return experience.within_time_limit(spec.episode_limit)
    return n_step_experience(cast(AlgorithmConfig[Transition], algorithm), spec, system)


def rows_per_env(
    spec: EnvSpec, capacity: int, envs: int, minimum: int, flag: str = "--system.replay-capacity"
) -> int:
    """Return the rows of replay for each of `envs` env streams; BadInput if they are fewer than needed.

    `minimum` are the rows that a stream must hold at once, besides the frames of a stacked observation.
    """
    minimum += max((field.stack for field in spec.obs.values()), default=1)
    if capacity // envs < minimum:
        raise BadInput(f"{flag} is {capacity}; with {envs} envs it must be at least {envs * minimum}.")
    return capacity // envs


def make_replay(
    spec: EnvSpec,
    experience: NStep,
    size: ReplaySize,
    priority: PriorityConfig,
    seed: int,
    device: str,
    peers: Peers = NO_PEERS,
) -> UniformReplay:
    """Build a prioritized replay, or a uniform one if `priority.alpha` is 0.

    `peers` share its reward scale.
    """
    seed = derive_seed(seed, "replay")
    if priority.alpha:
        return PrioritizedReplay(spec, experience, size, seed, device, priority, peers)
    return UniformReplay(spec, experience, size, seed, device, peers)


def make_sequence_replay(
    spec: EnvSpec,
    experience: SequenceSpec,
    size: SequenceReplaySize,
    priority: PriorityConfig,
    seed: int,
    device: str,
    peers: Peers = NO_PEERS,
) -> SequenceReplay:
    """Build a replay of sequences, prioritized or, if `priority.alpha` is 0, uniform.

    `peers` share its reward scale.
    """
    return SequenceReplay(spec, experience, size, derive_seed(seed, "replay"), device, priority, peers)


L = TypeVar("L", covariant=True)  # a learner: Algorithm[Transition] or Algorithm[Trajectory]


class MakeLearner(Protocol[L]):
    """`AlgorithmConfig.algorithm`, `SplitAlgorithmConfig.critic_learner` or `actor_learner`."""

    def __call__(self, spec: EnvSpec, peers: Peers = ..., device: str = "cpu") -> L:
        """Build the learner on `device`."""
        ...


def seeded_learner(make: MakeLearner[L], spec: EnvSpec, seed: int, device: str, peers: Peers = NO_PEERS) -> L:
    """Build a learner whose initial weights depend only on `seed`, so that copies on all hosts are equal."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "first weights"))
        return make(spec, peers=peers, device=device)


def auto_compile(
    algorithm: AlgorithmConfig[Any],
    env: EnvConfig,
    settings: RunSettings,
    device: str,
    method: Literal["algorithm", "critic_learner", "actor_learner"] = "algorithm",
) -> AutoCompileConfig | None:
    """Return how the learner that `method` builds is compiled during training; None if it is not.

    That is the case with `compile = "auto"` on a CPU, unless the run is to be deterministic: the decision
    depends on the clock, and compiled losses round differently.
    """
    automatic = getattr(algorithm, "compile", False) == "auto"
    if not automatic or settings.deterministic or torch.device(device).type != "cpu":
        return None
    learner = {"algorithm": encode(algorithm), "env": encode(env), "method": method, "device": device}
    return AutoCompileConfig(learner, settings.minutes)


class Membership(NamedTuple):
    """Place of a trainer in a group, and the share of finished members at which it ends its rollout."""

    group: Group
    preemption: float = 1.0


def add_trainer_node(
    program: Program,
    name: str,
    membership: Membership | None,
    *args: Any,  # noqa: ANN401 - the arguments of Trainer
) -> Trainer[Any, Any]:
    """Add a Trainer or, with a membership, one that averages its gradients with the rest of its group."""
    if membership is None:
        return program.add(name, Trainer, *args)
    return program.add(name, DataParallelTrainer, membership.group, membership.preemption, *args)


def make_policy(algorithm: AlgorithmConfig[Any], spec: EnvSpec, device: str) -> Policy:
    """Build a policy that acts, on `device`: layers such as dropout are in evaluation mode."""
    return algorithm.policy(spec).to(device).eval()


@dataclass(frozen=True)
class ActorConfig:
    """How one actor collects rollouts."""

    seed: int
    first_stream: int  # number of its first env stream in the replay
    chunk_length: int  # vector steps per rollout sent
    exploration: tuple[float, ...] | Exploration  # a constant per env, or a schedule
    actor_priorities: bool  # compute the initial priority of each row
    recreate_every: int = 0  # vector steps after which envs are recreated; 0: never
    double_buffered: bool = True  # step two halves of the envs in turn, if their number is even
    device: str = "cpu"
    stagger: bool = False  # truncate the first episodes at different times


def initial_sequence_priority(algorithm: AlgorithmConfig[Any]) -> InitialPriority | None:
    """Return how the algorithm computes initial priorities of sequences; None if it does not."""
    return algorithm.initial_priority if isinstance(algorithm, PrioritizesSequences) else None


def make_recorder(
    algorithm: AlgorithmConfig[Any], env: EnvConfig, config: ActorConfig, first: int, policy: Policy
) -> ChunkRecorder | TrajectoryRecorder | VectorSequenceRecorder:
    """Build the recorder of what the algorithm learns from: trajectories, sequences, or chunks of rows."""
    experience, first_stream = algorithm.experience, config.first_stream + first
    if isinstance(experience, TrajectorySpec):
        return TrajectoryRecorder(env.envs, experience, first_stream)
    if isinstance(experience, SequenceSpec):
        priority = initial_sequence_priority(algorithm) if config.actor_priorities else None
        return VectorSequenceRecorder(env.envs, experience, first_stream, priority)
    windows = experience.within_time_limit(env.spec.episode_limit)
    values = policy if config.actor_priorities else None
    return ChunkRecorder(env.envs, first_stream, config.chunk_length, windows, values)


def make_sampler(algorithm: AlgorithmConfig[Any], env: EnvConfig, config: ActorConfig) -> Sampler:
    """Build a policy and one collector, or two that are stepped in turn."""
    policy = make_policy(algorithm, env.spec, config.device)
    parts = 2 if config.double_buffered and not config.recreate_every and env.envs % 2 == 0 else 1
    part_env = part_of(env, parts)
    collectors: list[Collector[Any]] = []
    recorders: list[StatefulRecorder] = []
    for part in range(parts):
        first = part * part_env.envs
        recorder = make_recorder(algorithm, part_env, config, first, policy)
        exploration = config.exploration
        if isinstance(exploration, tuple):
            exploration = PerEnv(exploration[first : first + part_env.envs])
        elif parts > 1:
            exploration = exploration.share(parts)
        seed = derive_seed(config.seed, f"half {part}") if parts > 1 else config.seed
        make_env: Callable[[int], VectorEnv] = partial(part_env.make, device=config.device)
        make_env = StaggeredMake(make_env) if config.stagger else make_env
        factory = EnvFactory(make_env, seed, config.recreate_every)
        collectors.append(Collector(factory, policy, recorder, exploration))
        recorders.append(recorder)
    return Sampler(policy, collectors, recorders)


def part_of(env: EnvConfig, parts: int) -> EnvConfig:
    """Return the config of one of `parts` equal parts of the envs and of their threads."""
    part = env.with_envs(env.envs // parts)
    threads = getattr(part, "threads", None)
    if threads and parts > 1:
        part = dataclasses.replace(part, threads=max(1, threads // parts))  # type: ignore[type-var]
    return part


def add_evaluator(
    program: Program,
    algorithm: AlgorithmConfig[Any],
    env: EnvConfig,
    weights: WeightSource,
    settings: RunSettings,
    device: str = "cpu",
) -> None:
    """Add a node that evaluates the newest policy on schedule, in its own envs on `device`."""
    evaluation, evaluation_env = settings.evaluation, env.for_evaluation()
    program.add(
        "evaluator",
        Evaluator,
        partial(evaluation_env.with_envs(evaluation.episodes).make, device=device),
        build(make_policy, algorithm, env.spec, device),
        weights,
        derive_seed(settings.seed, "evaluate"),
        evaluation.step_limit(evaluation_env.spec),
        evaluation.explore,
    )
    program.schedule("evaluator", Schedule(evaluation.env_steps, evaluation.seconds))
