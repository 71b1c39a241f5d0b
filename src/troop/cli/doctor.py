"""troop doctor: versions, device, threads, and the bytes a run would need."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import shutil
import sys
from pathlib import Path

from troop.cli.parse import Parser, say
from troop.core.errors import BadInput

LIBRARIES = {
    "torch": None,
    "gymnasium": None,
    "envpool": "trooprl[envpool]",
    "tensorboard": "trooprl[tensorboard]",
    "matplotlib": "trooprl[plots]",
    "mujoco": "trooprl[video]",
    "imageio": "trooprl[video]",
}


def run(argv: list[str]) -> int:
    """Say what this machine can do; with --env, what a run of that recipe needs."""
    parser = Parser(
        "doctor", "What this machine can do; with --env, the bytes a run would need before it is started."
    )
    parser.add_argument("--recipe", default="fasttd3", help="the recipe to reckon (default fasttd3)")
    parser.add_argument("--env", help="the env to reckon for")
    parser.add_argument("--envs", type=int, help="how many copies")
    parser.add_argument("--device", default="cpu", help="cpu or cuda:N")
    parser.add_argument("--capacity", type=int, help="rows of replay, in place of the recipe's")
    args = parser.parse(argv)
    for flag, value in (("--envs", args.envs), ("--capacity", args.capacity)):
        if value is not None and value < 1:
            raise BadInput(f"{flag} is {value}; it must be at least 1.")
    _machine()
    _libraries()
    if args.env:
        _needs(args.recipe, args.env, args.envs, args.device, args.capacity)
    return 0


def _machine() -> None:
    import psutil
    import torch

    from troop.core.devices import bf16_units, cpp_compiler
    from troop.engines.runtime import cores

    memory = psutil.virtual_memory()
    say(f"python     {platform.python_version()} on {platform.system()} {platform.machine()}")
    say(f"cores      {cores()} usable; torch would use {torch.get_num_threads()} threads")
    say(f"memory     {memory.available / 1e9:.1f} GB free of {memory.total / 1e9:.1f} GB")
    say(f"disk       {shutil.disk_usage(Path.cwd()).free / 1e9:.1f} GB free here")
    bf16 = "has bf16 units" if bf16_units("cpu") else "no bf16 units: keep --algorithm.amp off (100x slower)"
    say(f"cpu        {torch.backends.cpu.get_cpu_capability()}; {bf16}")
    if not torch.cuda.is_available():
        say("cuda       none seen by torch: --device cpu, and recipes pick small nets")
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        bf16 = "bf16" if bf16_units(f"cuda:{index}") else "no bf16"
        name = torch.cuda.get_device_name(index)
        say(f"cuda:{index}     {name}, {free / 1e9:.1f} of {total / 1e9:.1f} GB free, {bf16}")
    compiler, here = cpp_compiler()
    say(f"compile    {compiler if here else f'no {compiler} here: leave --algorithm.compile off'}")


def _libraries() -> None:
    for name, extra in LIBRARIES.items():
        if importlib.util.find_spec(name) is not None:
            say(f"{name:10} {importlib.metadata.version(name)}")
        else:
            say(f"{name:10} not installed" + (f": pip install '{extra}'" if extra else ""))
    if sys.platform == "linux":
        import ctypes.util

        egl = ctypes.util.find_library("EGL")
        cure = "MuJoCo needs EGL: apt-get install libegl1 libgl1-mesa-dri"
        say(f"film       {'EGL found' if egl else cure}")


def _needs(recipe: str, env: str, copies: int | None, device: str, capacity: int | None) -> None:
    from troop import api
    from troop.replay.storage.ring import Layout

    made = api.experiment(recipe, env, copies, device)
    made.check()
    spec = made.env.spec
    rows = capacity or made.system.replay_capacity
    layout = Layout.of(spec)
    names = {name: field.shape for name, field in spec.obs.items()}
    say(f"\n{recipe} on {spec.id}: {spec.envs} envs, observations {names}, {spec.action}")
    total = rows * layout.row_bytes / 1e9
    say(f"replay     {rows:,} rows x {layout.row_bytes} bytes = {total:.3f} GB on {device}")
    module = made.algorithm.algorithm(spec, device="cpu")
    parts = [module.policy, *([module.critic] if hasattr(module, "critic") else [])]
    weights = sum(parameter.numel() for part in parts for parameter in part.parameters())
    say(f"learner    {weights:,} weights; with gradients, moments and targets {weights * 20 / 1e9:.3f} GB")
    pace = [getattr(made.system, name) for name in ("rhythm", "learner") if hasattr(made.system, name)]
    batch = (pace[0] if pace else made.system).batch
    # Two observations a row as float32, and for each what the layers keep: about as much again and twice.
    seen = sum(spec.width(name) for name in spec.obs)
    say(f"batch      {batch:,} rows: about {batch * seen * 4 * 6 / 1e9:.3f} GB with what the layers keep")
