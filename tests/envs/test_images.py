import numpy as np
import pytest
import torch
from gymnasium import spaces

from troop.core.env import Discrete, Field
from troop.core.errors import BadInput
from troop.envs import EnvPool
from troop.envs.gymnasium.spaces import leaves_of
from troop.envs.images import planes_of, to_planes
from troop.envs.observations import Packer, name_leaves, spread

CPU = torch.device("cpu")


def packer(space):
    return Packer(name_leaves(leaves_of(space, "mine")), "mine")


@pytest.mark.parametrize(
    ("shape", "planes"),
    [
        ((84, 84), (1, 84, 84)),
        ((210, 160, 3), (3, 210, 160)),
        ((3, 64, 64), (3, 64, 64)),
        ((4, 84, 84), (4, 84, 84)),
        ((96, 96, 12), (12, 96, 96)),
        ((4, 96, 96, 3), (12, 96, 96)),
        ((4, 3, 96, 96), (12, 96, 96)),
    ],
)
def test_channels_come_first(shape, planes):
    assert planes_of(shape) == planes
    assert to_planes(np.zeros((2, *shape), np.uint8)).shape == (2, *planes)


def test_a_history_of_colour_pictures_keeps_its_order():
    array = np.random.default_rng(0).integers(0, 255, (2, 4, 9, 8, 3), dtype=np.uint8)
    planes = to_planes(array)
    for frame in range(4):
        for channel in range(3):
            assert np.array_equal(planes[:, 3 * frame + channel], array[:, frame, :, :, channel])


def test_a_grid_of_zeros_and_ones_is_a_picture_and_a_table_is_not():
    assert packer(spaces.Box(0, 1, (10, 10, 4), bool)).fields == {"obs": Field((4, 10, 10))}
    assert packer(spaces.Box(0, 1, (10, 5), np.float32)).fields == {"obs": Field((1, 10, 5))}
    assert packer(spaces.Box(0, 1, (3, 3, 5), np.float32)).fields == {"obs": Field((45,))}
    assert packer(spaces.Box(-1, 1, (10, 10), np.float32)).fields == {"obs": Field((100,))}


def test_choices_beside_a_picture_are_planes_and_numbers_keep_their_name():
    space = spaces.Dict(
        {"gear": spaces.Discrete(3, start=1), "photo": spaces.Box(0, 255, (5, 6, 3), np.uint8),
         "speed": spaces.Box(-1, 1, (2,), np.float32)}
    )  # fmt: skip
    made = packer(space)
    assert made.fields == {"obs": Field((6, 5, 6), torch.uint8), "speed": Field((2,))}
    raw = {
        "gear": np.array([1, 3]),
        "photo": np.full((2, 5, 6, 3), 9, np.uint8),
        "speed": np.ones((2, 2), np.float32),
    }
    obs = made.pack(raw, CPU)["obs"]
    assert (obs[:, :3] == 9).all()
    assert obs[:, 3:].amax(dim=(2, 3)).tolist() == obs[:, 3:].amin(dim=(2, 3)).tolist()
    assert obs[:, 3:, 0, 0].tolist() == [[255, 0, 0], [0, 0, 255]]


def test_what_nobody_can_learn_from():
    with pytest.raises(BadInput, match=r"image of shape \(2, 2, 2, 2, 2\).*expects"):
        packer(spaces.Box(0, 255, (2, 2, 2, 2, 2), np.uint8))
    with pytest.raises(BadInput, match=r"image of shape \(0, 4\).*empty"):
        packer(spaces.Box(0, 255, (0, 4), np.uint8))
    with pytest.raises(BadInput, match=r"'mine' observes obs \(0,\): nothing.*expects numbers"):
        packer(spaces.Box(-1, 1, (0,), np.float32))
    with pytest.raises(BadInput, match=r"observes privileged \(2,\): nothing a policy"):
        packer(spaces.Dict({"privileged": spaces.Box(-1, 1, (2,), np.float32)}))
    with pytest.raises(BadInput, match="a Text; Troop knows numbers, choices and images"):
        packer(spaces.Text(5))


def test_catch_is_seen_from_pixels():
    pytest.importorskip("envpool")
    config = EnvPool("Catch-v0", 4, 1)
    assert config.spec.obs == {"obs": Field((1, 10, 5))} and config.spec.action == Discrete(3)
    picture = config.make(0).reset(0).obs["obs"]
    assert (picture[:, 0, 0].sum(dim=1) == 1).all()  # the ball, above
    assert picture[:, 0, 9].tolist() == [[0, 0, 1, 0, 0]] * 4  # the paddle, below


def test_minigrid_is_one_hot_planes_and_a_direction():
    envpool = pytest.importorskip("envpool")
    config = EnvPool("MiniGrid-DoorKey-5x5-v0", 4, 1)
    assert config.spec.obs == {"obs": Field((24, 7, 7), torch.uint8)}
    env = config.make(0)
    env.reset(0)
    raw = envpool.make_gymnasium(config.id, num_envs=4, seed=spread(0))
    raw.reset()
    random = np.random.default_rng(0)
    for _ in range(40):
        action = random.integers(0, 7, 4)
        seen = env.step(torch.from_numpy(action)).obs["obs"]
        told = raw.step(action)[0]
        assert set(seen.unique().tolist()) == {0, 255}
        parts = [part.argmax(dim=1).numpy() for part in seen.split([11, 6, 3, 4], dim=1)]
        for channel in range(3):
            assert np.array_equal(parts[channel], told["image"][..., channel])
        assert (parts[3] == told["direction"][:, None, None]).all()
        assert all((part.sum(dim=1, dtype=torch.int64) == 255).all() for part in seen.split([11, 6, 3, 4], 1))
    env.close()


@pytest.mark.parametrize("id", ["CarRacing-v3", "gfootball/1_vs_1_easy-v1"])
def test_colour_pictures_of_envpool(id):
    pytest.importorskip("envpool")
    channels, height, width = EnvPool(id).spec.obs["obs"].shape
    assert channels <= 4 and min(height, width) > 64
