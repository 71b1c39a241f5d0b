"""Algorithms, networks, recipes and envs of a user: trained, resumed, evaluated, compared and loaded."""

import dataclasses
import json
import os
import re
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch

import troop
from troop.algorithms import DQNConfig, PPOConfig
from troop.api import make_experiment
from troop.cli.main import run
from troop.core.env import Discrete, EnvSpec, Field
from troop.core.errors import BadInput
from troop.experiment import Experiment
from troop.nets.user_network import UserNetwork
from troop.systems.components import make_policy

SHORT = ["--envs", "4", "--evaluation.episodes", "2", "--evaluation.max-episode-steps", "20"]
SHORT += ["--learning-starts", "5", "--batch-size", "8"]

ENV_FILE = '''
import gymnasium
import numpy as np
from gymnasium import spaces


class Walk(gymnasium.Env):
    """Position on a line; the episode ends after `limit` steps, or never."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}
    observation_space = spaces.Box(-9, 9, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, limit=10, reward=1.0, name="a", sparse=False, render_mode=None):
        self.limit, self.reward, self.name, self.sparse = limit, reward, name, sparse
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        over = self.limit is not None and self.steps >= self.limit
        return np.full(1, action, np.float32), self.reward, False, over, {}

    def render(self):
        return np.zeros((16, 16, 3), np.uint8)


def make_walk(limit=7):
    return Walk(limit)
'''


@pytest.fixture
def walk(tmp_path, monkeypatch):
    """A file walk_env.py in another directory than the working one."""
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "walk_env.py").write_text(ENV_FILE)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield folder / "walk_env.py"
    sys.modules.pop("walk_env", None)


def config_of(path):
    return json.loads((Path(path) / "config.json").read_text())


def test_example_is_trained_resumed_evaluated_exported_and_loaded_by_its_entry_points(munchausen, capsys):
    assert run(["recipes"]) == 0
    assert "munchausen" in capsys.readouterr().out
    flags = ["--entropy-tau", "0.05", "--env-steps", "200", "--run", "run"]
    assert run(["train", "munchausen", *SHORT, *flags]) == 0
    stored = config_of("run")
    assert stored["algorithm"]["kind"] == "munchausen.algorithm:MunchausenConfig"
    assert stored["algorithm"]["entropy_tau"] == 0.05 and stored["recipe"] == "munchausen"
    assert run(["resume", "run", "--env-steps", "300"]) == 0
    assert run(["eval", "run", "--episodes", "2"]) == 0
    action = troop.load_policy("run")(np.zeros(4, np.float32))
    assert action in (0, 1)
    assert run(["export", "run", "--out", "own.onnx"]) == 0
    session = pytest.importorskip("onnxruntime").InferenceSession("own.onnx")
    obs = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    assert np.array_equal(session.run(None, {"obs": obs})[0], troop.load_policy("run")(obs))


def test_recipe_algorithm_and_network_are_named_as_modules(munchausen, capsys):
    assert run(["train", "munchausen.recipe:RECIPE", *SHORT, "--env-steps", "100", "--run", "recipe"]) == 0
    names = ["--algorithm", "munchausen.algorithm:MunchausenConfig"]
    names += ["--network", "munchausen.network:make_net", "--algorithm.alpha", "0.5"]
    assert (
        run(["train", "dqn", "--env", "CartPole-v1", *names, *SHORT, "--env-steps", "100", "--run", "dqn"])
        == 0
    )
    stored = config_of("dqn")["algorithm"]
    assert stored["net"] == "munchausen.network:make_net" and stored["alpha"] == 0.5
    capsys.readouterr()
    assert run(["export", "dqn"]) == 2
    capsys.readouterr()
    assert run(["eval", "dqn"]) == 2  # the algorithm is an entry point, the network is not
    assert "munchausen.network:make_net as algorithm.net" in capsys.readouterr().err
    assert run(["eval", "dqn", "--episodes", "2", "--allow", "munchausen"]) == 0
    policy = troop.load_policy("dqn", allow=["munchausen"])
    assert isinstance(policy.module.q.outside.nets[0][0], torch.nn.Flatten)


