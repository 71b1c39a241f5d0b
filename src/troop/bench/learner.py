"""The FastTD3 learner against the rate of plain matrix multiplication."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch

from troop.algorithms import TD3, TD3Config
from troop.bench.table import BenchResult
from troop.bench.timing import Report, ignore, time_alternately
from troop.core.batch import Transition
from troop.core.devices import cpp_compiler
from troop.core.env import Continuous, EnvSpec, Field
from troop.engines.runtime import prepare
from troop.nets.normalizer import NORMALIZER_WARMUP

SIZES = {  # name: hidden layers of critic and actor, batch size, target
    "full": ((1024, 512, 256), (512, 256, 128), 1024, ">= 0.85"),
    "full, large batch": ((1024, 512, 256), (512, 256, 128), 4096, ">= 0.85"),
    "small": ((256, 128, 64), (128, 64, 32), 512, ">= 0.45"),
}
OBS_WIDTH, ACTIONS, ATOMS = 24, 6, 101


def multiply_adds(inputs: int, hidden: Sequence[int], outputs: int) -> int:
    """Return the multiply-add operations of one forward pass of one row."""
    widths = [inputs, *hidden, outputs]
    return sum(a * b for a, b in pairwise(widths))


def flop(critic: Sequence[int], actor: Sequence[int], delay: int = 2) -> int:
    """Return the FLOP of the linear layers per row and critic update, with its share of an actor update.

    Critic update: actor and both targets forward; both critics forward, backward to weights and, except
    through the first layer, to inputs. Actor update: actor and critics forward, backward through the critics
    to the action only, backward through the actor.
    """
    c, a = multiply_adds(OBS_WIDTH + ACTIONS, critic, ATOMS), multiply_adds(OBS_WIDTH, actor, ACTIONS)
    first_c, first_a = (OBS_WIDTH + ACTIONS) * critic[0], OBS_WIDTH * actor[0]
    critic_update = a + 2 * c + 2 * (3 * c - first_c)
    actor_update = a + 2 * c + 2 * c + 2 * a - first_a
    return round(2 * (critic_update + actor_update / delay))


def learner(
    critic: Sequence[int], actor: Sequence[int], device: str, compile: bool, amp: bool = False
) -> TD3:
    """As it is after its first thousand updates, when the normalizer has become steady."""
    cfg = TD3Config(
        critic_hidden=tuple(critic),
        actor_hidden=tuple(actor),
        atoms=ATOMS,
        v_min=-10.0,
        v_max=10.0,
        compile=compile,
        amp=amp,
    )
    made = cfg.algorithm(
        EnvSpec("bench", {"obs": Field((OBS_WIDTH,))}, Continuous(ACTIONS), 1), device=device
    )
    made.actor_learner.updates = NORMALIZER_WARMUP
    return made


def random_batch(rows: int, device: str) -> Transition:
    """Return a batch of noise."""
    return Transition(
        {"obs": torch.randn(rows, OBS_WIDTH, device=device)},
        torch.randn(rows, ACTIONS, device=device),
        torch.randn(rows, device=device),
        torch.full((rows,), 0.97, device=device),
        {"obs": torch.randn(rows, OBS_WIDTH, device=device)},
    )


def two_updates(td3: TD3, batch: Transition) -> Callable[[], object]:
    """Return a function that makes two updates, one of which updates the actor."""
    return lambda: (td3.update(batch), td3.update(batch))


def run(threads: int = 0, device: str = "cpu", report: Report = ignore) -> list[BenchResult]:
    """Measure updates per second and the share of the matmul rate for each size, plain and compiled."""
    prepare(threads)
    results = []
    left, right = torch.randn(2048, 2048, device=device), torch.randn(2048, 2048, device=device)
    out = torch.empty_like(left)
    for name, (critic, actor, rows, target) in SIZES.items():
        batch = random_batch(rows, device)
        functions: dict[str, Callable[[], object]] = {"matmul": lambda: torch.mm(left, right, out=out)}
        functions[""] = two_updates(learner(critic, actor, device, False), batch)
        if cpp_compiler()[1]:
            functions[", compiled"] = two_updates(learner(critic, actor, device, True), batch)

        def show(text: str, name: str = name) -> None:
            report(f"learner {name}: {text}")

        seconds = time_alternately(functions, rounds=15, min_seconds=0.3, report=show)
        matmul_rate = 2 * 2048**3 / seconds.pop("matmul") / 1e9
        for suffix, value in seconds.items():
            rate = flop(critic, actor) * rows * 2 / value / 1e9
            results.append(
                BenchResult(
                    f"learner {name}, batch size {rows}{suffix}",
                    f"{2 / value:.1f} updates/s, {rate:.0f} GFLOP/s",
                    f"matmul {matmul_rate:.0f} GFLOP/s",
                    rate / matmul_rate,
                    target,
                )
            )
    return results
