"""troop doctor: versions, devices and threads of this machine, and the memory that a run needs."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import itertools
import platform
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from troop.cli.parse import Parser
from troop.core.errors import BadInput

if TYPE_CHECKING:
    from troop.experiment import Experiment
    from troop.systems import SEED

DESCRIPTION = """\
Print what this machine offers: cores, memory, disk, CUDA devices, installed libraries.

With --env, also estimate the memory of a run before it starts: replay, learner and batch.
"""
EPILOG = """\
examples:
  troop doctor
  troop doctor --recipe apex-dqn --env Pong-v5
  troop doctor --env HumanoidWalk-v1 --envs 1024 --replay-capacity 5000000
"""
EXTRAS = {
    "torch": None,
    "gymnasium": None,
    "envpool": "trooprl[envpool]",
    "tensorboard": "trooprl[tensorboard]",
    "matplotlib": "trooprl[plots]",
    "mujoco": "trooprl[video]",
    "imageio": "trooprl[video]",
    "onnx": "trooprl[export]",
}  # library: the extra that installs it


def run(argv: list[str]) -> int:
    """Print the report."""
    parser = Parser("doctor", DESCRIPTION, EPILOG)
    parser.add_argument("--recipe", default="fasttd3", help="recipe to estimate (default fasttd3)")
    parser.add_argument("--env", metavar="ID", help="env to estimate for")
    parser.add_argument("--envs", type=int, metavar="N", help="number of envs (default: the recipe's)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda:N (default cpu)")
    parser.add_argument(
        "--replay-capacity", type=int, metavar="N", help="rows of replay (default: the recipe's)"
    )
    args = parser.parse(argv)
    for flag, value in (("--envs", args.envs), ("--replay-capacity", args.replay_capacity)):
        if value is not None and value < 1:
            raise BadInput(f"{flag} is {value}; it must be at least 1.")
    lines = itertools.chain(_machine(), _libraries())
    if args.env:
        lines = itertools.chain(
            lines, _estimate(args.recipe, args.env, args.envs, args.device, args.replay_capacity)
        )
    from troop.logs.status_line import StatusLine

    with StatusLine("loading libraries") as status:
        for line in lines:
            status.print(line)
            status.update("measuring" if args.env else "looking for libraries")
    return 0


def _machine() -> Iterator[str]:
    import psutil
    import torch

    from troop.core.devices import bf16_units, cpp_compiler
    from troop.core.memory import free_memory
    from troop.engines.runtime import cores

    memory = psutil.virtual_memory()
    yield f"python     {platform.python_version()} on {platform.system()} {platform.machine()}"
    yield f"cores      {cores()} usable; torch uses {torch.get_num_threads()} threads by default"
    usable = f"{free_memory() / 1e9:.1f} GB free for this process"
    yield f"memory     {usable}; the machine has {memory.total / 1e9:.1f} GB"
    yield f"disk       {shutil.disk_usage(Path.cwd()).free / 1e9:.1f} GB free in the current directory"
    bf16 = "has bf16 units" if bf16_units("cpu") else "no bf16 units: --amp would be 100 times slower"
    yield f"cpu        {torch.backends.cpu.get_cpu_capability()}; {bf16}"
    if not torch.cuda.is_available():
        yield "cuda       torch finds no device: use --device cpu; recipes then choose small networks"
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        bf16 = "bf16" if bf16_units(f"cuda:{index}") else "no bf16"
        name = torch.cuda.get_device_name(index)
        yield f"cuda:{index}     {name}, {free / 1e9:.1f} of {total / 1e9:.1f} GB free, {bf16}"
    compiler, installed = cpp_compiler()
    yield f"compile    {compiler if installed else f'{compiler} is not installed: --compile needs it'}"


def _libraries() -> Iterator[str]:
    for name, extra in EXTRAS.items():
        if importlib.util.find_spec(name) is not None:
            yield f"{name:10} {importlib.metadata.version(name)}"
        else:
            yield f"{name:10} not installed" + (f": pip install '{extra}'" if extra else "")
    if sys.platform == "linux":
        import ctypes.util

        egl = ctypes.util.find_library("EGL")
        cure = "MuJoCo needs EGL: apt-get install libegl1 libgl1-mesa-dri"
        yield f"video      {'EGL is installed' if egl else cure}"


def _estimate(recipe: str, env: str, envs: int | None, device: str, capacity: int | None) -> Iterator[str]:
    import torch

    from troop import api
    from troop.central_memory import sequence_bytes
    from troop.core.batch import SequenceSpec, TrajectorySpec
    from troop.env_memory import bytes_per_copy, count_copies
    from troop.replay.storage.ring import Layout
    from troop.start_notes import unread_observations
    from troop.systems import PQL, SEED

    experiment = api.make_experiment(recipe, env, envs, device)
    experiment.check()
    spec = experiment.env.spec
    rows, batch_size = _stored_rows(experiment, capacity), _batch_size(experiment)
    layout = Layout.of(spec)
    shapes = {name: field.shape for name, field in spec.obs.items()}
    yield f"\n{recipe} on {spec.id}: {spec.envs} envs, observations {shapes}, {spec.action}"
    for sentence in unread_observations(experiment):
        yield f"unread     {sentence}"
    experience = experiment.algorithm.experience
    store = "rollouts" if isinstance(experience, TrajectorySpec) else "replay"
    unit, row_bytes = "rows", layout.row_bytes
    if isinstance(experience, SequenceSpec):
        unit, row_bytes = "sequences", sequence_bytes(experiment.algorithm, spec)
        rows //= experience.length
    yield f"{store:10} {rows:,} {unit} x {row_bytes:,} bytes = {rows * row_bytes / 1e9:.3f} GB on {device}"
    if isinstance(experiment.system, PQL):
        observations = experiment.system.observation_capacity or rows
        row_bytes = sum(torch.Size(field.shape).numel() * field.dtype.itemsize for field in spec.obs.values())
        total = observations * row_bytes / 1e9
        yield f"policy     {observations:,} observations x {row_bytes} bytes = {total:.3f} GB"
    if isinstance(experiment.system, SEED):
        yield from _central(experiment.system, experiment)
    training, evaluation = count_copies(experiment)
    each = bytes_per_copy(experiment.env)
    copies = f"{training:,} for training and {evaluation:,} for evaluation x {each / 1e6:.1f} MB (measured)"
    yield f"envs       {copies} = {(training + evaluation) * each / 1e9:.3f} GB"
    algorithm = experiment.algorithm.algorithm(spec, device="cpu")
    modules = [algorithm.policy, *([algorithm.critic] if hasattr(algorithm, "critic") else [])]
    weights = sum(parameter.numel() for module in modules for parameter in module.parameters())
    gigabytes = weights * 20 / 1e9  # five float32: weight, gradient, two moments, target
    yield f"learner    {weights:,} weights; with gradients, moments and targets {gigabytes:.3f} GB"
    # Two observations per row in float32; the activations take about twice as much again.
    activations = batch_size * sum(spec.width(name) for name in spec.obs) * 4 * 6 / 1e9
    yield f"batch      {batch_size:,} rows: about {activations:.3f} GB with the activations of the networks"


def _central(system: SEED, experiment: Experiment[Any]) -> Iterator[str]:
    """Yield the memory of the processes of SEED; other systems hold a policy in every one."""
    from troop.central_memory import runner_bytes, server_bytes

    env, envs = experiment.env, system.runners // system.servers * experiment.env.envs
    runner, server = runner_bytes(env), server_bytes(experiment.algorithm, env, envs)
    yield f"runners    {system.runners} x {runner / 1e6:.0f} MB with their envs (measured)"
    yield f"servers    {system.servers} x {server / 1e6:.0f} MB with the unrolls of {envs:,} envs (measured)"


def _replay_system(experiment: Experiment[Any]) -> Any:  # noqa: ANN401 - any system
    """Return the system that holds replay and schedule: each worker of data-parallel training is one."""
    from troop.core.batch import NStep

    if isinstance(experiment.algorithm.experience, NStep):
        return getattr(experiment.system, "replays", experiment.system)
    return experiment.system


def _stored_rows(experiment: Experiment[Any], capacity: int | None) -> int:
    """Return the steps in the replay; of a system without one, those of the trajectories that it holds."""
    from troop.core.batch import TrajectorySpec

    system, experience = _replay_system(experiment), experiment.algorithm.experience
    if isinstance(experience, TrajectorySpec):
        if capacity is not None:
            raise BadInput(f"--replay-capacity is {capacity}, but {experiment.recipe} has no replay.")
        copies = getattr(system, "queue_size", 1) * getattr(system, "learners", 1)
        return int(copies * _batch_size(experiment))
    rows = capacity or getattr(system, "replay_capacity", 0) or system.replay.capacity
    return int(rows * getattr(experience, "length", 1))


def _batch_size(experiment: Experiment[Any]) -> int:
    """Return the rows of one batch; a batch of trajectories has the steps of each of its env streams."""
    system = _replay_system(experiment)
    holders = [getattr(system, name, None) for name in ("schedule", "learner")]
    sizes = [holder.batch_size for holder in (*holders, system) if hasattr(holder, "batch_size")]
    rows = int(sizes[0]) if sizes else experiment.env.envs
    return rows * int(getattr(experiment.algorithm.experience, "length", 1))
