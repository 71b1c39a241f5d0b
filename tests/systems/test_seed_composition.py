"""SEED: what an env does depends on its own random numbers, not on which rows share a call of the policy."""

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

from troop.algorithms import (
    DQNConfig,
    FlashSACConfig,
    ImpalaConfig,
    PPOConfig,
    R2D2Config,
    RainbowConfig,
    SACConfig,
    SACGRUConfig,
    TD3Config,
    TD3GRUConfig,
)
from troop.core.exploration import PerEnv
from troop.envs import Toy
from troop.roles.inference_server import InferenceServer
from troop.roles.runner_step import RunnerStep
from troop.roles.weights import Weights
from troop.systems.seed import make_env_recorder

ENVS, STEPS, LIMIT = 6, 40, 33  # noise is held for up to 3 steps
SMALL = {"actor_hidden": (8,), "critic_hidden": (8,), "noise_repeats": 0}
MEMORY = SMALL | {"core_size": 4, "embedding": 4, "sequence_length": 8, "overlap": 2, "burn_in": 2}
CONTINUOUS = {
    "td3": TD3Config(**SMALL),
    "sac": SACConfig(**SMALL),
    "td3-gru": TD3GRUConfig(**MEMORY),
    "sac-gru": SACGRUConfig(**MEMORY),
    "flash-sac": FlashSACConfig(actor_width=8, critic_width=8, blocks=1, noise_repeats=0),
    "ppo": PPOConfig(rollout_length=5, hidden=(8,), minibatches=2, normalize_observations=False),
}
DISCRETE = {
    "dqn": DQNConfig(hidden=(8,), epsilon_repeats=0),
    "rainbow": RainbowConfig(hidden=(8,), epsilon_repeats=4),
    "r2d2": R2D2Config(sequence_length=8, overlap=2, burn_in=2, features=8, core_size=4, head=8),
    "lstm": ImpalaConfig(unroll_length=5, hidden=(8, 8), core="lstm", core_size=4),
}
HOLDS_NOISE = ("td3", "sac", "td3-gru", "sac-gru", "flash-sac")
CONSTANTS = PerEnv((0.0, 0.3, 1.0, float("inf"), 0.5, float("inf")))
FILL = {
    torch.rand: lambda row, high, generator: row.uniform_(generator=generator),
    torch.rand_like: lambda row, high, generator: row.uniform_(generator=generator),
    torch.randn: lambda row, high, generator: row.normal_(generator=generator),
    torch.randn_like: lambda row, high, generator: row.normal_(generator=generator),
    torch.randint: lambda row, high, generator: row.random_(high, generator=generator),
    torch.Tensor.exponential_: lambda row, high, generator: row.exponential_(generator=generator),
}


class PerEnvNumbers(TorchFunctionMode):
    """Random numbers of each row from its env, the steps of this env so far, and the place in the code."""

    def __init__(self):
        super().__init__()
        self.steps = [0] * ENVS
        self.ids, self.acting, self.draws = range(ENVS), False, 0  # exploration values are drawn for all envs

    def __torch_function__(self, func, types, args=(), kwargs=None):
        """Replace the rows of a draw."""
        result = func(*args, **(kwargs or {}))
        if func in FILL:
            assert len(result) == len(self.ids), "rows share random numbers"
            for row, env in enumerate(self.ids):
                seed = hash((env, self.steps[env], self.acting, self.draws))
                FILL[func](result[row], args[0], torch.Generator().manual_seed(seed))
            self.draws += 1
        return result

    def act(self, policy_act, ids):
        """Return `Policy.act` with the numbers of the envs `ids`."""

        def act(*args):
            self.ids, self.acting, self.draws = ids, True, 0
            output = policy_act(*args)
            self.ids, self.acting, self.draws = range(ENVS), False, 0
            return output

        return act


class Sink:
    """Accepts everything."""

    def add(self, rows):
        """Drop the rows."""

    def end_streams(self, streams=None):
        """Do nothing."""

    def wants_data(self):
        """Return True."""
        return True


