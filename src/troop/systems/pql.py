"""PQL: Li et al. 2023, "Parallel Q-Learning: Scaling Off-policy Reinforcement Learning" (2307.12983).

An actor, a learner of critics and a learner of the policy, all at once, each learner with its own replay, all
held to each other by counts. docs/systems/pql.md has the picture, and what differs from the paper.
"""

from __future__ import annotations

from dataclasses import dataclass

from troop.core.algorithm import SplitAlgorithmConfig
from troop.core.batch import NStep
from troop.core.config import bounded
from troop.core.env import Continuous, EnvConfig, EnvSpec
from troop.core.errors import BadInput
from troop.core.exploration import Exploration, PerEpisodeUniform
from troop.core.program import Program, build, derive_seed
from troop.replay.observations import ObservationBuffer, observations_only
from troop.replay.ratio_limited import RatioLimited, UpdateRatio
from troop.replay.uniform import ReplaySize, UniformReplay
from troop.roles.actor import Actor
from troop.roles.learner import Learner, LearnerConfig, PeerWeights
from troop.roles.replay_sender import ReplaySender, Tee
from troop.roles.weights import Weights
from troop.systems.components import (
    ActorConfig,
    add_evaluator,
    make_sampler,
    n_step,
    seeded_learner,
    stream_length,
)
from troop.systems.devices import parse_devices
from troop.systems.settings import RunSettings


