"""mypy rejects an experiment whose algorithm learns from other batches than its system provides."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import troop

ROOT = Path(troop.__file__).parents[2]

WRONG = """
from dataclasses import dataclass

from troop.core.algorithm import Algorithm, Policy
from troop.core.batch import TrajectorySpec
from troop.core.env import EnvSpec
from troop.core.exploration import Exploration, LinearSchedule
from troop.core.peers import NO_PEERS, Peers
from troop.envs import Toy
from troop.experiment import Experiment
from troop.algorithms import DQNConfig, R2D2Config
from troop.systems import A3C, PQL, Apex, Gorila, OnPolicy, Sync


@dataclass
class Trajectory:
    length: int


@dataclass(frozen=True)
class TrajectoryConfig:
    @property
    def experience(self) -> TrajectorySpec:
        return TrajectorySpec(8)

    @property
    def exploration(self) -> Exploration:
        return LinearSchedule(1.0, 0.1, 100)

    def unsupported_reason(self, spec: EnvSpec) -> str | None:
        return None

    def policy(self, spec: EnvSpec) -> Policy:
        return Policy()

    def algorithm(
        self, spec: EnvSpec, peers: Peers = NO_PEERS, device: str = "cpu"
    ) -> Algorithm[Trajectory]:
        raise NotImplementedError


Experiment(Toy(), TrajectoryConfig(), Apex())  # wrong
Experiment(Toy(), TrajectoryConfig(), Sync())  # wrong
Experiment(Toy(), TrajectoryConfig(), Gorila())  # wrong
Experiment(Toy(), TrajectoryConfig(), PQL())  # wrong
Experiment(Toy(), DQNConfig(), OnPolicy())  # wrong
Experiment(Toy(), DQNConfig(), A3C())  # wrong
Experiment(Toy(), R2D2Config(), Gorila())  # wrong
"""

RIGHT = """
from troop.algorithms import (
    DQNConfig,
    FlashSACConfig,
    PPOConfig,
    R2D2Config,
    RainbowConfig,
    SACConfig,
    TD3Config,
)
from troop.core.batch import Trajectory, Transition
from troop.envs import Toy
from troop.experiment import Experiment
from troop.systems import A3C, PQL, SEED, Apex, Gorila, OnPolicy, Sync

Experiment(Toy(), DQNConfig(), Apex())
Experiment(Toy(), TD3Config(), Sync())
Experiment(Toy(), SACConfig(), PQL())
Experiment(Toy(), FlashSACConfig(), PQL())
Experiment(Toy(), RainbowConfig(), Gorila())
Experiment(Toy(), PPOConfig(), A3C())
of_trajectories: Experiment[Trajectory] = Experiment(Toy(), PPOConfig(), OnPolicy())
for system in (Apex(), Sync(), SEED()):
    sequences: Experiment[Trajectory] = Experiment(Toy(), R2D2Config(), system)
typed: Experiment[Transition] = Experiment(Toy(), DQNConfig(), Apex())
"""


@pytest.fixture(scope="module")
def errors(tmp_path_factory):
    """The errors of mypy in both files, as (file name, line)."""
    pytest.importorskip("mypy")
    directory = tmp_path_factory.mktemp("typed")
    for name, source in (("wrong_pairs.py", WRONG), ("right_pairs.py", RIGHT)):
        (directory / name).write_text(source)
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml")]
    command += ["--cache-dir", str(ROOT / ".mypy_cache"), "--no-error-summary"]
    command += [str(directory / "wrong_pairs.py"), str(directory / "right_pairs.py")]
    environ = os.environ | {"MYPYPATH": str(ROOT / "src")}
    output = subprocess.run(command, cwd=directory, env=environ, capture_output=True, text=True).stdout
    located = [line.split(":", 2) for line in output.splitlines() if ": error:" in line]
    return [(Path(name).name, int(number)) for name, number, _ in located], output


def test_wrong_pairs_are_errors_on_their_lines(errors):
    located, output = errors
    wrong = [number for number, line in enumerate(WRONG.splitlines(), 1) if line.endswith("# wrong")]
    assert len(wrong) == 7
    assert sorted({number for name, number in located if name == "wrong_pairs.py"}) == wrong, output


def test_right_pairs_have_no_errors(errors):
    located, output = errors
    assert "right_pairs.py" not in {name for name, _ in located}, output