@pytest.mark.parametrize("recipe", ["sac", "td3", "c51", "rainbow"])
def test_network_of_a_user_learns_in_every_family(munchausen, recipe):
    env = "toy:PointMass"
    experiment = make_experiment(recipe, env, 4, network="munchausen.network:make_net")
    if recipe in ("c51", "rainbow"):
        experiment = make_experiment(recipe, "gym:CartPole-v1", 4, network="munchausen.network:make_net")
    spec = experiment.env.spec
    learner = experiment.algorithm.algorithm(spec)
    obs = {"obs": torch.randn(8, spec.width())}
    action = torch.randint(2, (8,)) if recipe in ("c51", "rainbow") else torch.rand(8, 1)
    from troop.core.batch import Transition

    batch = Transition(obs, action, torch.ones(8), torch.full((8,), 0.9), obs)
    before = [p.clone() for p in learner.policy.parameters()]
    for _ in range(4):
        result = learner.update(batch)
    assert all(torch.isfinite(value).all() for value in result.metrics.values())
    assert any(not torch.equal(a, b) for a, b in zip(before, learner.policy.parameters(), strict=True))


@pytest.mark.parametrize("recipe", ["ppo", "ppo-lstm", "a3c", "impala", "impala-lstm", "appo", "r2d2"])
@pytest.mark.parametrize("env", ["gym:CartPole-v1", "Catch-v0"])
@pytest.mark.parametrize("last_step", [False, True])
def test_network_of_a_user_replaces_layers_of_actor_critics_and_r2d2(munchausen, recipe, env, last_step):
    experiment = make_experiment(recipe, env, 4, network="munchausen.network:make_net")
    env_config = dataclasses.replace(experiment.env, last_step=last_step)
    assert experiment.algorithm.unsupported_reason(env_config.spec) is None
    policy = experiment.algorithm.policy(env_config.spec)
    users = [module for module in policy.modules() if isinstance(module, UserNetwork)]
    separate = recipe in ("ppo", "a3c", "impala", "appo") and env == "gym:CartPole-v1"
    assert len(users) == (2 if separate else 1)  # actor and critic, or the layers before heads or core
    step = env_config.make(0).reset(0)
    output = policy.act(step.obs, policy.initial_state(4), torch.ones(4))
    assert len(output.action) == 4


def test_network_of_a_user_beside_an_action_mask_and_beside_an_image(munchausen):
    net = "munchausen.network:make_net"
    obs = {"obs": Field((3,)), "action_mask": Field((2,))}
    masked = EnvSpec("masked", obs, Discrete(2), 4)
    assert PPOConfig(net=net).unsupported_reason(masked) is None
    policy = PPOConfig(net=net).policy(masked)
    mask = torch.tensor([[1.0, 0.0]] * 5)
    output = policy.act({"obs": torch.randn(5, 3), "action_mask": mask}, None, torch.ones(5))
    assert output.action.eq(0).all()
    camera = EnvSpec("camera", {"image": Field((1, 8, 8)), "obs": Field((3,))}, Discrete(2), 4)
    assert PPOConfig(net=net).unsupported_reason(camera) is None
    output = (
        PPOConfig(net=net)
        .policy(camera)
        .act({"image": torch.rand(5, 1, 8, 8), "obs": torch.randn(5, 3)}, None, torch.ones(5))
    )
    assert len(output.action) == 5
    reason = DQNConfig(net=net).unsupported_reason(camera)
    assert "takes a single image, or the columns of all vectors" in reason


def test_ppo_trains_with_a_network_of_the_user_and_unreal_refuses_it(munchausen, capsys):
    names = ["--network", "munchausen.network:make_net", "--minutes", "0.05"]
    assert run(["train", "ppo", "--env", "CartPole-v1", *names, "--run", "ppo"]) == 0
    assert run(["eval", "ppo", "--episodes", "2", "--allow", "munchausen"]) == 0
    capsys.readouterr()
    assert run(["train", "unreal", "--env", "Catch-v0", *names]) == 2
    assert "need a torso of Troop" in capsys.readouterr().err


def test_tutorial_prints_the_example():
    root = Path(__file__).parents[2]
    page = (root / "docs/tutorials/own-algorithm.md").read_text()
    (printed,) = re.findall(r"```python file=munchausen.py\n(.*?)```", page, re.S)
    assert printed == (root / "examples/own_algorithm/munchausen/algorithm.py").read_text()


