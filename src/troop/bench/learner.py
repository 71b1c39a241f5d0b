"""The learner against the matrix products it is made of."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch

from troop.algorithms import FastTD3, FastTD3Config
from troop.bench.clock import in_turn
from troop.bench.table import Line
from troop.core.batch import Transition
from troop.core.env import Continuous, EnvSpec, Field
from troop.engines.machine import prepare

SIZES = {  # name: critic, actor, batch
    "full": ((1024, 512, 256), (512, 256, 128), 1024),
    "full, large batch": ((1024, 512, 256), (512, 256, 128), 4096),
    "small": ((256, 128, 64), (128, 64, 32), 512),
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


def run(threads: int = 0, device: str = "cpu") -> list[Line]:
    """Updates per second and the share of the plain product's rate, for each size."""
    prepare(threads)
    lines = []
    left, right = torch.randn(2048, 2048, device=device), torch.randn(2048, 2048, device=device)
    out = torch.empty_like(left)
    for name, (critic, actor, rows) in SIZES.items():
        cfg = FastTD3Config(critic_hidden=critic, actor_hidden=actor, atoms=ATOMS, v_min=-10.0, v_max=10.0)
        spec = EnvSpec("bench", {"obs": Field((OBS_WIDTH,))}, Continuous(ACTIONS), 1)
        learner = cfg.algorithm(spec, device=device)
        batch = Transition(
            {"obs": torch.randn(rows, OBS_WIDTH, device=device)},
            torch.randn(rows, ACTIONS, device=device),
            torch.randn(rows, device=device),
            torch.full((rows,), 0.97, device=device),
            {"obs": torch.randn(rows, OBS_WIDTH, device=device)},
        )

        def pair(learner: FastTD3 = learner, batch: Transition = batch) -> None:
            learner.update(batch)
            learner.update(batch)  # one of two trains the policy

        took = in_turn({"ours": pair, "matmul": lambda: torch.mm(left, right, out=out)}, least=0.5)
        ours = flop(critic, actor) * rows * 2 / took["ours"] / 1e9
        limit = 2 * 2048**3 / took["matmul"] / 1e9
        lines.append(
            Line(
                f"learner {name}, batch {rows}",
                f"{2 / took['ours']:.1f} updates/s, {ours:.0f} GFLOP/s",
                f"matmul {limit:.0f} GFLOP/s",
                ours / limit,
            )
        )
    return lines
