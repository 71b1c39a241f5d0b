"""The running roles as groups of their like, and what flows between them, read from one line of metrics."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

_ORDER = (  # as data flows
    "actor", "runner", "bundle", "trainer", "replay", "transitions", "observations", "learner", "critic",
    "policy", "server", "weights",
)  # fmt: skip
_NUMBER = re.compile(r"[/_.-]?\d+$")
_MANY = 8  # roles of a kind that are still written one by one


@dataclass(frozen=True)
class Spread:
    """One number of several roles."""

    mean: float = 0.0
    low: float = 0.0
    high: float = 0.0
    total: float = 0.0

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        """The spread of these; all zero of none."""
        if not values:
            return cls()
        return cls(sum(values) / len(values), min(values), max(values), sum(values))


@dataclass(frozen=True)
class Group:
    """All roles of one kind: shares of their time, steps a second, letters and bytes that wait for them."""

    kind: str
    name: str  # of the node, if it is only one
    count: int
    busy: Spread
    waiting: Spread  # for answers
    blocked: Spread  # by a full mailbox
    rate: Spread
    queue: float  # all together
    queue_bytes: float

    @property
    def free(self) -> float:
        """The share of time in which they did not work, whatever for."""
        return 1.0 - self.busy.mean


@dataclass(frozen=True)
class Flow:
    """How experience, policies and gradients come through; None where nobody says."""

    rows: int = 0
    capacity: int = 0
    age_s: float | None = None  # of the rows learned from, at the present rate of env steps
    wanted: float | None = None  # rows drawn for each that came; 0 runs free
    had: float | None = None
    lag: float | None = None  # updates that the policies acted with are behind
    gradients: dict[str, float] | None = None
    ratios: dict[str, float] | None = None  # of an actor and two learners


def kind(node: str) -> str:
    """What a node is, without its number: `actor` of `actor12` and of `actor/12`."""
    return _NUMBER.sub("", node) or node


def groups(metrics: Mapping[str, float]) -> list[Group]:
    """Groups of like roles, in the order in which data flows; none if the engine does not tell of roles."""
    kinds: dict[str, dict[str, dict[str, float]]] = {}
    for name, value in metrics.items():
        if name.startswith("role/"):
            node, _, what = name[5:].rpartition("/")
            kinds.setdefault(kind(node), {}).setdefault(node, {})[what] = value
    return [_group(name, kinds[name]) for name in sorted(kinds, key=_place)]


def _place(name: str) -> tuple[int, str]:
    last = len(_ORDER) + (name == "evaluator")
    return (_ORDER.index(name) if name in _ORDER else last, name)


def _group(name: str, nodes: dict[str, dict[str, float]]) -> Group:
    def read(what: str) -> Spread:
        return Spread.of([told[what] for told in nodes.values() if what in told])

    only = next(iter(nodes)) if len(nodes) == 1 else name
    shares = (read("busy"), read("waiting"), read("blocked"))
    return Group(
        name, only, len(nodes), *shares, read("steps_per_s"), read("queue").total, read("queue_bytes").total
    )


def flow(metrics: Mapping[str, float]) -> Flow:
    """What stores, actors and parameter servers tell; shards of a replay count as one."""
    stores = [name[:-5] for name in metrics if name.endswith("/rows") and f"{name[:-5]}/capacity" in metrics]
    servers = [name[:-8] for name in metrics if name.endswith("/applied")]
    told = ("applied", "dropped_stale", "dropped_outlier", "delay")
    return Flow(
        rows=round(sum(metrics[f"{store}/rows"] for store in stores)),
        capacity=round(sum(metrics[f"{store}/capacity"] for store in stores)),
        age_s=_age(metrics, stores),
        wanted=_mean(metrics, stores, "samples_per_insert_wanted"),
        had=_mean(metrics, stores, "samples_per_insert"),
        lag=metrics.get("policy/lag"),
        # Every gradient has a part for each server: their counts are not to be added up.
        gradients={what: _mean(metrics, servers, what) or 0.0 for what in told} if servers else None,
        ratios=ratios(metrics) or None,
    )


def ratios(metrics: Mapping[str, float]) -> dict[str, float]:
    """PQL's two ratios since the warm-up, from what the stores of its learners count; empty without them.

    `ratio/beta_av` are critic updates for each vector step, `ratio/beta_pv` those for each policy update.
    Each store reads its two counts at one moment, so hosts that report in turn do no harm.
    """
    found: dict[str, float] = {}
    for learner in ("critic", "policy"):
        steps, updates = metrics.get(f"{learner}/steps", 0.0), metrics.get(f"{learner}/updates", 0.0)
        if not steps or not updates:
            return {}
        found[learner] = updates / steps
    had = {"ratio/beta_av": found["critic"], "ratio/beta_pv": found["critic"] / found["policy"]}
    critic, policy = (metrics.get(f"{learner}/updates_per_step_wanted", 0.0) for learner in found)
    if not (critic and policy):  # free
        return had
    return had | {"ratio/beta_av_wanted": critic, "ratio/beta_pv_wanted": critic / policy}


def _age(metrics: Mapping[str, float], stores: Sequence[str]) -> float | None:
    """Seconds in which as many rows come as the batches of stores are old, each having its share of all."""
    age, rate = _mean(metrics, stores, "age"), metrics.get("rate/env_steps_per_s", 0.0)
    return None if age is None or not rate else age * len(stores) / rate


def _mean(metrics: Mapping[str, float], owners: Iterable[str], what: str) -> float | None:
    found = [metrics[f"{owner}/{what}"] for owner in owners if f"{owner}/{what}" in metrics]
    return sum(found) / len(found) if found else None


def folded(metrics: Mapping[str, float]) -> dict[str, float]:
    """The metrics to write down: many of a kind as one, with `_min` and `_max`.

    Of roles that is `roles/<kind>/<what>`, of stores and servers `<kind>s/<what>`. A line is written every
    second: hundreds of actors one by one would fill the disk.
    """
    kinds: dict[str, set[str]] = {}
    for name in metrics:
        node = _node(name)
        kinds.setdefault(_plural(node), set()).add(node)
    many = {node: name for name, nodes in kinds.items() if len(nodes) > _MANY for node in nodes}
    kept: dict[str, float] = {}
    values: dict[str, list[float]] = {}
    for name, value in metrics.items():
        node = _node(name)
        if node in many:
            values.setdefault(f"{many[node]}/{name[len(node) + 1 :]}", []).append(value)
        else:
            kept[name] = value
    kept |= {f"{name}/count": len(kinds[name]) for name in dict.fromkeys(many.values())}
    for name, found in values.items():
        spread = Spread.of(found)
        kept |= {name: round(spread.mean, 4), f"{name}_min": spread.low, f"{name}_max": spread.high}
    return kept


def _node(name: str) -> str:
    """Whose metric it is: `role/actor/3` of `role/actor/3/busy`, `replay3` of `replay3/rows`."""
    return name.rpartition("/")[0] if name.startswith("role/") else name.partition("/")[0]


def _plural(node: str) -> str:
    return f"roles/{kind(node[5:])}" if node.startswith("role/") else f"{kind(node)}s"
