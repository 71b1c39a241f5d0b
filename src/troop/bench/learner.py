"""The learner against the matrix products it is made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch

from troop.algorithms import TD3, TD3Config
from troop.nets.normalizer import NORMALIZER_WARMUP
from troop.bench.clock import in_turn
from troop.bench.table import Line
from troop.core.batch import Transition
from troop.core.devices import cpp_compiler
from troop.core.env import Continuous, EnvSpec, Field
from troop.engines.runtime import prepare

SIZES = {  # name: critic, actor, batch, wanted
    "full": ((1024, 512, 256), (512, 256, 128), 1024, ">= 0.85"),
    "full, large batch": ((1024, 512, 256), (512, 256, 128), 4096, ">= 0.85"),
    "small": ((256, 128, 64), (128, 64, 32), 512, ">= 0.45"),
}
OBS_WIDTH, ACTIONS, ATOMS = 24, 6, 101


def products(inputs: int, hidden: Sequence[int], outputs: int) -> int:
    """Multiply-adds of one forward pass."""
    widths = [inputs, *hidden, outputs]
    return sum(a * b for a, b in pairwise(widths))


def flop(critic: Sequence[int], actor: Sequence[int], delay: int = 2) -> int:
    """Operations of the linear layers per row and critic update, with its share of the policy update.

    Critic update: the policy and both targets forward; both critics forward, backward to weights and,
    except through the first layer, to inputs. Policy update: policy and critics forward, backward
    through the critics to the action only, backward through the policy.
    """
    c, a = products(OBS_WIDTH + ACTIONS, critic, ATOMS), products(OBS_WIDTH, actor, ACTIONS)
    first_c, first_a = (OBS_WIDTH + ACTIONS) * critic[0], OBS_WIDTH * actor[0]
    critic_update = a + 2 * c + 2 * (3 * c - first_c)
    policy_update = a + 2 * c + 2 * c + 2 * a - first_a
    return round(2 * (critic_update + policy_update / delay))


def learner(critic: Sequence[int], actor: Sequence[int], device: str, compile: bool) -> TD3:
    """As it is after its first thousand updates, when the normalizer has become steady."""
    cfg = TD3Config(
        critic_hidden=tuple(critic),
        actor_hidden=tuple(actor),
        atoms=ATOMS,
        v_min=-10.0,
        v_max=10.0,
        compile=compile,
    )
    made = cfg.algorithm(
        EnvSpec("bench", {"obs": Field((OBS_WIDTH,))}, Continuous(ACTIONS), 1), device=device
    )
    made.actor_learner.updates = NORMALIZER_WARMUP
    return made


def sample(rows: int, device: str) -> Transition:
    """A batch of noise."""
    return Transition(
        {"obs": torch.randn(rows, OBS_WIDTH, device=device)},
        torch.randn(rows, ACTIONS, device=device),
        torch.randn(rows, device=device),
        torch.full((rows,), 0.97, device=device),
        {"obs": torch.randn(rows, OBS_WIDTH, device=device)},
    )


def pair(made: TD3, batch: Transition) -> Callable[[], object]:
    """Two updates, of which one trains the policy."""
    return lambda: (made.update(batch), made.update(batch))


def run(threads: int = 0, device: str = "cpu") -> list[Line]:
    """Updates per second and the share of the plain product's rate, for each size, plain and compiled."""
    prepare(threads)
    lines = []
    left, right = torch.randn(2048, 2048, device=device), torch.randn(2048, 2048, device=device)
    out = torch.empty_like(left)
    for name, (critic, actor, rows, wanted) in SIZES.items():
        batch = sample(rows, device)
        works: dict[str, Callable[[], object]] = {"matmul": lambda: torch.mm(left, right, out=out)}
        works[""] = pair(learner(critic, actor, device, False), batch)
        if cpp_compiler()[1]:
            works[", compiled"] = pair(learner(critic, actor, device, True), batch)
        took = in_turn(works, rounds=15, least=0.3)
        limit = 2 * 2048**3 / took.pop("matmul") / 1e9
        for how, seconds in took.items():
            ours = flop(critic, actor) * rows * 2 / seconds / 1e9
            lines.append(
                Line(
                    f"learner {name}, batch {rows}{how}",
                    f"{2 / seconds:.1f} updates/s, {ours:.0f} GFLOP/s",
                    f"matmul {limit:.0f} GFLOP/s",
                    ours / limit,
                    wanted,
                )
            )
    return lines
