"""Roles are folded into their kinds, the bottleneck is named, and the panel shows both."""

import dataclasses
import io

import pytest
from rich.console import Console as Terminal

from troop.logs.bottleneck import bottleneck
from troop.logs.console import line
from troop.logs.panel import panel
from troop.logs.progress import Progress, size
from troop.logs.roles_table import flow_lines
from troop.logs.topology import Flow, flow, folded, groups, kind, ratios


def role(node, busy=0.0, waiting=0.0, blocked=0.0, rate=0.0, queue=0, queue_bytes=0):
    told = {"busy": busy, "waiting": waiting, "blocked": blocked, "idle": 1 - busy - waiting - blocked}
    told |= {"steps_per_s": rate, "queue": queue, "queue_bytes": queue_bytes}
    return {f"role/{node}/{what}": value for what, value in told.items()}


def apex(actor=0.5, waiting=0.0, blocked=0.0, learner=0.5, learner_waits=0.0, replay=0.3, actors=4):
    found = {}
    for i in range(actors):
        found |= role(f"actor{i}", actor, waiting, blocked, 10.0 + i)
    found |= role("evaluator", 0.99) | role("weights", 0.01)
    return found | role("replay", replay) | role("learner", learner, learner_waits, rate=49.3)


def store(name, rows, wanted=4.0, had=3.9):
    told = {"rows": rows, "capacity": 1000, "samples_per_insert": had, "samples_per_insert_wanted": wanted}
    return {f"{name}/{what}": value for what, value in told.items()}


def test_kinds():
    names = ("actor12", "actor/12", "actor_1", "learner", "replay", "replay1", "7")
    assert [kind(name) for name in names] == ["actor"] * 3 + ["learner", "replay", "replay", "7"]


def test_groups_come_in_the_order_of_the_flow_with_sums_and_spreads():
    found = groups(apex(actors=32) | role("replay1", 0.9, queue=3, queue_bytes=5000) | role("odd", 0.1))
    assert [(x.kind, x.count) for x in found] == [
        ("actor", 32), ("replay", 2), ("learner", 1), ("weights", 1), ("odd", 1), ("evaluator", 1),
    ]  # fmt: skip
    actors, replays = found[:2]
    assert (actors.rate.low, actors.rate.high, actors.rate.mean, actors.rate.total) == (10, 41, 25.5, 816)
    assert (replays.busy.mean, replays.busy.high) == (pytest.approx(0.6), 0.9)
    assert (replays.queue, replays.queue_bytes) == (3, 5000)
    assert groups({"loss/critic": 1.0, "replay/rows": 3}) == []


AGES = {"replay/age": 300, "replay1/age": 500, "rate/env_steps_per_s": 160.0}  # 80 rows a second in each


def test_flow_adds_up_shards_and_averages_what_they_keep():
    found = flow(store("replay", 100) | store("replay1", 300, had=4.1) | {"policy/lag": 12} | AGES)
    assert (found.rows, found.capacity, found.lag, found.age_s) == (400, 2000, 12, 5)
    assert (found.wanted, found.had, found.gradients) == (4.0, pytest.approx(4.0), None)
    servers = {f"server{i}/{what}": 10.0 for i in ("", "1") for what in ("applied", "dropped_stale", "delay")}
    assert flow(servers).gradients == {
        "applied": 10, "dropped_stale": 10, "dropped_outlier": 0, "delay": 10
    }  # fmt: skip
    assert flow({}) == Flow()


def pql(critic=(805, 100.0, 8.0), policy=(402, 100.5, 4.0)):
    named = ("updates", "steps", "updates_per_step_wanted")
    return {
        f"{learner}/{name}": value
        for learner, told in (("critic", critic), ("policy", policy))
        for name, value in zip(named, told, strict=True)
    }