def test_example_is_compared(munchausen, monkeypatch):
    from troop.compare import child, session

    def in_process(self, argv, errors):
        errors.touch()
        *allow, folder, recipe, seed = argv[len(session.COMMAND) :]
        return child.run(Path(folder), recipe, int(seed), allow)

    monkeypatch.setattr(session.Session, "_run_child", in_process)
    flags = ["--env", "CartPole-v1", "--env-steps", "40", "--seeds", "1", *SHORT, "--engine.threads", "1"]
    own = ["munchausen.recipe:RECIPE", "net=dqn --network munchausen.network:make_net"]
    assert run(["compare", *own, *flags, "--run", "both"]) == 0
    for name in ("munchausen", "net"):
        assert (munchausen / "both" / name / "seed1" / "summary.json").exists()
    assert run(["compare", "--run", "both"]) == 2  # the recipe is an entry point, the network is not
    assert run(["compare", "--run", "both", "--allow", "munchausen"]) == 0


def test_env_in_a_file_is_trained_evaluated_and_played(walk, capsys):
    flags = ["--env.limit", "6", "--env.reward=2", "--env.sparse", "--env.name", "7", "--env-steps", "40"]
    name = f"{os.path.relpath(walk)}:Walk"
    assert run(["train", "dqn", "--env", name, *flags, *SHORT, "--run", "run"]) == 0
    stored = config_of("run")["env"]
    assert stored["id"] == f"{walk}:Walk"
    assert dict(stored["settings"]) == {"limit": 6, "reward": 2, "sparse": True, "name": "7"}
    sys.modules.pop("walk_env")
    assert run(["eval", "run"]) == 2
    assert f"--allow {walk}" in capsys.readouterr().err
    assert run(["eval", "run", "--episodes", "2", "--json", "--allow", str(walk)]) == 0
    assert json.loads(capsys.readouterr().out)["return_mean"] == 12
    assert run(["play", "run", "--steps", "4", "--video", "walk.gif", "--allow", str(walk)]) == 0
    assert Path("walk.gif").stat().st_size


def test_env_argument_none_is_kept(walk):
    flags = ["--env.limit", "None", "--env.no-sparse", *SHORT, "--env-steps", "40"]
    assert run(["train", "dqn", "--env", f"{walk}:Walk", *flags, "--run", "run"]) == 0
    assert dict(config_of("run")["env"]["settings"]) == {"limit": None, "sparse": False}
    assert troop.load_policy("run", allow=[str(walk)]).env.settings == (("limit", None), ("sparse", False))


def test_unknown_env_argument_is_reported_with_a_similar_one(walk, capsys):
    assert run(["train", "dqn", "--env", f"{walk}:Walk", "--env.limt", "5", "--minutes", "1"]) == 2
    assert "did you mean --env.limit?" in capsys.readouterr().err


def test_registered_env_takes_arguments(munchausen):
    flags = ["--env.sutton_barto_reward", "True", *SHORT, "--env-steps", "40", "--run", "run"]
    assert run(["train", "dqn", "--env", "gym:CartPole-v1", *flags]) == 0
    assert config_of("run")["env"]["settings"] == [["sutton_barto_reward", True]]


def test_class_and_function_are_envs_in_python(walk):
    sys.path.insert(0, str(walk.parent))
    import walk_env

    for env, length in [(walk_env.Walk, 10), (walk_env.make_walk, 7)]:
        experiment = make_experiment("dqn", env, envs=3)
        assert experiment.env.id == f"walk_env:{env.__name__}" and experiment.env.envs == 3
        vector = experiment.env.make(0)
        vector.reset(0)
        done = [bool(vector.step(torch.zeros(3, dtype=torch.int64)).truncated.all()) for _ in range(length)]
        assert done[-1] and not any(done[:-1])
    with pytest.raises(BadInput, match="top level"):
        make_experiment("dqn", lambda: walk_env.Walk())
    with pytest.raises(BadInput, match=r"no subclass of gymnasium\.Env"):
        make_experiment("dqn", torch.nn.Linear)


SCRIPT = """
from dataclasses import dataclass

import troop
from troop.algorithms import DQNConfig
{env}

@dataclass(frozen=True)
class MyConfig(DQNConfig):
    extra: float = 0.5


troop.train("dqn", Walk, algorithm=MyConfig(hidden=(8,)), envs=2, env_steps=30, run="script", quiet=True)
print(troop.evaluate("script", 2, allow=[__file__])["length_mean"])
"""


