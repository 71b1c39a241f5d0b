import numpy as np
import pytest
import torch
from gymnasium import spaces

from troop.core.env import Discrete, Field
from troop.core.errors import BadInput
from troop.envs import EnvPool
from troop.envs.gymnasium.spaces import observation_arrays
from troop.envs.images import channels_first_shape, to_channels_first
from troop.envs.observations import ObsConverter, assign_names
from troop.envs.seeding import hash_seed


def converter(space):
    return ObsConverter(assign_names(observation_arrays(space, "MyEnv")), "MyEnv")


@pytest.mark.parametrize(
    ("shape", "expected"),
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
def test_images_become_channels_first(shape, expected):
    assert channels_first_shape(shape) == expected
    assert to_channels_first(np.zeros((2, *shape), np.uint8)).shape == (2, *expected)


def test_a_stack_of_colour_frames_keeps_its_order():
    array = np.random.default_rng(0).integers(0, 255, (2, 4, 9, 8, 3), dtype=np.uint8)
    image = to_channels_first(array)
    for frame in range(4):
        for channel in range(3):
            assert np.array_equal(image[:, 3 * frame + channel], array[:, frame, :, :, channel])


def test_a_grid_of_zeros_and_ones_is_an_image_and_a_small_table_is_not():
    assert converter(spaces.Box(0, 1, (10, 10, 4), bool)).fields == {"obs": Field((4, 10, 10))}
    assert converter(spaces.Box(0, 1, (10, 5), np.float32)).fields == {"obs": Field((1, 10, 5))}
    assert converter(spaces.Box(0, 1, (3, 3, 5), np.float32)).fields == {"obs": Field((45,))}
    assert converter(spaces.Box(-1, 1, (10, 10), np.float32)).fields == {"obs": Field((100,))}


def test_discrete_values_beside_an_image_become_channels_and_numbers_keep_their_name():
    space = spaces.Dict(
        {"gear": spaces.Discrete(3, start=1), "photo": spaces.Box(0, 255, (5, 6, 3), np.uint8),
         "speed": spaces.Box(-1, 1, (2,), np.float32)}
    )  # fmt: skip
    image_converter = converter(space)
    assert image_converter.fields == {"obs": Field((6, 5, 6), torch.uint8), "speed": Field((2,))}
    raw = {
        "gear": np.array([1, 3]),
        "photo": np.full((2, 5, 6, 3), 9, np.uint8),
        "speed": np.ones((2, 2), np.float32),
    }
    obs = image_converter.convert(raw)["obs"]
    assert (obs[:, :3] == 9).all()
    assert obs[:, 3:].max((2, 3)).tolist() == obs[:, 3:].min((2, 3)).tolist()
    assert obs[:, 3:, 0, 0].tolist() == [[255, 0, 0], [0, 0, 255]]


def test_unsupported_observations_are_explained():
    with pytest.raises(BadInput, match=r"image observation of shape \(2, 2, 2, 2, 2\); Troop supports"):
        converter(spaces.Box(0, 255, (2, 2, 2, 2, 2), np.uint8))
    with pytest.raises(BadInput, match=r"image observation of shape \(0, 4\).*non-empty"):
        converter(spaces.Box(0, 255, (0, 4), np.uint8))
    with pytest.raises(
        BadInput, match=r"'MyEnv' has no observation for a policy \(it returns obs \(0,\)\); Troop supports"
    ):
        converter(spaces.Box(-1, 1, (0,), np.float32))
    with pytest.raises(BadInput, match=r"no observation for a policy \(it returns privileged \(2,\)\)"):
        converter(spaces.Dict({"privileged": spaces.Box(-1, 1, (2,), np.float32)}))
    with pytest.raises(
        BadInput, match="observation space of env 'MyEnv' is a Text space; Troop supports Box"
    ):
        converter(spaces.Text(5))


def test_catch_is_an_image():
    pytest.importorskip("envpool")
    config = EnvPool("Catch-v0", 4, 1)
    assert config.spec.obs == {"obs": Field((1, 10, 5))} and config.spec.action == Discrete(3)
    image = config.make(0).reset(0).obs["obs"]
    assert (image[:, 0, 0].sum(dim=1) == 1).all()  # the ball at the top
    assert image[:, 0, 9].tolist() == [[0, 0, 1, 0, 0]] * 4  # the paddle at the bottom


def test_minigrid_is_one_hot_channels_of_cells_and_direction():
    envpool = pytest.importorskip("envpool")
    config = EnvPool("MiniGrid-DoorKey-5x5-v0", 4, 1)
    assert config.spec.obs == {"obs": Field((24, 7, 7), torch.uint8)}
    env = config.make(0)
    env.reset(0)
    raw = envpool.make_gymnasium(config.id, num_envs=4, seed=hash_seed(0))
    raw.reset()
    random = np.random.default_rng(0)
    for _ in range(40):
        action = random.integers(0, 7, 4)
        obs = env.step(torch.from_numpy(action)).obs["obs"]
        expected = raw.step(action)[0]
        assert set(obs.unique().tolist()) == {0, 255}
        groups = obs.split([11, 6, 3, 4], dim=1)
        values = [group.argmax(dim=1).numpy() for group in groups]
        for channel in range(3):
            assert np.array_equal(values[channel], expected["image"][..., channel])
        assert (values[3] == expected["direction"][:, None, None]).all()
        assert all((group.sum(dim=1, dtype=torch.int64) == 255).all() for group in groups)
    env.close()


@pytest.mark.parametrize("id", ["CarRacing-v3", "gfootball/1_vs_1_easy-v1"])
def test_colour_images_of_envpool(id):
    pytest.importorskip("envpool")
    channels, height, width = EnvPool(id).spec.obs["obs"].shape
    assert channels <= 4 and min(height, width) > 64
