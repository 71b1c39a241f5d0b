"""PQL: Li et al. 2023, "Parallel Q-Learning: Scaling Off-policy Reinforcement Learning" (2307.12983).

An actor, a critic learner and a policy learner run concurrently, each learner with its own replay; the
replays keep the ratios between their steps. docs/explanation/systems/pql.md has a diagram and the
differences from the paper.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, cast

from troop.core.algorithm import AlgorithmConfig, SplitAlgorithmConfig
from troop.core.batch import NStep, Transition
from troop.core.config import bounded
from troop.core.env import Continuous, EnvConfig, EnvSpec
from troop.core.errors import BadInput
from troop.core.exploration import Exploration
from troop.core.program import MetricRatio, Program, build, derive_seed
from troop.core.system import RunSettings
from troop.replay.limiter import RatioLimited, UpdateRatio
from troop.replay.observations import ObservationBuffer, observations_only
from troop.replay.prioritized import PriorityConfig
from troop.replay.uniform import ReplaySize
from troop.roles.actor import Actor
from troop.roles.learner import Learner, LearnerConfig, PeerWeights
from troop.roles.replay_sender import ReplaySender, Tee
from troop.roles.weights import Weights
from troop.systems.components import (
    ActorConfig,
    add_evaluator,
    auto_compile,
    make_replay,
    make_sampler,
    n_step_experience,
    rows_per_env,
    seeded_learner,
)
from troop.systems.devices import parse_devices

LearnerName = Literal["critic", "policy"]


@dataclass(frozen=True)
class PQL:
    """Actor, critic learner and policy learner, each on its own host, and the weights they exchange."""

    beta_av: float = bounded(8.0, above=0)
    """Critic updates per vector step of the actor: 8 is the paper's beta_a:v of 1:8. A vector step is one env
    step of each env."""
    beta_pv: float = bounded(2.0, above=0)
    """Critic updates per policy update: 2 is the paper's beta_p:v of 1:2."""
    free_running: bool = False
    """No role waits for another: both ratios are only measured."""
    tolerance: float = bounded(2.0, low=0)
    """Vector steps by which a ratio may be missed before one side waits; at least --system.chunk-length, and
    one update."""
    batch_size: int = bounded(8192, low=1)
    """Rows per update of the critics and of the policy."""
    replay_capacity: int = bounded(5_000_000, low=1)
    """Rows of the critics' replay, over all envs; the oldest are overwritten."""
    observation_capacity: int = bounded(0, low=0)
    """Rows of the policy's replay, which stores observations only; 0: as many as replay_capacity."""
    learning_starts: int = bounded(32, low=1)
    """Vector steps before the first update."""
    priority: PriorityConfig = field(default_factory=PriorityConfig)
    publish_every: float = bounded(1.0, above=0)
    """Vector steps between two publications of a learner's weights, counted by its updates."""
    chunk_length: int = bounded(1, low=1)
    """Vector steps per message of the actor to the replays."""
    overlap: bool = False
    """The actor steps an even number of envs in two halves, acting for one half while the other simulates;
    useful if the actor is the slowest of the three roles and simulating takes longer than acting."""
    devices: str = ""
    """Device of each role, such as actor=cuda:0,critic=cuda:1,policy=cuda:1. By default learners use --device
    and the actor uses the CPU."""
    replay_dir: str = ""
    """Directory of files that hold both replays instead of memory."""
    save_replay: bool = True
    """Include the replays in checkpoints; without it a resumed run starts with empty replays."""
    recreate_every: int = bounded(0, low=0)
    """Vector steps after which the envs are recreated, so that a resumed run can restore them by repeating
    their actions; 0: never, and a resumed run starts new episodes. If not 0, overlap has no effect."""

    def program(
        self, algorithm: AlgorithmConfig[Transition], env: EnvConfig, settings: RunSettings
    ) -> Program:
        """Learners call the weights, the actor calls replays and weights; no role calls the actor."""
        program, spec, seed = Program("pql"), env.spec, settings.seed
        split, experience = split_config(algorithm, spec), n_step_experience(algorithm, spec, program.name)
        size, devices = self.replay_size(spec, experience), self.role_devices(settings)
        with program.host("weights"):
            policies = program.add("policies", Weights)
            critics = program.add("critics", Weights, "critic")
        with program.host("policy"):  # a replay is on the host of its learner: sampling copies nothing
            device, rows = devices["policy"], self.observation_capacity or self.replay_capacity
            buffer_seed = derive_seed(seed, "observations")
            observations = program.add(
                "observations",
                RatioLimited,
                build(ObservationBuffer, spec, rows, buffer_seed, device, self.replay_dir),
                *self.ratio_args("observations", "policy", env.envs, device),
            )
            learner = build(seeded_learner, split.actor_learner, spec, seed, device)
            peer, config = (
                build(PeerWeights, critics, "policy", "critic", False),
                self.learner_config("policy"),
            )
            compilation = auto_compile(split, env, settings, device, "actor_learner")
            program.add("policy", Learner, learner, observations, policies, config, device, peer, compilation)
        with program.host("critic"):
            device = devices["critic"]
            transitions = program.add(
                "transitions",
                RatioLimited,
                build(make_replay, spec, experience, size, self.priority, seed, device),
                *self.ratio_args("transitions", "critic", env.envs, device),
            )
            learner = build(seeded_learner, split.critic_learner, spec, seed, device)
            peer, config = (
                build(PeerWeights, policies, "critic", "policy", True),
                self.learner_config("critic"),
            )
            compilation = auto_compile(split, env, settings, device, "critic_learner")
            program.add("critic", Learner, learner, transitions, critics, config, device, peer, compilation)
        actor = self.actor_config(algorithm.exploration, env.envs, settings, devices["actor"])
        senders = [build(ReplaySender, transitions), build(ReplaySender, observations, observations_only)]
        sampler, replays = build(make_sampler, algorithm, env, actor), build(Tee, senders)
        program.add("actor", Actor, sampler, replays, policies, 0)
        add_evaluator(program, algorithm, env, policies, settings)
        self.report_ratios(program)
        return program

    def report_ratios(self, program: Program) -> None:
        """Report critic updates per vector step and per policy update, as the two replays count them."""
        beta_av, beta_pv = (None, None) if self.free_running else (self.beta_av, self.beta_pv)
        program.report_ratio(
            MetricRatio("beta_av", ("critic/updates",), ("critic/steps",), "critic updates/step", beta_av)
        )
        # Each replay reads its own two counts at one moment, so hosts may report at different times.
        numerator, denominator = ("critic/updates", "policy/steps"), ("critic/steps", "policy/updates")
        program.report_ratio(MetricRatio("beta_pv", numerator, denominator, "per policy update", beta_pv))

    def role_devices(self, settings: RunSettings) -> dict[str, str]:
        """Return the device of each role."""
        defaults = {"actor": "cpu", "critic": settings.device, "policy": settings.device}
        return parse_devices(self.devices, defaults)

    def updates_per_step(self, learner: LearnerName) -> float:
        """Return the updates of a learner per vector step."""
        return self.beta_av if learner == "critic" else self.beta_av / self.beta_pv

    def ratio_args(
        self, name: str, learner: LearnerName, envs: int, device: str
    ) -> tuple[str, UpdateRatio, int, bool, str]:
        """Return the arguments of a RatioLimited replay after its buffer."""
        updates = 0.0 if self.free_running else self.updates_per_step(learner)
        tolerance = max(self.tolerance, self.chunk_length)
        ratio = UpdateRatio(learner, updates, tolerance, self.batch_size, envs)
        return name, ratio, self.learning_starts, self.save_replay, device

    def learner_config(self, learner: LearnerName) -> LearnerConfig:
        """Return how a learner samples and publishes."""
        publish_every = max(1, round(self.publish_every * self.updates_per_step(learner)))
        return LearnerConfig(self.batch_size, prefetch=1, publish_every=publish_every)

    def replay_size(self, spec: EnvSpec, experience: NStep) -> ReplaySize:
        """Return the rows per env of the critics' replay; BadInput if they are too few to learn from."""
        if self.learning_starts <= experience.n:
            raise BadInput(
                f"--system.learning-starts is {self.learning_starts}; it must be above --algorithm.n-step, "
                f"{experience.n}."
            )
        minimum = max(self.chunk_length + experience.n, self.learning_starts) + 1
        return ReplaySize(rows_per_env(spec, self.replay_capacity, spec.envs, minimum), 1, self.replay_dir)

    def actor_config(
        self, exploration: Exploration, envs: int, settings: RunSettings, device: str
    ) -> ActorConfig:
        """Return how the actor collects: each env keeps its own exploration value during the whole run."""
        return ActorConfig(
            derive_seed(settings.seed, "actor"),
            first_stream=0,
            chunk_length=self.chunk_length,
            exploration=mixed_exploration(exploration, envs),
            actor_priorities=False,
            recreate_every=self.recreate_every,
            double_buffered=self.overlap and not settings.deterministic,
            device=device,
        )


def mixed_exploration(exploration: Exploration, envs: int) -> tuple[float, ...]:
    """Return the paper's mixed noise, sigma_i = low + (i - 1) / (N - 1) (high - low) of env i = 1..N.

    The formula has no value for N = 1: a single env has `high`.
    """
    return exploration.per_env(max(2, envs))[-envs:]


def split_config(algorithm: AlgorithmConfig[Transition], spec: EnvSpec) -> SplitAlgorithmConfig:
    """Return the algorithm typed as one that can be split; BadInput if it cannot, or not on this env."""
    if not (hasattr(algorithm, "critic_learner") and hasattr(algorithm, "actor_learner")):
        raise BadInput(
            "PQL trains critics and policy on separate hosts, and "
            f"{type(algorithm).__name__} cannot be split; use TD3Config, SACConfig or FlashSACConfig."
        )
    if not isinstance(spec.action, Continuous):
        raise BadInput(f"{spec.id} has discrete actions; PQL needs continuous ones.")
    split = cast(SplitAlgorithmConfig, algorithm)
    if reason := split.unsplittable_reason(spec):
        raise BadInput(f"{reason}.")
    return split
