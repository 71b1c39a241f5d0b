"""OnPolicy: one role collects a rollout and learns from it, in turn, as PPO and A2C do."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from troop.core.algorithm import Algorithm, AlgorithmConfig, DividesBatches
from troop.core.batch import SequenceSpec, Trajectory, TrajectorySpec
from troop.core.config import bounded
from troop.core.env import EnvConfig, EnvSpec
from troop.core.errors import BadInput
from troop.core.program import Program, build, derive_seed
from troop.core.system import RunSettings
from troop.replay.recorders.trajectories import TrajectoryRecorder
from troop.replay.trajectory_queue import TrajectoryQueue
from troop.roles.collector import EnvFactory
from troop.roles.staggered_starts import StaggeredMake
from troop.roles.trainer import Trainer
from troop.roles.update_schedule import UpdateSchedule
from troop.systems.components import Membership, add_evaluator, add_trainer_node, affordable_steps


def trajectory_experience(
    algorithm: AlgorithmConfig[Trajectory], system: str, streams: int
) -> TrajectorySpec:
    """Return the trajectories that the algorithm learns from, in batches of `streams` env streams.

    Raises BadInput if it learns from a replay, or if such batches do not divide into its minibatches.
    """
    experience = algorithm.experience
    if not isinstance(experience, TrajectorySpec):
        kind = "replayed sequences" if isinstance(experience, SequenceSpec) else "n-step transitions"
        raise BadInput(
            f"{type(algorithm).__name__} learns from {kind}, but the {system} system collects "
            "trajectories; use PPO, IMPALA, APPO or UNREAL."
        )
    if isinstance(algorithm, DividesBatches) and (reason := algorithm.indivisible_reason(streams)):
        raise BadInput(f"{reason}.")
    return experience


@dataclass(frozen=True)
class OnPolicy:
    """A trainer and an evaluator."""

    recreate_every: int = bounded(5_000, low=0)
    """Vector steps after which the envs are recreated, so that a resumed run can restore them by repeating
    their actions; more if the time limit is longer, so that every env completes episodes. 0, or actions of
    more than 256 MB: never, and a resumed run starts new episodes."""

    stagger: bool = True
    """Truncate the first episode of each env at a different time, so that the envs are in different phases
    of their episodes."""

    def program(
        self, algorithm: AlgorithmConfig[Trajectory], env: EnvConfig, settings: RunSettings
    ) -> Program:
        """The evaluator pulls the policy from the trainer."""
        program, device = Program("on-policy"), settings.device
        learner = build(algorithm.algorithm, env.spec, device=device)
        trainer = self.add_trainer(program, "trainer", algorithm, env, settings, learner)
        add_evaluator(program, algorithm, env, trainer, settings, device)
        return program

    def add_trainer(
        self,
        program: Program,
        name: str,
        algorithm: AlgorithmConfig[Trajectory],
        env: EnvConfig,
        settings: RunSettings,
        learner: Algorithm[Trajectory],
        membership: Membership | None = None,
    ) -> Trainer[Trajectory, Trajectory]:
        """Add a node that collects rollouts and learns from each, alone or as a member of a group."""
        experience = trajectory_experience(algorithm, program.name, env.envs)
        make_env = partial(env.make, device=settings.device)
        return add_trainer_node(
            program,
            name,
            membership,
            EnvFactory(
                StaggeredMake(make_env) if self.stagger else make_env,
                derive_seed(settings.seed, "train"),
                self.recreate_interval(env.spec),
            ),
            learner,
            build(TrajectoryRecorder, env.envs, experience),
            build(TrajectoryQueue, env.envs),
            algorithm.exploration,
            UpdateSchedule(env.envs, 1.0),
        )

    def recreate_interval(self, spec: EnvSpec) -> int:
        """Return `recreate_every`, or more so that each env completes an episode after its staggered first.

        0 if the actions of so many steps exceed 256 MB.
        """
        if not self.recreate_every:
            return 0
        steps = max(self.recreate_every, 2 * (spec.episode_limit or 0) + 2)
        return steps if steps <= affordable_steps(spec) else 0