def test_classes_of_a_script_are_found_again(walk, capfd):
    """Neither training nor loading imports the script a second time: it has no __name__ guard."""
    Path("script_of_mine.py").write_text(SCRIPT.format(env=ENV_FILE))
    import subprocess

    result = subprocess.run([sys.executable, "script_of_mine.py"], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["10.0"], result.stderr
    stored = config_of("script")
    assert stored["env"]["id"] == f"{Path('script_of_mine.py').resolve()}:Walk"
    assert stored["algorithm"]["kind"] == f"{Path('script_of_mine.py').resolve()}:MyConfig"


BACKEND = """
import dataclasses
from dataclasses import dataclass

from troop.envs import Toy


@dataclass(frozen=True)
class MyBackend:
    length: int = 6
    envs: int = 4

    @property
    def id(self):
        return "my-simulator"

    @property
    def spec(self):
        return self._toy().spec

    def _toy(self):
        return Toy("Clock", self.envs, self.length)

    def make(self, seed, device="cpu"):
        return self._toy().make(seed, device)

    def with_envs(self, envs):
        return dataclasses.replace(self, envs=envs)

    def for_evaluation(self):
        return self
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A function that writes a module of the user to the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    names = []

    def write(name, text):
        Path(f"{name}.py").write_text(textwrap.dedent(text))
        names.append(name)

    yield write
    for name in names:
        sys.modules.pop(name, None)


DROPOUT = """
from torch import nn

def make_net(shape, outputs):
    return nn.Sequential(nn.Linear(shape[0], 64), nn.Dropout(0.5), nn.Linear(64, outputs))
"""


@pytest.mark.parametrize("recipe", ["dqn", "ppo", "impala"])
def test_policies_act_without_dropout_and_learn_with_it(module, recipe):
    module("own_net", DROPOUT)
    experiment = make_experiment(recipe, "gym:CartPole-v1", 4, network="own_net:make_net")
    spec, obs = experiment.env.spec, {"obs": torch.randn(64, 4)}
    policy = make_policy(experiment.algorithm, spec, "cpu")
    state, explore = policy.initial_state(64), torch.zeros(64)
    policy.load_state_dict(experiment.algorithm.algorithm(spec).policy.state_dict())
    first, second = (policy.act(obs, state, explore).action for _ in range(2))
    assert torch.equal(first, second)
    learner = experiment.algorithm.algorithm(spec)
    assert all(m.training for m in learner.policy.modules() if isinstance(m, torch.nn.Dropout))


def test_backend_of_a_user_is_trained_and_loaded(module):
    module("own_backend", BACKEND)
    flags = ["--env.length", "5", *SHORT, "--env-steps", "40", "--run", "run"]
    assert run(["train", "sac", "--env", "own_backend:MyBackend", *flags]) == 0
    assert config_of("run")["env"] == {"kind": "own_backend:MyBackend", "length": 5, "envs": 4}
    with pytest.raises(BadInput, match="--allow own_backend"):
        troop.evaluate("run")
    assert troop.evaluate("run", 2, allow=["own_backend"])["length_mean"] == 5


SYSTEM = """
import dataclasses
from dataclasses import dataclass

from troop.core.config import bounded
from troop.recipes import Recipe, find
from troop.systems import Sync


@dataclass(frozen=True)
class MySystem(Sync):
    pause: int = bounded(3, low=1)


def make(args):
    return dataclasses.replace(find("dqn").build(args), system=MySystem(replay_capacity=400), recipe="mine")


RECIPE = Recipe("mine", "a system of the user", "CartPole-v1", make)
"""


def test_system_of_a_user_is_trained_resumed_and_evaluated(module, capsys):
    module("own_system", SYSTEM)
    flags = ["--pause", "2", *SHORT, "--env-steps", "60", "--run", "run"]
    assert run(["train", "own_system:RECIPE", *flags]) == 0
    stored = config_of("run")["system"]
    assert stored["kind"] == "own_system:MySystem" and stored["pause"] == 2
    assert run(["train", "own_system:RECIPE", "--pause", "0", "--run", "never"]) == 2
    assert "--system.pause is 0" in capsys.readouterr().err
    assert run(["resume", "run", "--env-steps", "80"]) == 2
    assert "--allow own_system" in capsys.readouterr().err
    assert run(["resume", "run", "--env-steps", "80", "--allow", "own_system"]) == 0
    assert run(["eval", "run", "--episodes", "2", "--allow", "own_system"]) == 0


@pytest.mark.parametrize(
    "engine",
    [
        "processes",
        pytest.param(
            "ray",
            marks=pytest.mark.skipif(
                not os.environ.get("TROOP_LONG_TESTS"), reason="starts Ray; set TROOP_LONG_TESTS=1"
            ),
        ),
    ],
)
def test_other_processes_find_the_code_of_the_user(munchausen, walk, engine):
    flags = ["--algorithm", "munchausen", "--network", "munchausen.network:make_net", "--actors", "1"]
    flags += ["--env-steps", "200", "--learning-starts", "20", "--batch-size", "8", "--envs", "4"]
    flags += ["--evaluation.episodes", "2", "--engine", engine, "--run", "run"]
    assert run(["train", "apex-dqn", "--env", f"{walk}:Walk", *flags]) == 0
    allow = ["--allow", str(walk), "--allow", "munchausen"]
    assert run(["resume", "run", "--env-steps", "300", *allow]) == 0


def without(text, pattern):
    found = re.sub(pattern, "", text, flags=re.S)
    assert found != text
    return found


def test_missing_methods_are_named(module, capsys):
    source = (Path(__file__).parents[2] / "examples/own_algorithm/munchausen/algorithm.py").read_text()
    policy = without(source, r"    @torch.no_grad\(\)\n    def act.*?(?=\n\nclass Munchausen:)")
    cases = {
        "no_unsupported": (
            without(source, r"    def unsupported_reason.*?(?=    def policy)"),
            "unsupported_reason",
        ),
        "no_act": (policy, "MunchausenPolicy lacks act"),
        "no_update": (
            without(source, r"    def update.*?(?=    @property\n    def consecutive)"),
            "lacks update",
        ),
        "not_frozen": (source.replace("@dataclass(frozen=True)", "@dataclass"), "not a frozen dataclass"),
        "raising": (source.replace("self.cfg = cfg", "raise KeyError('no motor')"), "no motor"),
    }
    for name, (text, message) in cases.items():
        module(name, text)
        argv = ["train", "dqn", "--env", "CartPole-v1", "--algorithm", f"{name}:MunchausenConfig"]
        assert run([*argv, "--minutes", "1", "--run", "never"]) == 2
        error = capsys.readouterr().err
        assert message in error and len(error.strip().splitlines()) == 1
    module("no_restart", without(BACKEND, r"    def for_evaluation.*"))
    assert run(["train", "sac", "--env", "no_restart:MyBackend", "--minutes", "1"]) == 2
    assert "MyBackend lacks for_evaluation" in capsys.readouterr().err
    module("no_recipe", "RECIPE = 3")
    assert run(["train", "no_recipe:RECIPE"]) == 2
    assert "must be a troop.recipes.Recipe" in capsys.readouterr().err
    module("no_net", "def make_net(shape, outputs):\n    return None\n")
    assert run(["train", "sac", "--network", "no_net:make_net", "--minutes", "1"]) in (2, 4)
    assert "no_net:make_net" in capsys.readouterr().err
    assert not Path("never").exists()


def test_experiment_that_config_json_cannot_hold_is_refused(module):
    module(
        "odd_config",
        """
        from dataclasses import dataclass
        from troop.algorithms import DQNConfig

        @dataclass(frozen=True)
        class Odd(DQNConfig):
            callback: object = print
        """,
    )
    experiment = make_experiment("dqn", "gym:CartPole-v1", algorithm="odd_config:Odd")
    with pytest.raises(BadInput, match=r"cannot be stored in config\.json"):
        experiment.check()


def test_a_name_that_shadows_an_installed_module_is_refused(module, capsys):
    module("numpy_copy", ENV_FILE)
    Path("pytest.py").write_text(ENV_FILE)
    assert run(["train", "dqn", "--env", "./pytest.py:Walk", "--minutes", "1"]) == 2
    assert "another module is named 'pytest'" in capsys.readouterr().err
    assert Experiment.from_dict(make_experiment("dqn").to_dict()) == make_experiment("dqn")
