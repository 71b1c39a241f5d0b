"""IMPALA: Espeholt et al. 2018. Actors with lagged policies send trajectories to a learner through a queue.

On the engine processes this is also the shape of TorchBeast's MonoBeast. docs/explanation/systems/impala.md
has a diagram and the differences from the paper.
"""

from __future__ import annotations

from dataclasses import dataclass

from troop.core.algorithm import AlgorithmConfig, ReusesBatches
from troop.core.batch import Trajectory
from troop.core.config import bounded
from troop.core.env import EnvConfig
from troop.core.errors import BadInput
from troop.core.flow import Source, WeightSource
from troop.core.program import Program, build, derive_seed
from troop.core.system import RunSettings
from troop.replay.circular_buffer import CircularBuffer
from troop.replay.trajectory_queue import TrajectoryQueue
from troop.roles.actor import Actor
from troop.roles.all_reduce_peers import AllReducePeers
from troop.roles.data_parallel import DataParallelLearner
from troop.roles.learner import LearnerConfig
from troop.roles.weights import Weights
from troop.systems.components import ActorConfig, add_evaluator, make_sampler, seeded_learner
from troop.systems.devices import parse_devices
from troop.systems.on_policy import trajectory_experience


@dataclass(frozen=True)
class IMPALA:
    """Actors, trajectory queue, weights, learners and evaluator, each on its own host."""

    actors: int = bounded(4, low=1, high=10_000)
    """Number of actors; each steps --envs envs."""
    batch_size: int = bounded(32, low=1)
    """Env streams per update; an update learns from batch_size x length steps."""
    learners: int = bounded(1, low=1, high=1024)
    """Learners that average their gradients; each takes batches of batch_size streams from the queue."""
    queue_size: int = bounded(1, low=1)
    """Batches that may wait for the learner; a full queue makes the actors wait."""
    queue_mb: float = bounded(4096.0, above=0)
    """Megabytes of trajectories that may wait for the learner."""
    prefetch: int = bounded(1, low=1, high=100)
    """Batches that the learner requests ahead."""
    circular_buffer_size: int = bounded(1, low=1, high=10_000)
    """Batches that each learner keeps (IMPACT's N). An update uses a random one of them; a new batch replaces
    the oldest one of a full buffer."""
    replay_times: int = bounded(1, low=1, high=10_000)
    """Updates that may use a batch of the circular buffer (IMPACT's K)."""
    weight_delay: int = bounded(0, low=0, high=10_000)
    """Updates by which the actors' weights are behind in addition; for experiments with policy lag."""
    double_buffered: bool = True
    """Actors with an even number of envs step them in two halves, acting for one half while the other
    simulates."""
    stagger: bool = True
    """Truncate the first episode of each env at a different time, so that the envs are in different phases
    of episodes that only end at the time limit."""
    devices: str = ""
    """Device of each role, such as learner=cuda:1,actor=cuda:0 or actor0=cuda:0. By default the learner uses
    --device and actors use the CPU."""

    def program(
        self, algorithm: AlgorithmConfig[Trajectory], env: EnvConfig, settings: RunSettings
    ) -> Program:
        """Actors and learner call the queue and the weights; no role calls an actor or the learner."""
        program, seed = Program("impala"), settings.seed
        trajectory_experience(algorithm, program.name, self.batch_size)
        self._check_reuse(algorithm)
        learners = ["learner", *(f"learner{rank}" for rank in range(1, self.learners))]
        defaults = dict.fromkeys(learners, settings.device)
        devices = parse_devices(self.devices, defaults | {f"actor{i}": "cpu" for i in range(self.actors)})
        streams = self.queue_size * self.batch_size * self.learners
        queue = program.add("queue", TrajectoryQueue, streams, int(self.queue_mb * 2**20), self.batch_size)
        module = "delayed policy" if self.weight_delay else "policy"
        weights = program.add("weights", Weights, module, self.weight_delay)
        newest: list[WeightSource] = [] if self.weight_delay else [weights]
        for name, group in zip(learners, program.group("learners", self.learners), strict=True):
            device, peers = devices[name], build(AllReducePeers, group)
            learner: WeightSource = program.add(
                name,
                DataParallelLearner,
                group,
                build(seeded_learner, algorithm.algorithm, env.spec, seed, device, peers),
                self._batches(queue, derive_seed(seed, f"{name} buffer")),
                weights if name == "learner" else None,
                LearnerConfig(self.batch_size, prefetch=self.prefetch, publish_every=1),
                device,
            )
            newest.append(learner)
        for i in range(self.actors):
            config = ActorConfig(
                derive_seed(seed, f"actor {i}"),
                i * env.envs,
                1,
                algorithm.exploration,
                actor_priorities=False,
                double_buffered=self.double_buffered and not settings.deterministic,
                device=devices[f"actor{i}"],
                stagger=self.stagger,
            )
            sampler = build(make_sampler, algorithm, env, config)
            program.add(f"actor{i}", Actor, sampler, queue, weights, 0)
        add_evaluator(program, algorithm, env, newest[0], settings)
        return program

    @property
    def _buffered(self) -> bool:
        return self.circular_buffer_size > 1 or self.replay_times > 1

    def _check_reuse(self, algorithm: AlgorithmConfig[Trajectory]) -> None:
        reuses = isinstance(algorithm, ReusesBatches) and algorithm.reuses_batches
        if self._buffered and not reuses:
            raise BadInput(
                f"{type(algorithm).__name__} with these settings learns from each batch once; "
                "--system.circular-buffer-size and --system.replay-times need APPO with --advantages vtrace."
            )

    def _batches(self, queue: TrajectoryQueue, seed: int) -> Source[Trajectory]:
        """Return what a learner samples: the queue, or its own circular buffer of batches of the queue."""
        if not self._buffered:
            return queue
        return build(CircularBuffer, queue, self.circular_buffer_size, self.replay_times, seed, self.prefetch)
