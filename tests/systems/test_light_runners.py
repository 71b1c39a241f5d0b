"""Runners on the processes engine: no torch, numba or Ray, little memory; other observations are refused."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest
from host_killer import host_processes
from recording_observer import RecordingObserver

from troop.algorithms import ImpalaConfig
from troop.core.engine import Until
from troop.core.errors import BadInput
from troop.core.system import Evaluation, RunSettings
from troop.engines import Processes
from troop.engines.processes.light_process import modules_of
from troop.envs import EnvPool, FrameConfig, Gymnasium, Toy
from troop.systems import SEED

SETTINGS = RunSettings(3, "cpu", Evaluation(episodes=1, seconds=1e9, max_episode_steps=5))
ALGORITHM = ImpalaConfig(unroll_length=5, hidden=(8,))
HEAVY = ("libtorch", "numba", "llvmlite", "_raylet")
LIMIT_BYTES = 80 << 20
ENVS = {
    "gymnasium": Gymnasium("CartPole-v1", 2),
    "toy": Toy("Countdown", 2, discrete=True, last_step=True),
    "frames": Gymnasium("outside_images:Images", 2, frames=FrameConfig(shrink=2, gray=True, stack=2)),
    "envpool": EnvPool("CartPole-v1", 2, 1),
}


class ProcessReader(RecordingObserver):
    """Reads the libraries and the memory of a runner and of the server once the run makes updates."""

    def __init__(self):
        super().__init__()
        self.mapped, self.own_bytes = {}, {}

    def log(self, counters, metrics):
        super().log(counters, metrics)
        if counters.updates >= 3 and not self.mapped:
            for name, pid in host_processes(os.getpid()).items():
                if name in ("runner0", "inference"):
                    self.mapped[name] = Path(f"/proc/{pid}/maps").read_text()
                    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
                    fields = dict(line.split(":", 1) for line in lines if ":" in line)
                    self.own_bytes[name] = 1024 * int(fields["Pss"].split()[0])

    def stop_requested(self):
        return bool(self.mapped)


@pytest.fixture
def image_module(tmp_path, monkeypatch):
    """Write a module with an env of images, and let all processes import it."""
    (tmp_path / "outside_images.py").write_text(
        """
import gymnasium
import numpy as np


class Images(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 255, (8, 8, 3), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.integers(0, 256, (8, 8, 3), dtype=np.uint8), {}

    def step(self, action):
        return self.np_random.integers(0, 256, (8, 8, 3), dtype=np.uint8), 1.0, False, False, {}
"""
    )
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.parametrize("name", ENVS)
def test_runner_process_has_no_torch_and_little_memory(name, image_module):
    if name == "envpool":
        pytest.importorskip("envpool")
    program = SEED(2, 1, 2).program(ALGORITHM, ENVS[name], SETTINGS)
    observer = ProcessReader()
    result = Processes(threads=1, log_s=0.05, checkpoint_s=1e9).run(program, Until(minutes=3), 3, observer)
    assert result.status == "stopped", "the run ended before a runner was read"
    assert not [library for library in HEAVY if library in observer.mapped["runner0"]]
    assert "libtorch" in observer.mapped["inference"]  # what the test looks for is what a heavy process has
    assert observer.own_bytes["runner0"] < LIMIT_BYTES
    assert not host_processes(os.getpid())


def test_modules_of_a_runner_import_no_torch():
    program = SEED(1).program(ALGORITHM, ENVS["gymnasium"], SETTINGS)
    node = program.nodes["runner0"]
    modules = modules_of([node.build.make, node.build])
    assert {"troop.envs.gymnasium.adapter", "troop.roles.env_runner"} <= set(modules)
    imports = "; ".join(f"import {module}" for module in [*modules, "troop.engines.processes.child"])
    code = f"import sys; {imports}; print([m for m in ('torch', 'numba', 'ray') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_runner_with_other_observations_ends_a_run_in_processes_with_that_sentence():
    program = SEED(2, 1, 2).program(ALGORITHM, ENVS["toy"], SETTINGS)
    node = program.nodes["runner1"]
    name, _, *rest = node.build.args
    other = dataclasses.replace(
        node.build, args=(name, Toy("PointMass", 1, discrete=True, last_step=True), *rest)
    )
    program.nodes["runner1"] = dataclasses.replace(node, build=other)
    engine = Processes(threads=1, log_s=0.05, checkpoint_s=1e9)
    with pytest.raises(BadInput, match=r"'obs' of runner1 is float32 \(2,\).*inference takes float32 \(1,\)"):
        engine.run(program, Until(minutes=3), 3, RecordingObserver())
    assert not host_processes(os.getpid())
