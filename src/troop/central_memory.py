"""Memory of SEED's processes and of replayed sequences, measured on their like before a run starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from troop.core.env import EnvConfig
from troop.engines.processes.single_call import call_in_process
from troop.logs.process_usage import memory_bytes
from troop.roles.env_runner import EnvGroup

if TYPE_CHECKING:
    from troop.core.algorithm import AlgorithmConfig
    from troop.core.env import EnvSpec

GROUPS = 2  # of envs in a runner
WARM_UP_STEPS = 20


def runner_bytes(env: EnvConfig) -> int:
    """Return the resident memory of a runner with its envs, measured in a process of its kind."""
    return call_in_process(_runner, (env,), light=True)


def server_bytes(algorithm: AlgorithmConfig[Any], env: EnvConfig, envs: int) -> int:
    """Return the resident memory of an inference server of `envs` envs, with their unrolls and its policy."""
    return call_in_process(_server, (algorithm, env, envs))


def sequence_bytes(algorithm: AlgorithmConfig[Any], spec: EnvSpec) -> int:
    """Return the bytes of one sequence in a replay: observations, steps, and all that the policy returns."""
    import torch

    from troop.core.batch import SequenceSpec
    from troop.core.env import Step
    from troop.replay.recorders.sequences import SequenceRecorder
    from troop.replay.sequences import SequenceReplay, SequenceReplaySize

    experience = algorithm.experience
    assert isinstance(experience, SequenceSpec)
    policy, ids = algorithm.policy(spec).eval(), torch.zeros(1, dtype=torch.int64)
    obs = {name: torch.zeros(1, *field.shape, dtype=field.dtype) for name, field in spec.obs.items()}
    state, false = policy.initial_state(1), torch.zeros(1, dtype=torch.bool)
    recorder = SequenceRecorder(1, experience)
    recorder.on_action(ids, obs, policy.act(obs, state, torch.zeros(1)), state)
    replay = SequenceReplay(spec, experience, SequenceReplaySize(1), 0)
    for sequences in recorder.on_step(ids, Step(obs, obs, torch.zeros(1), ~false, false, ~false)):
        replay.add(sequences)
    return replay.sequence_bytes


def _runner(env: EnvConfig) -> int:
    """Step envs as a runner does; return the memory of this process."""
    import numpy as np

    from troop.core.env import Continuous
    from troop.roles.runner_step import RunnerStep

    parts = GROUPS if env.envs % GROUPS == 0 else 1
    groups = [EnvGroup(env.with_envs(env.envs // parts), seed, 0, 0) for seed in range(parts)]
    kind, rows = env.spec.action, env.envs // parts
    action = np.zeros((rows, kind.size), np.float32) if isinstance(kind, Continuous) else np.zeros(rows, int)
    for _ in range(WARM_UP_STEPS):
        for group in groups:
            RunnerStep.of(group.env.step(action))
    return memory_bytes()


def _server(algorithm: AlgorithmConfig[Any], env: EnvConfig, envs: int) -> int:
    """Act for all envs once, with all memory of their unrolls in use; return the memory of this process."""
    import numpy as np
    import torch

    from troop.engines.runtime import keep_freed_pages
    from troop.replay.trajectory_queue import TrajectoryQueue
    from troop.roles.inference_server import InferenceServer
    from troop.roles.runner_step import RunnerStep
    from troop.roles.weights import Weights
    from troop.systems.seed import make_env_recorder

    keep_freed_pages()
    torch.set_num_threads(1)
    policy, weights = algorithm.policy(env.spec), Weights()
    weights.publish(0, policy.state_dict())
    recorder: Any = make_env_recorder(algorithm, envs)
    queue: TrajectoryQueue = TrajectoryQueue(1)
    server = InferenceServer(env.spec, policy, recorder, algorithm.exploration, queue, weights)
    ids, false = np.arange(envs), np.zeros(envs, dtype=bool)
    obs = {name: np.zeros((envs, *field.shape), field.dtype_name) for name, field in env.spec.obs.items()}
    server.act(ids, ids * 0, RunnerStep(obs, None, np.zeros(envs, np.float32), false, false, false))
    for arrays in (recorder.obs, recorder.rows, getattr(recorder, "extras", {})):
        for array in arrays.values():
            array[:] = 0  # memory that was never written takes none
    return memory_bytes()