def test_ratios_of_an_actor_and_two_learners_are_of_what_each_store_counted():
    found = ratios(pql() | {"loss/critic": 1.0})
    assert found == {
        "ratio/beta_av": 8.05, "ratio/beta_pv": pytest.approx(8.05 / 4.0), "ratio/beta_av_wanted": 8.0,
        "ratio/beta_pv_wanted": 2.0,
    }  # fmt: skip
    assert flow(pql()).ratios == found
    assert ratios({}) == {} and ratios(pql(critic=(0, 0.0, 8.0))) == {}
    free = ratios(pql((300, 100.0, 0.0), (100, 100.0, 0.0)))
    assert free == {"ratio/beta_av": 3.0, "ratio/beta_pv": 3.0}


@pytest.mark.parametrize("wanted, said", [
    (8.0, "8.05 of 8 critic updates/step   2.01 of 2 per policy update"),
    (0.0, "8.05 critic updates/step   2.01 per policy update, free"),
])  # fmt: skip
def test_ratios_are_on_the_panel(wanted, said):
    metrics = pql((805, 100.0, wanted), (402, 100.5, wanted / 2))
    (line,) = (parts for label, parts in flow_lines(flow(metrics), 80) if label == "ratios")
    assert "".join(words for words, _ in line) == said


def test_many_roles_are_written_as_their_kind():
    few, many = apex(actors=8), apex(actors=9) | {"loss/critic": 1.0}
    assert folded(few) == few
    written = folded(many)
    assert not [name for name in written if name.startswith("role/actor")]
    told = [written[f"roles/actor/{what}"] for what in ("steps_per_s", "steps_per_s_min", "steps_per_s_max")]
    assert (told, written["roles/actor/count"]) == ([14.0, 10.0, 18.0], 9)
    assert written["role/learner/busy"] == 0.5 and written["loss/critic"] == 1.0


def test_many_stores_and_servers_are_written_as_their_kind():
    stores = {f"replay{i}/{what}": float(i) for i in range(9) for what in ("rows", "age")}
    servers = {f"server{i or ''}/applied": 5.0 for i in range(3)}
    assert folded(stores | servers) == servers | {
        "replays/count": 9,
        "replays/rows": 4.0, "replays/rows_min": 0.0, "replays/rows_max": 8.0,
        "replays/age": 4.0, "replays/age_min": 0.0, "replays/age_max": 8.0,
    }  # fmt: skip


RATIO, FREE, BEHIND = Flow(wanted=4.0, had=4.0), Flow(wanted=0.0, had=9.0), Flow(wanted=4.0, had=2.0)
RULES = {
    "learner starved of rows": (apex(0.97, learner=0.4, learner_waits=0.6), RATIO, "actors: busy 97%"),
    "learner idle": (apex(0.97, learner=0.4), RATIO, "learner rests 60% at 4 samples/insert"),
    "no ratio known": (apex(0.97, learner=0.4, learner_waits=0.6), Flow(), "actors: busy 97%, learner waits"),
    "actors held back": (apex(0.4, waiting=0.6, learner=0.98), RATIO, "learner: busy 98%, actors wait 60%"),
    "actors held back, replay full": (apex(0.4, learner=0.98, replay=0.9), RATIO, "learner: "),
    "free, learner full": (apex(0.8, 0.2, learner=0.98), FREE, "learner: busy 98%, actors wait 20%"),
    "mailbox full": (apex(0.6, blocked=0.4), RATIO, "replay: busy 30%, actors blocked 40%"),
    "replay full": (apex(0.6, waiting=0.4, learner_waits=0.5, replay=0.97), RATIO, "replay: busy 97%"),
    "rows there, batches not": (apex(0.97, learner=0.5, replay=0.97), BEHIND, "replay: busy 97%"),
    "free, batches late": (apex(0.97, learner=0.5, learner_waits=0.5), FREE, "replay: batches come late"),
    "both full": (apex(0.95, learner=0.95, replay=0.9), RATIO, "actors and learner: both"),
    "balanced": (apex(0.7, learner=0.7), RATIO, "none: balanced at 4 samples/insert; actors 70%"),
    "nothing full": (apex(0.5, learner=0.8), FREE, "none: nothing is full"),
    "paused": (apex(0.0, learner=0.0, replay=0.0), RATIO, "none: all roles are at rest"),
    "one shard full": (
        apex(0.5, 0.5, learner_waits=0.5) | role("replay1", 0.99), RATIO, "replays: busy 99%",
    ),
    "trainer": (role("trainer", 0.99) | role("evaluator", 0.2), Flow(), "trainer: busy 99%"),
    "server": (role("bundle0", 0.4, 0.6) | role("bundle1", 0.4, 0.6) | role("server", 0.9), Flow(),
               "server: busy 90%, bundles wait 60%"),
    "critics slowest": (
        role("actor", 0.3, 0.6) | role("critic", 0.97) | role("policy", 0.5) | role("transitions", 0.1),
        flow(pql()), "critic: busy 97%, actor waits 60% at 8 critic updates/step",
    ),
    "policy slowest": (role("actor", 0.3, 0.6) | role("critic", 0.5) | role("policy", 0.97), Flow(),
                       "policy: busy 97%, actor waits 60%"),
    "no store": (role("actor0", 0.5, 0.0, 0.5) | role("learner", 0.8), Flow(), "learner: busy 80%, actor0"),
    "unheard of": (role("oracle", 0.99), Flow(), "oracle: busy 99%"),
}  # fmt: skip