def make_server(config, env, exploration):
    torch.manual_seed(0)
    policy, weights = config.policy(env.spec), Weights()
    weights.publish(0, policy.state_dict())
    recorder = make_env_recorder(config, ENVS)
    server = InferenceServer(env.spec, policy, recorder, exploration, Sink(), weights)
    server.register(0, ENVS)
    return server


def join_steps(steps):
    parts = [RunnerStep.of(step) for step in steps]
    names = ("reward", "terminated", "truncated", "valid")
    rows = (np.concatenate([getattr(part, name) for part in parts]) for name in names)
    obs = {name: np.concatenate([part.obs[name] for part in parts]) for name in parts[0].obs}
    return RunnerStep(obs, None, *rows)


def acted(config, env, exploration, composition, taken=None):
    """Step ENVS envs whose rows share calls as `composition` says; return actions, states, exploration.

    The envs take the actions `taken`, if given: rounding errors do not grow from step to step.
    """
    server, numbers = make_server(config, env, exploration), PerEnvNumbers()
    policy_act, rng = server.policy.act, np.random.default_rng(0)
    simulators = [env.make_numpy(seed) for seed in range(ENVS)]
    steps, actions, states, explore = [x.reset(i) for i, x in enumerate(simulators)], [], [], []
    for time in range(STEPS):
        order = rng.permutation(ENVS) if composition == "random" else np.arange(ENVS)
        cuts = {"single": range(1, ENVS), "all": [], "random": np.sort(rng.choice(range(1, ENVS), 2, False))}
        row = [None] * ENVS
        for part in np.split(order, list(cuts[composition])):
            server.policy.act = numbers.act(policy_act, part.tolist())
            with numbers:
                action = server.act(part, part * 0, join_steps([steps[i] for i in part]))
            for i, env_action in zip(part.tolist(), action, strict=True):
                row[i], numbers.steps[i] = env_action, numbers.steps[i] + 1
        actions.append(np.stack(row))
        last = actions[-1] if taken is None else taken[time]
        steps = [simulators[i].step(last[i : i + 1]) for i in range(ENVS)]
        leaves = torch.utils._pytree.tree_leaves(server.state)
        states.append([] if server.state is None else [x.clone() for x in leaves])
        explore.append(server.explore.clone())
    return np.stack(actions), states, torch.stack(explore)


CASES = [(name, False) for name in CONTINUOUS | DISCRETE] + [(name, True) for name in HOLDS_NOISE]


@pytest.mark.parametrize("name, constants", CASES)
def test_an_env_behaves_the_same_in_calls_of_any_composition(name, constants):
    config = (CONTINUOUS | DISCRETE)[name]
    memory = name in ("td3-gru", "sac-gru", "r2d2")
    env = Toy("PointMass", 1, limit=LIMIT, discrete=name in DISCRETE, autoreset="next_step", last_step=memory)
    exploration = CONSTANTS if constants else config.exploration
    actions, states, explore = acted(config, env, exploration, "all")
    for composition in ("single", "random"):
        other_actions, other_states, other_explore = acted(config, env, exploration, composition, actions)
        assert np.allclose(actions, other_actions, atol=1e-4), composition
        assert torch.equal(explore, other_explore)
        for own, other in zip(states, other_states, strict=True):
            assert all(torch.allclose(a, b, atol=1e-4) for a, b in zip(own, other, strict=True))
    assert len(np.unique(actions)) > 1, "the policy always returns the same action"


@pytest.mark.parametrize("composition", ["all", "single", "random"])
def test_the_noise_of_every_second_env_is_held(composition):
    env = Toy("PointMass", 1, limit=1_000, autoreset="next_step")
    _, states, _ = acted(CONTINUOUS["td3"], env, PerEnv((0.5,) * ENVS), composition)
    noise = torch.stack([state[0] for state in states])
    repeated = (noise[1:, :, :-1] == noise[:-1, :, :-1]).all(-1).sum(0)
    assert (repeated[::2] > 3).all() and (repeated[1::2] == 0).all()
