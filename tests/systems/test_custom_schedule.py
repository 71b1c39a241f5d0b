"""A schedule defined outside of the package works in every system."""

import dataclasses
from dataclasses import dataclass

import pytest
import torch
from counting_learners import CountingConfig
from small_systems import (
    APEX,
    CLOCK,
    DQN,
    GORILA,
    SMALL_PQL,
    build_roles,
    exploration_values,
    inline_host,
    step_rounds,
)

from troop.algorithms import DQNConfig
from troop.core.exploration import Exploration
from troop.roles.update_schedule import UpdateSchedule
from troop.systems import Sync


@dataclass(frozen=True)
class Sawtooth:
    """Falls from 1 to 0 over `period` env steps, again and again; does not inherit from Exploration."""

    period: int

    def initial(self, rows, device):
        return torch.ones(rows, device=device)

    def update(self, values, started, env_steps):
        return torch.full_like(values, 1 - env_steps % self.period / self.period)

    def per_env(self, rows, ladder=None):
        return tuple(1 - i / rows for i in range(rows))

    def share(self, workers):
        return Sawtooth(self.period // workers)

    def over_updates(self, updates):
        return self


class Constant(Exploration):
    """Inherits from Exploration, so `share` may be left out."""

    def initial(self, rows, device):
        return torch.full((rows,), 0.25, device=device)

    def update(self, values, started, env_steps):
        return values

    def per_env(self, rows, ladder=None):
        return (0.25,) * rows


class SawtoothDQN(DQNConfig):
    exploration = Sawtooth(40)


class ConstantDQN(DQNConfig):
    exploration = Constant()


class SawtoothCounting(CountingConfig):
    exploration = Sawtooth(40)


CUSTOM_DQN = SawtoothDQN(**{field.name: getattr(DQN, field.name) for field in dataclasses.fields(DQN)})


def test_sync_updates_the_values_by_the_schedule():
    system = Sync(UpdateSchedule(8, 1), replay_capacity=400, learning_starts=6)
    host = inline_host(system, CUSTOM_DQN)
    collector = host.roles["trainer"].collector
    values = []
    for _ in range(25):
        step_rounds(host, 1)
        values.append(collector.explore.tolist())
    assert values == [pytest.approx([1 - (2 * step % 40) / 40] * 2) for step in range(1, 26)]


def test_apex_fixes_the_values_per_env():
    roles = build_roles(APEX, CUSTOM_DQN)
    values = [exploration_values(roles[f"actor{i}"]).tolist() for i in range(2)]
    assert values == [[1.0, 0.5], [0.75, 0.25]]


@pytest.mark.parametrize("shared_replay", [False, True])
def test_gorila_shares_the_schedule_between_its_workers(shared_replay):
    roles = build_roles(dataclasses.replace(GORILA, bundles=4, shared_replay=shared_replay), CUSTOM_DQN)
    if shared_replay:
        collectors = [c for i in range(4) for c in roles[f"actor{i}"].sampler.collectors]
    else:
        collectors = [roles[f"bundle{i}"].collector for i in range(4)]
    # 40 env steps over four workers, or over the two halves of the envs of four actors.
    assert len(collectors) == (8 if shared_replay else 4)
    assert all(c.exploration == Sawtooth(40 // len(collectors)) for c in collectors)


@pytest.mark.parametrize("envs, expected", [(4, [1.0, 0.75, 0.5, 0.25]), (1, [0.5])])
def test_pql_fixes_the_values_per_env(envs, expected):
    roles = build_roles(SMALL_PQL, SawtoothCounting(), CLOCK.with_envs(envs))
    assert exploration_values(roles["actor"]).tolist() == expected


def test_inherited_share_and_over_updates_return_the_schedule_itself():
    schedule = Constant()
    assert schedule.share(7) is schedule
    roles = build_roles(GORILA, ConstantDQN(hidden=(8,)))
    assert roles["bundle0"].collector.explore.tolist() == [0.25, 0.25]
