"""troop doctor: versions, devices and threads of this machine, and the memory that a run needs."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import shutil
import sys
from pathlib import Path
from typing import Any

from troop.cli.parse import Parser, echo
from troop.core.errors import BadInput

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
    _print_machine()
    _print_libraries()
    if args.env:
        _print_estimate(args.recipe, args.env, args.envs, args.device, args.replay_capacity)
    return 0


def _print_machine() -> None:
    import psutil
    import torch

    from troop.core.devices import bf16_units, cpp_compiler
    from troop.core.memory import free_memory
    from troop.engines.runtime import cores

    memory = psutil.virtual_memory()
    echo(f"python     {platform.python_version()} on {platform.system()} {platform.machine()}")
    echo(f"cores      {cores()} usable; torch uses {torch.get_num_threads()} threads by default")
    usable = f"{free_memory() / 1e9:.1f} GB free for this process"
    echo(f"memory     {usable}; the machine has {memory.total / 1e9:.1f} GB")
    echo(f"disk       {shutil.disk_usage(Path.cwd()).free / 1e9:.1f} GB free in the current directory")
    bf16 = "has bf16 units" if bf16_units("cpu") else "no bf16 units: --amp would be 100 times slower"
    echo(f"cpu        {torch.backends.cpu.get_cpu_capability()}; {bf16}")
    if not torch.cuda.is_available():
        echo("cuda       torch finds no device: use --device cpu; recipes then choose small networks")
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        bf16 = "bf16" if bf16_units(f"cuda:{index}") else "no bf16"
        name = torch.cuda.get_device_name(index)
        echo(f"cuda:{index}     {name}, {free / 1e9:.1f} of {total / 1e9:.1f} GB free, {bf16}")
    compiler, installed = cpp_compiler()
    echo(f"compile    {compiler if installed else f'{compiler} is not installed: --compile needs it'}")


def _print_libraries() -> None:
    for name, extra in EXTRAS.items():
        if importlib.util.find_spec(name) is not None:
            echo(f"{name:10} {importlib.metadata.version(name)}")
        else:
            echo(f"{name:10} not installed" + (f": pip install '{extra}'" if extra else ""))
    if sys.platform == "linux":
        import ctypes.util

        egl = ctypes.util.find_library("EGL")
        cure = "MuJoCo needs EGL: apt-get install libegl1 libgl1-mesa-dri"
        echo(f"video      {'EGL is installed' if egl else cure}")


def _print_estimate(recipe: str, env: str, envs: int | None, device: str, capacity: int | None) -> None:
    from troop import api
    from troop.env_memory import bytes_per_copy, count_copies
    from troop.replay.storage.ring import Layout

    experiment = api.make_experiment(recipe, env, envs, device)
    experiment.check()
    spec = experiment.env.spec
    system: Any = experiment.system
    rows = capacity or system.replay_capacity
    layout = Layout.of(spec)
    shapes = {name: field.shape for name, field in spec.obs.items()}
    echo(f"\n{recipe} on {spec.id}: {spec.envs} envs, observations {shapes}, {spec.action}")
    for sentence in experiment.unread_observations():
        echo(f"unread     {sentence}")
    total = rows * layout.row_bytes / 1e9
    echo(f"replay     {rows:,} rows x {layout.row_bytes} bytes = {total:.3f} GB on {device}")
    training, evaluation = count_copies(experiment)
    each = bytes_per_copy(experiment.env)
    copies = f"{training:,} for training and {evaluation:,} for evaluation x {each / 1e6:.1f} MB (measured)"
    echo(f"envs       {copies} = {(training + evaluation) * each / 1e9:.3f} GB")
    algorithm = experiment.algorithm.algorithm(spec, device="cpu")
    modules = [algorithm.policy, *([algorithm.critic] if hasattr(algorithm, "critic") else [])]
    weights = sum(parameter.numel() for module in modules for parameter in module.parameters())
    gigabytes = weights * 20 / 1e9  # five float32: weight, gradient, two moments, target
    echo(f"learner    {weights:,} weights; with gradients, moments and targets {gigabytes:.3f} GB")
    batch_size = _batch_size(system)
    # Two observations per row in float32; the activations take about twice as much again.
    activations = batch_size * sum(spec.width(name) for name in spec.obs) * 4 * 6 / 1e9
    echo(f"batch      {batch_size:,} rows: about {activations:.3f} GB with the activations of the networks")


def _batch_size(system: Any) -> int:  # noqa: ANN401 - any system
    for name in ("schedule", "learner"):
        if hasattr(system, name):
            return int(getattr(system, name).batch_size)
    return int(system.batch_size)
