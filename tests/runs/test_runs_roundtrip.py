"""A loaded checkpoint equals the saved state bit for bit."""

import math
import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from troop.core.errors import SetupProblem, TrainingFault
from troop.runs import checkpoint

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex128,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64,
    torch.bool, torch.float8_e4m3fn, torch.float8_e5m2,
]  # fmt: skip


@st.composite
def random_tensor(draw):
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    raw = torch.frombuffer(bytearray(os.urandom(64 * 16)), dtype=torch.uint8)
    if dtype == torch.bool:
        raw = raw % 2
    tensor = raw.view(dtype)[: math.prod(shape)].reshape(shape)  # random bits, so NaN payloads too
    return tensor.transpose(0, -1) if len(shape) > 1 and draw(st.booleans()) else tensor


KEYS = (
    st.text(max_size=6) | st.sampled_from(["$tensor", "__metadata__", "a.b", "a", "b", ".."]) | st.integers()
)
LEAVES = random_tensor() | st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
TREES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(KEYS, inner, max_size=4)
    ),
    max_leaves=8,
)
SETTINGS = settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))


def same(a, b):
    if isinstance(a, torch.Tensor):
        bits = [x.contiguous().reshape(-1).view(torch.uint8) for x in (a, b)]
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(*bits)
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float):
        return repr(a) == repr(b)
    return a == b


@SETTINGS
@given(st.dictionaries(st.text(max_size=8), TREES, max_size=4), st.integers(0, 10**13))
def test_round_trip(state, env_steps):
    with TemporaryDirectory() as folder:
        path = checkpoint.save(Path(folder), state, {"env_steps": env_steps, "best_return": -math.inf})
        loaded = checkpoint.load_newest(Path(folder))
        assert loaded.path == path and loaded.skipped == []
        assert same(loaded.state, state)
        assert loaded.info == {"env_steps": env_steps, "best_return": -math.inf}


def test_module_and_optimizer_round_trip(tmp_path):
    net = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    net(torch.ones(3)).sum().backward()
    optimizer.step()
    checkpoint.save(
        tmp_path,
        {"policy": net.state_dict(), "learner": optimizer.state_dict()},
        {"env_steps": 5},
        finite=("pol",),
    )
    other = torch.optim.AdamW(net.parameters(), lr=1.0)
    loaded = checkpoint.load_newest(tmp_path)
    other.load_state_dict(loaded.state["learner"])
    assert same(other.state_dict(), optimizer.state_dict())
    by_library = load_file(loaded.path / "policy.safetensors")
    assert same(dict(sorted(by_library.items())), dict(sorted(net.state_dict().items())))


def test_tensors_that_share_memory_are_loaded_as_separate_copies(tmp_path):
    base = torch.arange(6.0)
    checkpoint.save(tmp_path, {"a": {"x": base, "y": base[1:3], "z": base}}, {"env_steps": 1})
    state = checkpoint.load_newest(tmp_path).state["a"]
    state["x"].zero_()
    assert state["z"].tolist() == base.tolist() and state["y"].tolist() == [1, 2]


def test_load_part_reads_only_its_own_file(tmp_path):
    path = checkpoint.save(
        tmp_path, {"policy": {"w": torch.ones(2)}, "replay": {"r": torch.ones(9)}}, {"env_steps": 1}
    )
    (path / "replay.safetensors").write_bytes(b"damaged")
    assert checkpoint.load_part(tmp_path, "policy").state["policy"]["w"].tolist() == [1, 1]
    with pytest.raises(SetupProblem, match="has no 'critic'"):
        checkpoint.load_part(tmp_path, "critic")


def test_missing_checkpoint_is_none(tmp_path):
    assert checkpoint.load_newest(tmp_path) is None
    assert checkpoint.load_newest(tmp_path / "absent") is None


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.reliability("N2")
def test_nonfinite_weights_are_never_saved(tmp_path, bad):
    state = {"policy": {"w": torch.tensor([1.0, bad])}, "replay": {"r": torch.tensor([bad])}}
    with pytest.raises(TrainingFault, match=r"policy\.w is not finite"):
        checkpoint.save(tmp_path, state, {"env_steps": 1}, finite=("policy", "learner"))
    assert list(tmp_path.iterdir()) == []
    checkpoint.save(tmp_path, state, {"env_steps": 1}, finite=("learner",))


def test_unsupported_value_is_named(tmp_path):
    with pytest.raises(TypeError, match=r"In learner: .*thing\.0"):
        checkpoint.save(tmp_path, {"learner": {"thing": [object()]}}, {"env_steps": 1})


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


def test_newest_and_newest_best_are_kept(tmp_path):
    for step in range(8):
        checkpoint.save(tmp_path, {"a": step}, {"env_steps": step, "best": step in (1, 2)}, keep=2)
    assert names(tmp_path) == [f"ckpt-{step:012d}" for step in (2, 6, 7)]


def test_new_checkpoint_stays_if_a_later_one_is_damaged(tmp_path):
    future = checkpoint.save(tmp_path, {"a": torch.ones(3)}, {"env_steps": 100})
    (future / "a.safetensors").write_bytes(b"x")
    for step in (50, 60, 70):
        checkpoint.save(tmp_path, {"a": step}, {"env_steps": step}, keep=1)
        loaded = checkpoint.load_newest(tmp_path)
        assert (
            loaded.state == {"a": step}
            and "ckpt-000000000100: a.safetensors has 1 bytes" in loaded.skipped[0]
        )


def test_later_of_two_checkpoints_at_one_step_is_loaded(tmp_path):
    for value in range(12):
        checkpoint.save(tmp_path, {"a": value}, {"env_steps": 7})
        assert checkpoint.load_newest(tmp_path).state == {"a": value}
    assert len(names(tmp_path)) == 3


def test_one_element_with_any_stride_is_saved(tmp_path):
    x = torch.tensor([[3.5, 4.5]])[:, :1].as_strided((1, 1), (0, 0))
    checkpoint.save(tmp_path, {"part": {"x": x}}, {"env_steps": 1})
    assert checkpoint.load_newest(tmp_path).state["part"]["x"].tolist() == [[3.5]]
