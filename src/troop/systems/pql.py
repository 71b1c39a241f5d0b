"""PQL: Li et al. 2023, "Parallel Q-Learning: Scaling Off-policy Reinforcement Learning" (2307.12983).

An actor, a learner of critics and a learner of the policy, all at once, each learner with its own replay, all
held to each other by counts. docs/systems/pql.md has the picture, and what differs from the paper.
"""

from __future__ import annotations

from dataclasses import dataclass

from troop.core.algorithm import Splittable
from troop.core.batch import NStep
from troop.core.config import ranged
from troop.core.env import Continuous, EnvConfig, EnvSpec
from troop.core.errors import BadInput
from troop.core.exploration import Drawn, Exploration
from troop.core.program import Program, build, derived
from troop.replay.observations import Observations, seen
from troop.replay.paced import Beat, Paced
from troop.replay.uniform import Replay, Size
from troop.roles.actor import Actor
from troop.roles.learner import Follow, Learner, Pace
from troop.roles.way import Fan, Way
from troop.roles.weights import Weights
from troop.systems.collecting import Plan, add_evaluator, alike, hands, n_step, stream_length
from troop.systems.devices import placed
from troop.systems.setting import Setting


@dataclass(frozen=True)
class PQL:
    """Actor, critic learner, policy learner: each on a host of its own, with the weights between them."""

    beta_av: float = ranged(8.0, above=0)
    """Critic updates for each vector step of the actor: 8 is the paper's beta_a:v of 1:8. A vector step is
    counted as one env step of each env."""
    beta_pv: float = ranged(2.0, above=0)
    """Critic updates for each policy update: 2 is the paper's beta_p:v of 1:2."""
    free_running: bool = False
    """Nobody waits for anybody: both ratios are only measured."""
    tolerance: float = ranged(2.0, low=0)
    """Vector steps by which actor and learners may be apart from their ratios before one side waits; at least
    those of a piece, and an update."""
    batch: int = ranged(8192, low=1)
    """Rows of an update, of critics and policy alike."""
    capacity: int = ranged(5_000_000, low=1)
    """Rows of the critics' replay over all envs; the oldest give way."""
    observations: int = ranged(0, low=0)
    """Rows of the policy's replay, which are observations only; 0 for as many as the critics have."""
    warmup: int = ranged(32, low=1)
    """Vector steps before the first update."""
    publish: float = ranged(1.0, above=0)
    """Vector steps' worth of updates after which a learner tells the others its net."""
    length: int = ranged(1, low=1)
    """Vector steps that the actor sends in one piece."""
    overlap: bool = False
    """The actor steps an even number of envs in two halves, choosing for one while the other simulates:
    worth it where it is the slowest of the three, and simulating takes longer than choosing."""
    devices: str = ""
    """Where each role computes, as actor=cuda:0,critic=cuda:1,policy=cuda:1. Who is not named: learners on
    --device, the actor on the CPU."""
    folder: str = ""
    """Keep both replays in files of this folder instead of in memory."""
    save_replay: bool = True
    """Put the replays into checkpoints; without it a resumed run fills them anew."""
    renewal: int = ranged(0, low=0)
    """Vector steps after which envs are made anew, so that a resume can play them back; 0: never, and a
    resumed run starts new episodes."""

    def program(self, algorithm: Splittable, env: EnvConfig, setting: Setting) -> Program:
        """Learners hold the weights, the actor holds both stores and the policies; nobody holds the actor."""
        program, spec, seed = Program("pql"), env.spec, setting.seed
        experience, device = self.checked(algorithm, spec), self.placed(setting)
        with program.host("weights"):
            policies = program.add("policies", Weights)
            critics = program.add("critics", Weights, "critic")
        with program.host("policy"):  # a store lies where its learner computes: drawing from it is local
            rows, where = self.observations or self.capacity, device["policy"]
            observations = program.add(
                "observations",
                Paced,
                build(Observations, spec, rows, derived(seed, "observations"), where, self.folder),
                *self.paced("observations", "policy", env.envs, where),
            )
            half, follow = algorithm.policy_half, build(Follow, critics, "policy", "critic", False)
            learner = build(alike, half, spec, seed, where)
            program.add(
                "policy", Learner, learner, observations, policies, self.pace("policy"), where, follow
            )
        with program.host("critic"):
            size, where = self.size(spec, experience), device["critic"]
            transitions = program.add(
                "transitions",
                Paced,
                build(Replay, spec, experience, size, derived(seed, "replay"), where),
                *self.paced("transitions", "critic", env.envs, where),
            )
            half, follow = algorithm.critic_half, build(Follow, policies, "critic", "policy", True)
            learner = build(alike, half, spec, seed, where)
            program.add("critic", Learner, learner, transitions, critics, self.pace("critic"), where, follow)
        stores = build(Fan, [build(Way, transitions), build(Way, observations, seen)])
        plan = self.plan(algorithm.exploration, env.envs, setting, device["actor"])
        program.add("actor", Actor, build(hands, algorithm, env, plan), stores, policies, 0)
        add_evaluator(program, algorithm, env, policies, setting)
        return program

    def checked(self, algorithm: Splittable, spec: EnvSpec) -> NStep:
        """The windows to be drawn; BadInput if these settings cannot work together."""
        name = type(algorithm).__name__
        if not (hasattr(algorithm, "critic_half") and hasattr(algorithm, "policy_half")):
            raise BadInput(
                f"PQL learns critics and policy in two places, and {name} cannot be split; "
                "use FastTD3 (with TD3 and DDPG) or SAC."
            )
        if not isinstance(spec.action, Continuous):
            raise BadInput(f"{spec.id} has discrete actions; PQL takes continuous ones.")
        if reason := algorithm.refuse_split():
            raise BadInput(f"{reason}.")
        experience = n_step(algorithm)
        if self.warmup <= experience.n:
            raise BadInput(
                f"--system.warmup is {self.warmup}; it must be above the {experience.n} steps of a window."
            )
        return experience

    def placed(self, setting: Setting) -> dict[str, str]:
        """The device of each role."""
        usual = {"actor": "cpu", "critic": setting.device, "policy": setting.device}
        return placed(self.devices, usual)

    def updates(self, learner: str) -> float:
        """Updates of a learner for each vector step."""
        return self.beta_av if learner == "critic" else self.beta_av / self.beta_pv

    def paced(self, name: str, learner: str, envs: int, device: str) -> tuple[str, Beat, int, bool, str]:
        """What a store is told besides its rows."""
        wanted = 0.0 if self.free_running else self.updates(learner)
        beat = Beat(learner, wanted, max(self.tolerance, self.length), self.batch, envs)
        return name, beat, self.warmup, self.save_replay, device

    def pace(self, learner: str) -> Pace:
        """How a learner draws and tells."""
        return Pace(self.batch, ahead=1, publish=max(1, round(self.publish * self.updates(learner))))

    def size(self, spec: EnvSpec, experience: NStep) -> Size:
        """Rows of each env in the critics' replay."""
        least = max(self.length + experience.n, self.warmup) + 1
        return Size(stream_length(spec, self.capacity, spec.envs, least), 1, self.folder)

    def plan(self, exploration: Exploration, envs: int, setting: Setting, device: str) -> Plan:
        """How the actor collects: noise is mixed, each env with its own for good."""
        explore: Exploration | tuple[float, ...] = exploration
        if isinstance(exploration, Drawn):
            explore = mixed(envs, exploration.low, exploration.high)
        duet = self.overlap and not setting.deterministic
        seed = derived(setting.seed, "actor")
        return Plan(seed, 0, self.length, explore, False, self.renewal, duet, device)


def mixed(envs: int, low: float, high: float) -> tuple[float, ...]:
    """sigma_i = low + (i - 1) / (N - 1) (high - low) of env i = 1..N; one alone has `high`."""
    if envs == 1:
        return (high,)
    return tuple(low + i / (envs - 1) * (high - low) for i in range(envs))