@dataclass(frozen=True)
class PQL:
    """Actor, critic learner, policy learner: each on a host of its own, with the weights between them."""

    beta_av: float = bounded(8.0, above=0)
    """Critic updates for each vector step of the actor: 8 is the paper's beta_a:v of 1:8. A vector step is
    counted as one env step of each env."""
    beta_pv: float = bounded(2.0, above=0)
    """Critic updates for each policy update: 2 is the paper's beta_p:v of 1:2."""
    free_running: bool = False
    """Nobody waits for anybody: both ratios are only measured."""
    tolerance: float = bounded(2.0, low=0)
    """Vector steps by which actor and learners may be apart from their ratios before one side waits; at least
    those of a piece, and an update."""
    batch_size: int = bounded(8192, low=1)
    """Rows of an update, of critics and policy alike."""
    replay_capacity: int = bounded(5_000_000, low=1)
    """Rows of the critics' replay over all envs; the oldest give way."""
    observation_capacity: int = bounded(0, low=0)
    """Rows of the policy's replay, which are observations only; 0 for as many as the critics have."""
    learning_starts: int = bounded(32, low=1)
    """Vector steps before the first update."""
    publish_every: float = bounded(1.0, above=0)
    """Vector steps' worth of updates after which a learner tells the others its net."""
    chunk_length: int = bounded(1, low=1)
    """Vector steps that the actor sends in one piece."""
    overlap: bool = False
    """The actor steps an even number of envs in two halves, choosing for one while the other simulates:
    worth it where it is the slowest of the three, and simulating takes longer than choosing."""
    devices: str = ""
    """Where each role computes, as actor=cuda:0,critic=cuda:1,policy=cuda:1. Who is not named: learners on
    --device, the actor on the CPU."""
    replay_dir: str = ""
    """Keep both replays in files of this folder instead of in memory."""
    save_replay: bool = True
    """Put the replays into checkpoints; without it a resumed run fills them anew."""
    recreate_every: int = bounded(0, low=0)
    """Vector steps after which envs are made anew, so that a resume can play them back; 0: never, and a
    resumed run starts new episodes."""

    def program(self, algorithm: SplitAlgorithmConfig, env: EnvConfig, setting: RunSettings) -> Program:
        """Learners hold the weights, the actor holds both stores and the policies; nobody holds the actor."""
        program, spec, seed = Program("pql"), env.spec, setting.seed
        experience, device = self.validate(algorithm, spec), self.parse_devices(setting)
        with program.host("weights"):
            policies = program.add("policies", Weights)
            critics = program.add("critics", Weights, "critic")
        with program.host("policy"):  # a store lies where its learner computes: drawing from it is local
            rows, where = self.observation_capacity or self.replay_capacity, device["policy"]
            observations = program.add(
                "observations",
                RatioLimited,
                build(
                    ObservationBuffer, spec, rows, derive_seed(seed, "observations"), where, self.replay_dir
                ),
                *self.ratio_args("observations", "policy", env.envs, where),
            )
            half, follow = algorithm.actor_learner, build(PeerWeights, critics, "policy", "critic", False)
            learner = build(seeded_learner, half, spec, seed, where)
            program.add(
                "policy", Learner, learner, observations, policies, self.pace("policy"), where, follow
            )
        with program.host("critic"):
            size, where = self.size(spec, experience), device["critic"]
            transitions = program.add(
                "transitions",
                RatioLimited,
                build(UniformReplay, spec, experience, size, derive_seed(seed, "replay"), where),
                *self.ratio_args("transitions", "critic", env.envs, where),
            )
            half, follow = algorithm.critic_learner, build(PeerWeights, policies, "critic", "policy", True)
            learner = build(seeded_learner, half, spec, seed, where)
            program.add("critic", Learner, learner, transitions, critics, self.pace("critic"), where, follow)
        stores = build(
            Tee, [build(ReplaySender, transitions), build(ReplaySender, observations, observations_only)]
        )
        plan = self.plan(algorithm.exploration, env.envs, setting, device["actor"])
        program.add("actor", Actor, build(make_sampler, algorithm, env, plan), stores, policies, 0)
        add_evaluator(program, algorithm, env, policies, setting)
        return program

    def validate(self, algorithm: SplitAlgorithmConfig, spec: EnvSpec) -> NStep:
        """The windows to be drawn; BadInput if these settings cannot work together."""
        name = type(algorithm).__name__
        if not (hasattr(algorithm, "critic_learner") and hasattr(algorithm, "actor_learner")):
            raise BadInput(
                f"PQL learns critics and policy in two places, and {name} cannot be split; "
                "use FastTD3 (with TD3 and DDPG) or SAC."
            )
        if not isinstance(spec.action, Continuous):
            raise BadInput(f"{spec.id} has discrete actions; PQL takes continuous ones.")
        if reason := algorithm.unsplittable_reason():
            raise BadInput(f"{reason}.")
        experience = n_step(algorithm)
        if self.learning_starts <= experience.n:
            raise BadInput(
                f"--system.learning-starts is {self.learning_starts}; it must be above the {experience.n} steps of a window."
            )
        return experience

    def parse_devices(self, setting: RunSettings) -> dict[str, str]:
        """The device of each role."""
        usual = {"actor": "cpu", "critic": setting.device, "policy": setting.device}
        return parse_devices(self.devices, usual)

    def updates(self, learner: str) -> float:
        """Updates of a learner for each vector step."""
        return self.beta_av if learner == "critic" else self.beta_av / self.beta_pv

    def ratio_args(
        self, name: str, learner: str, envs: int, device: str
    ) -> tuple[str, UpdateRatio, int, bool, str]:
        """What a store is told besides its rows."""
        wanted = 0.0 if self.free_running else self.updates(learner)
        beat = UpdateRatio(learner, wanted, max(self.tolerance, self.chunk_length), self.batch_size, envs)
        return name, beat, self.learning_starts, self.save_replay, device

    def pace(self, learner: str) -> LearnerConfig:
        """How a learner draws and tells."""
        return LearnerConfig(
            self.batch_size,
            prefetch=1,
            publish_every=max(1, round(self.publish_every * self.updates(learner))),
        )

    def size(self, spec: EnvSpec, experience: NStep) -> ReplaySize:
        """Rows of each env in the critics' replay."""
        least = max(self.chunk_length + experience.n, self.learning_starts) + 1
        return ReplaySize(stream_length(spec, self.replay_capacity, spec.envs, least), 1, self.replay_dir)

    def plan(self, exploration: Exploration, envs: int, setting: RunSettings, device: str) -> ActorConfig:
        """How the actor collects: noise is mixed, each env with its own for good."""
        explore: Exploration | tuple[float, ...] = exploration
        if isinstance(exploration, PerEpisodeUniform):
            explore = mixed(envs, exploration.low, exploration.high)
        duet = self.overlap and not setting.deterministic
        seed = derive_seed(setting.seed, "actor")
        return ActorConfig(seed, 0, self.chunk_length, explore, False, self.recreate_every, duet, device)


def mixed(envs: int, low: float, high: float) -> tuple[float, ...]:
    """sigma_i = low + (i - 1) / (N - 1) (high - low) of env i = 1..N; one alone has `high`."""
    if envs == 1:
        return (high,)
    return tuple(low + i / (envs - 1) * (high - low) for i in range(envs))
