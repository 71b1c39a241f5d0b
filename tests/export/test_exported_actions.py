"""An exported policy chooses the actions of the loaded one: every kind of network, observation and action."""

import functools
import hashlib
import json
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from troop.algorithms import (
    DQNConfig,
    FlashSACConfig,
    PPOConfig,
    RainbowConfig,
    SACConfig,
    TD3Config,
    TD3GRUConfig,
)
from troop.api import make_experiment
from troop.core.algorithm import Policy, PolicyOutput
from troop.core.errors import BadInput
from troop.envs import EnvPool, FrameConfig, Gymnasium, Toy
from troop.envs.interface import find_interface
from troop.export.interface_graph import InterfaceGraph
from troop.export.policy_graph import PolicyGraph
from troop.export.write import write_policy
from troop.trained_policy import TrainedPolicy

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

sys.path.append(str(Path(__file__).parents[1] / "envs"))
SMALL = {"actor_hidden": (16,), "critic_hidden": (16,)}


class Room(gymnasium.Env):
    """Nested observations of all kinds, and a matrix of forces with bounds of its own in float64."""

    observation_space = spaces.Dict(
        {
            "inner": spaces.Dict({"speed": spaces.Box(-3, 3, (2, 2), np.float64)}),
            "door": spaces.Discrete(3, start=2),
            "view": spaces.Box(0, 255, (8, 10, 3), np.uint8),
        }
    )
    action_space = spaces.Box(np.array([[-2, 0, -1]]), np.array([[2, 5, 1]]), dtype=np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 0.5, False, False, {}


def trained(env, algorithm):
    """A policy with random weights and normalization statistics that are not those of new ones."""
    torch.manual_seed(0)
    module = algorithm.policy(env.spec)
    for name, buffer in module.named_buffers():
        if buffer.is_floating_point() and name.split(".")[-1] in ("scale", "offset"):
            buffer.copy_(torch.rand_like(buffer) + 0.5)
    for parameter in module.parameters():
        if parameter.dim() > 1:
            parameter.data.add_(0.03 * torch.randn_like(parameter))
    return TrainedPolicy(module, env, checkpoint="ckpt-7 (7 env steps)")


def observations(env, steps, rows):
    """Batches of observations as the env returns them, by input name; images are dark or bright."""
    random = np.random.default_rng(rows)

    def value(spec):
        shape = (rows, *spec.shape)
        if spec.dtype.is_floating_point:
            return random.normal(size=shape).astype(np.float32)
        values = random.integers(spec.low, spec.high + 1, shape)
        if len(spec.shape) == 3:
            values = values * random.random(size=(rows, 1, 1, 1)) ** 2
        return values.astype(str(spec.dtype).removeprefix("torch."))

    for _ in range(steps):
        yield {spec.name: value(spec) for spec in InterfaceGraph(find_interface(env)).inputs}


def as_the_env_returns(arrays):
    """Undo the dotted names: nested dicts, or the array itself."""
    if list(arrays) == ["obs"]:
        return arrays["obs"]
    nested = {}
    for name, x in arrays.items():
        *folders, last = name.split(".")[1:]
        part = nested
        for folder in folders:
            part = part.setdefault(folder, {})
        part[last] = x
    return nested


CASES = {
    "vectors, normalized, scaled actions": lambda: (Gymnasium("Pendulum-v1", 1), SACConfig(**SMALL)),
    "held noise": lambda: (Gymnasium("Pendulum-v1", 1), TD3Config(atoms=11, **SMALL)),
    "batch norm": lambda: (Gymnasium("Pendulum-v1", 1), FlashSACConfig(actor_width=16, critic_width=16)),
    "discrete": lambda: (Gymnasium("CartPole-v1", 1), DQNConfig(hidden=(16,))),
    "noisy layers": lambda: (Gymnasium("CartPole-v1", 1), RainbowConfig(hidden=(16,))),
    "discrete observation": lambda: (Gymnasium("FrozenLake-v1", 1), DQNConfig(hidden=(16,))),
    "LSTM": lambda: (
        Gymnasium("CartPole-v1", 1, hide=(1, 3)),
        PPOConfig(hidden=(16, 16), core="lstm", core_size=8),
    ),
    "LSTM of two layers": lambda: (
        Gymnasium("CartPole-v1", 1, hide=(1, 3)),
        PPOConfig(hidden=(16, 16), core="lstm", core_size=8, core_layers=2),
    ),
    "GRU, last action and reward": lambda: (
        Gymnasium("Pendulum-v1", 1, last_step=True),
        PPOConfig(hidden=(16, 16), core="gru", core_size=8),
    ),
    "two memories, hidden columns": lambda: (
        Gymnasium("Pendulum-v1", 1, hide=(1,), last_step=True),
        TD3GRUConfig(embedding=8, core_size=8, actor_hidden=(16,), critic_hidden=(16,)),
    ),
    "R2D2": lambda: (
        Gymnasium("CartPole-v1", 1, last_step=True),
        make_experiment("r2d2", "CartPole-v1").algorithm,
    ),
    "camera and joints, several discrete actions": lambda: (
        Gymnasium("robot_env:Robot", 1),
        DQNConfig(hidden=(16,)),
    ),
    "GRU, several last actions": lambda: (
        Gymnasium("robot_env:Robot", 1, last_step=True),
        PPOConfig(hidden=(16, 16), core="gru", core_size=8),
    ),
    "everything in a dict": lambda: (Gymnasium(f"{__name__}:Room", 1), PPOConfig(hidden=(16, 16))),
    "stacked grey frames": lambda: (
        EnvPool("CarRacing-v3", 1, 1, frames=FrameConfig(gray=True, shrink=4, stack=3)),
        SACConfig(torso="small", **SMALL),
    ),
    "no backend": lambda: (Toy("Clock", discrete=True), DQNConfig(hidden=(16,))),
}


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Return the policy of a case, its contract and its file; each case is exported once."""

    @functools.cache
    def export(case):
        policy = trained(*CASES[case]())
        path = tmp_path_factory.mktemp("export") / "new" / "walk.onnx"
        return policy, write_policy(policy, path), path

    return export


@pytest.mark.parametrize("case", CASES)
def test_file_chooses_the_actions_of_the_policy(case, exported):
    if "frames" in case:
        pytest.importorskip("envpool")
    policy, contract, path = exported(case)
    env, session = policy.env, onnxruntime.InferenceSession(path.read_bytes())
    assert contract["rows"] == "any"
    inputs = {each["name"]: each for each in contract["inputs"]}
    assert set(inputs) == {each.name for each in session.get_inputs()}
    chosen = []
    for rows in (1, 40):
        policy.reset()
        memory = {
            name: np.zeros((rows, *each["shape"][1:]), each["dtype"])
            for name, each in inputs.items()
            if each["kind"] == "state"
        }
        for step, arrays in enumerate(observations(env, 6, rows)):
            feed = arrays | memory
            if memory:
                feed["started"] = np.full(rows, step == 0)
            if "reward" in inputs:
                feed["reward"] = np.full(rows, 0.3 * step, np.float32)
            action, *following = session.run(None, feed)
            expected = policy(as_the_env_returns(arrays), reward=0.3 * step)
            assert action.shape == expected.shape
            assert action.dtype == contract["outputs"][0]["dtype"]
            assert np.allclose(action, expected, atol=1e-4)
            chosen.append(np.hstack([x.reshape(rows, -1) for x in (action, *following)]))
            names = [each["name"] for each in contract["outputs"][1:]]
            memory = {name.removeprefix("next_"): x for name, x in zip(names, following, strict=True)}
    assert len(np.unique(np.concatenate(chosen).round(3), axis=0)) > 1  # the policy reads its input


def test_rows_of_a_recurrent_file_start_episodes_alone(exported):
    policy, _, path = exported("LSTM")
    session = onnxruntime.InferenceSession(path.read_bytes())
    (arrays,) = observations(policy.env, 1, 3)
    full = {name: np.full((3, 8), 0.7, np.float32) for name in ("state.policy.core.h", "state.policy.core.c")}
    started = np.array([False, True, False])
    _, h, _ = session.run(None, arrays | full | {"started": started})
    empty = {name: np.where(started[:, None], np.float32(0), x) for name, x in full.items()}
    _, expected, _ = session.run(None, arrays | empty | {"started": np.zeros(3, bool)})
    assert np.allclose(h, expected, atol=1e-6)
    _, unchanged, _ = session.run(None, arrays | full | {"started": np.zeros(3, bool)})
    assert not np.allclose(h[1], unchanged[1], atol=1e-3)


@pytest.mark.reliability("X4")
def test_file_is_one_file_of_standard_operators_without_traces_of_this_machine(exported):
    _, contract, path = exported("camera and joints, several discrete actions")
    assert sorted(each.name for each in path.parent.iterdir()) == ["walk.json", "walk.onnx"]
    content = path.read_bytes()
    model = onnx.load_model_from_string(content)
    onnx.checker.check_model(model, full_check=True)
    assert not any(each.external_data for each in model.graph.initializer)
    assert {node.domain for node in model.graph.node} <= {"", "ai.onnx"} and not model.functions
    for word in ("site-packages", "torch/", ".py", str(Path.home()), "Traceback"):
        assert word.encode() not in content, word
    assert json.loads(path.with_suffix(".json").read_text()) == contract
    model_entry = contract["model"]
    assert model_entry["sha256"] == hashlib.sha256(content).hexdigest()
    assert model_entry["bytes"] == len(content) and model_entry["max_difference"] < 1e-3
    (metadata,) = model.metadata_props
    assert metadata.key == "troop" and json.loads(metadata.value) | {"model": model_entry} == contract


def test_contract_has_what_a_caller_needs(exported):
    _, contract, _ = exported("everything in a dict")
    inputs = {each["name"]: (each["shape"], each["dtype"]) for each in contract["inputs"]}
    assert inputs == {
        "obs.inner.speed": (["rows", 2, 2], "float32"),
        "obs.door": (["rows"], "int64"),
        "obs.view": (["rows", 8, 10, 3], "uint8"),
    }
    assert contract["action"] == {"kind": "continuous", "low": [-2, 0, -1], "high": [2, 5, 1]}
    assert contract["outputs"][0]["shape"] == ["rows", 1, 3] and contract["outputs"][0]["dtype"] == "float64"
    assert contract["checkpoint"] == "ckpt-7 (7 env steps)" and contract["env"]["id"].endswith(":Room")
    assert contract["format"] == 1 and contract["in_model"]["normalization"] is True


class OneRow(Policy):
    """A policy whose code depends on the number of rows."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2, 1))

    def act(self, obs, state, explore):
        rows = [obs["obs"][index] @ self.weight for index in range(int(explore.shape[0]))]
        return PolicyOutput(torch.stack(rows).tanh(), state)


class Lookup(OneRow):
    """A policy that leaves torch: a table of texts."""

    def act(self, obs, state, explore):
        rows = [[float(str(x.item() > 0) == "True")] for x in obs["obs"][:, 0]]
        return PolicyOutput(torch.tensor(rows), state)


def test_policy_for_single_rows_is_exported_for_one_row(tmp_path):
    policy = TrainedPolicy(OneRow(), Toy("PointMass"))
    contract = write_policy(policy, tmp_path)
    assert contract["rows"] == 1
    session = onnxruntime.InferenceSession((tmp_path / "policy.onnx").read_bytes())
    x = np.array([[0.2, 0.3]], np.float32)
    assert np.allclose(session.run(None, {"obs": x})[0], policy(x), atol=1e-6)


def test_what_cannot_be_exported_is_one_sentence(tmp_path):
    with pytest.raises(BadInput, match=r"^The policy Lookup cannot be exported: .*\.$") as caught:
        write_policy(TrainedPolicy(Lookup(), Toy("PointMass")), tmp_path)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_file_that_differs_from_the_policy_is_not_written(tmp_path, monkeypatch):
    from troop.export import onnx_file

    compare = onnx_file._compare
    wrong = TrainedPolicy(OneRow(), Toy("PointMass"))
    wrong.module.weight.data.neg_()
    monkeypatch.setattr(onnx_file, "_compare", lambda graph, *rest: compare(PolicyGraph(wrong), *rest))
    with pytest.raises(BadInput, match="actions of the file differ by"):
        write_policy(TrainedPolicy(OneRow(), Toy("PointMass")), tmp_path)
    assert not list(tmp_path.iterdir())
