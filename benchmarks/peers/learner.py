"""Updates per second of Troop's FastTD3 learner and of the authors' networks and update rule, in one run.

`python benchmarks/peers/learner.py` needs Troop installed. Both learners get the same data and are timed in
turn, plain and compiled, with the rate of a large float32 matrix product as the limit of the machine. On a
CPU with bf16 units Troop is also timed with `--amp`; the authors' code has mixed precision on CUDA only.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

import torch
from official_fasttd3 import Batch, OfficialFastTD3, Settings

from troop.algorithms import TD3
from troop.bench.learner import ACTIONS, ATOMS, OBS_WIDTH, SIZES, flop, learner, random_batch, two_updates
from troop.bench.timing import time_alternately
from troop.compare.machine import describe, machine_facts
from troop.core.batch import Transition
from troop.core.devices import bf16_units, cpp_compiler
from troop.engines.runtime import cores, prepare

MATMUL_SIZE = 2048
HEADER = ("learner", "official", "Troop", "ratio", "highest possible", "share of matmul")


def official_batch(batch: Transition) -> Batch:
    """Return the same transitions; all of them bootstrap."""
    ones = torch.ones_like(batch.reward)
    return Batch(batch.obs["obs"], batch.action, batch.reward, ones, batch.discount, batch.next_obs["obs"])


def check_equal_losses(own: TD3, official: OfficialFastTD3, batch: Transition) -> None:
    """Raise ValueError unless both compute the same critic loss for the same weights."""
    with torch.no_grad():
        for source, networks in ((own.critic, official.critic), (own.target_critic, official.target)):
            stacked = list(source.parameters())  # [2, ...]
            for number, network in enumerate((networks.q1, networks.q2)):
                for parameter, values in zip(network.parameters(), stacked, strict=True):
                    parameter.copy_(values[number])
        for parameter, values in zip(official.actor.parameters(), own.policy.actor.parameters(), strict=True):
            parameter.copy_(values)
        official.normalizer.eval()
        data, normalize = official_batch(batch), official.normalizer
        data = Batch(
            normalize(data.obs),
            data.action,
            data.reward,
            data.bootstrap,
            data.discount,
            normalize(data.next_obs),
        )
        losses = own.critic_learner.loss(batch)[0].item(), official.critic_loss(data)[0].item()
    if abs(losses[0] - losses[1]) > 1e-3 * abs(losses[0]):
        raise ValueError(f"the critic losses of one batch differ: {losses[0]} and {losses[1]}")


def measure(name: str, compile: bool, amp: bool, args: argparse.Namespace) -> tuple[str, ...]:
    """Return one row of the table."""
    critic, actor, rows, _ = SIZES[name]
    settings = Settings(OBS_WIDTH, ACTIONS, critic, actor, ATOMS)
    batch = random_batch(rows, "cpu")
    check_equal_losses(learner(critic, actor, "cpu", False), OfficialFastTD3(settings, False), batch)
    official, data = OfficialFastTD3(settings, compile), official_batch(batch)
    left, right = torch.randn(MATMUL_SIZE, MATMUL_SIZE), torch.randn(MATMUL_SIZE, MATMUL_SIZE)
    out = torch.empty_like(left)
    functions: dict[str, Callable[[], object]] = {
        "matmul": lambda: torch.mm(left, right, out=out),
        "official": lambda: (official.update(data), official.update(data)),
        "troop": two_updates(learner(critic, actor, "cpu", compile, amp), batch),
    }
    clock = time.process_time if args.cpu_time else time.perf_counter
    seconds = time_alternately(functions, args.rounds, args.seconds, clock)
    rate = 2 * MATMUL_SIZE**3 / seconds["matmul"]  # FLOP/s
    peak = rate / (flop(critic, actor) * rows)  # updates/s if an update were nothing but its products
    theirs, ours = 2 / seconds["official"], 2 / seconds["troop"]
    return (
        f"{name}, batch size {rows}{', compiled' if compile else ''}{', Troop in bf16' if amp else ''}",
        f"{theirs:.1f}/s",
        f"{ours:.1f}/s",
        f"{ours / theirs:.2f}",
        f"{peak / theirs:.2f}",
        f"{ours / peak:.2f} of {rate / 1e9:.0f} GFLOP/s",
    )


def parse(argv: list[str]) -> argparse.Namespace:
    """Return the arguments; argparse ends the program if they are not valid."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--sizes", nargs="+", choices=list(SIZES), default=list(SIZES))
    parser.add_argument("--threads", type=int, default=0, help="torch threads (default: all cores)")
    parser.add_argument("--rounds", type=int, default=15, help="rounds; the median is reported")
    parser.add_argument("--seconds", type=float, default=0.3, help="seconds per learner and round")
    parser.add_argument("--no-compile", action="store_true", help="leave out the compiled learners")
    parser.add_argument(
        "--cpu-time",
        action="store_true",
        help="CPU seconds instead of elapsed ones; with --threads 1, for a machine that others use, too",
    )
    args = parser.parse_args(argv)
    if args.cpu_time and args.threads != 1:
        parser.error("--cpu-time needs --threads 1: threads that wait for each other use CPU time")
    return args


def main(argv: list[str]) -> None:
    """Print the machine and the table."""
    args = parse(argv)
    prepare(args.threads)
    threads = args.threads or cores()
    clock = "CPU time" if args.cpu_time else "elapsed time"
    print(f"Machine: {describe(machine_facts('cpu'))}; {threads} torch thread(s), {clock}.")
    compiled = not args.no_compile and cpp_compiler()[1]
    variants = [(False, False), (True, False)] if compiled else [(False, False)]
    if bf16_units("cpu"):
        variants.append((compiled, True))
    table = [HEADER] + [measure(name, *variant, args) for name in args.sizes for variant in variants]
    widths = [max(len(row[column]) for row in table) for column in range(len(HEADER))]
    for row in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


if __name__ == "__main__":
    main(sys.argv[1:])