@pytest.mark.parametrize("case", RULES)
def test_the_bottleneck(case):
    metrics, flowing, said = RULES[case]
    assert said in str(bottleneck(groups(metrics), flowing, updates=5))


def test_before_the_first_update_the_replay_fills():
    metrics = groups(apex(0.97, learner=0.0, learner_waits=0.9))
    assert "fills" in str(bottleneck(metrics, RATIO, updates=0))
    assert bottleneck([], RATIO, 0) is None


METRICS = apex(0.66, waiting=0.22, learner=0.97, actors=32) | store("replay", 512) | {"policy/lag": 12.4}
SHOWN = Progress(
    env_steps=1_253_000,
    updates=31_200,
    wall_s=312.3,
    return_mean=812.4,
    human_normalized=123.4,
    episode_return=790.1,
    losses={f"loss/{i}": 0.1 * i for i in range(20)},
    counters={"restarts": 2},
    flow=flow(METRICS),
    roles=groups(METRICS),
    bottleneck=str(bottleneck(groups(METRICS), flow(METRICS), 5)),
    history=range(100),
)


def drawn(progress, width, height=None):
    terminal = Terminal(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    terminal.print(panel("apex", "seed 1", progress, width, height))
    return terminal.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("height", [24, 20, 10, None])
def test_the_panel_shows_roles_within_the_terminal(width, height):
    rows = drawn(SHOWN, width, height)
    assert {len(row) for row in rows} == {min(width, 110)}
    text = "\n".join(rows)
    for said in ("actor x32", "816", "66%   22%    0%", "512 of 1k rows", "12 updates behind", "restarts 2",
                 "123% of human", "bottleneck learner: busy 97%", "3.9 of 4 samp"):  # fmt: skip
        assert said in text
    assert height is None or len(rows) < max(height, 18)
    assert width < 80 or "26 (10-41)" in text or "25.5 (10-41)" in text


def test_every_share_stays_within_its_bar():
    odd = groups(
        role("learner", 7.0, -1.0, float("inf"), 1e12, 10**9, 10**12) | role("a" * 99, 0.3, 0.3, 0.3)
    )
    for width in (60, 80, 120):
        assert {len(row) for row in drawn(dataclasses.replace(SHOWN, roles=odd), width)} == {min(width, 110)}


def test_plain_lines_name_the_bottleneck():
    said = line(SHOWN)
    for part in ("(123% of human)", "busy actor x32 66%", "lag 12", "restarts 2", "bottleneck learner: busy"):
        assert part in said


def test_bytes():
    assert [size(x) for x in (0, 950, 1000, 12_345, 1_400_000, 3e10)] == [
        "0B", "950B", "1.0kB", "12kB", "1.4MB", "30GB",
    ]  # fmt: skip
