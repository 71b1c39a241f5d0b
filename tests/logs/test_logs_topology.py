"""Groups of roles, data flow, ratios and the bottleneck, from a system's description and its metrics."""

import dataclasses
import io

import pytest
from rich.console import Console as Terminal

from troop.logs.bottleneck import bottleneck, split_bottleneck, time_split
from troop.logs.console import line
from troop.logs.flow import Flow, RatioReading, ratio_metrics, read_flow
from troop.logs.panel import panel
from troop.logs.progress import Progress, size
from troop.logs.roles_table import flow_lines
from troop.logs.topology import NodeSpec, RatioSpec, Topology, fold_groups, group_name, groups


def nodes(prefix, count, kind, *calls):
    return tuple(NodeSpec(f"{prefix}{i}", kind, calls) for i in range(count))


APEX = Topology(
    (
        NodeSpec("replay", "storing"),
        NodeSpec("replay1", "storing"),
        NodeSpec("weights", "serving"),
        NodeSpec("learner", "learning", ("replay", "replay1", "weights")),
        *nodes("actor", 64, "acting", "replay", "weights"),
        NodeSpec("evaluator", "evaluating", ("weights",)),
    )
)
SYNC = Topology((NodeSpec("trainer", "training"), NodeSpec("evaluator", "evaluating", ("trainer",))))
GORILA = Topology((NodeSpec("server", "serving"), *nodes("bundle", 2, "training", "server")))
PQL_NODES = (
    NodeSpec("policies", "serving"),
    NodeSpec("critics", "serving"),
    NodeSpec("observations", "storing"),
    NodeSpec("policy", "learning", ("critics", "observations", "policies")),
    NodeSpec("transitions", "storing"),
    NodeSpec("critic", "learning", ("policies", "transitions", "critics")),
    NodeSpec("actor", "acting", ("transitions", "observations", "policies")),
)


def pql_topology(beta_av=8.0, beta_pv=2.0):
    ratios = (
        RatioSpec("beta_av", ("critic/updates",), ("critic/steps",), "critic updates/step", beta_av),
        RatioSpec(
            "beta_pv",
            ("critic/updates", "policy/steps"),
            ("critic/steps", "policy/updates"),
            "per policy update",
            beta_pv,
        ),
    )
    return Topology(PQL_NODES, ratios)


PQL = pql_topology()


def role(node, busy=0.0, waiting=0.0, blocked=0.0, rate=0.0, queue=0, queue_bytes=0):
    values = {"busy": busy, "waiting": waiting, "blocked": blocked, "idle": 1 - busy - waiting - blocked}
    values |= {"steps_per_s": rate, "queue": queue, "queue_bytes": queue_bytes}
    return {f"role/{node}/{name}": value for name, value in values.items()}


def apex(actor=0.5, waiting=0.0, blocked=0.0, learner=0.5, learner_waits=0.0, replay=0.3, actors=4):
    metrics = {}
    for i in range(actors):
        metrics |= role(f"actor{i}", actor, waiting, blocked, 10.0 + i)
    metrics |= role("evaluator", 0.99) | role("weights", 0.01)
    return metrics | role("replay", replay) | role("learner", learner, learner_waits, rate=49.3)


def replay(name, rows, target=4.0, samples_per_insert=3.9):
    values = {
        "rows": rows,
        "capacity": 1000,
        "samples_per_insert": samples_per_insert,
        "samples_per_insert_target": target,
    }
    return {f"{name}/{what}": value for what, value in values.items()}


def test_group_names():
    names = ("actor12", "actor/12", "actor_1", "learner", "replay", "replay1", "7")
    assert [group_name(name) for name in names] == ["actor"] * 3 + ["learner", "replay", "replay", "7"]


def test_groups_come_in_the_order_of_the_data_flow_with_sums_and_spreads():
    metrics = apex(actors=32) | role("replay1", 0.9, queue=3, queue_bytes=5000) | role("odd", 0.1)
    found = groups(metrics, APEX)
    assert [(x.name, x.count) for x in found] == [
        ("actor", 32), ("replay", 2), ("learner", 1), ("weights", 1), ("odd", 1), ("evaluator", 1),
    ]  # fmt: skip
    actors, replays = found[:2]
    assert (actors.rate.low, actors.rate.high, actors.rate.mean, actors.rate.total) == (10, 41, 25.5, 816)
    assert (replays.busy.mean, replays.busy.high) == (pytest.approx(0.6), 0.9)
    assert (replays.queue, replays.queue_bytes) == (3, 5000)
    assert actors.calls == {"replay", "weights"} and replays.calls == set()
    assert groups({"loss/critic": 1.0, "replay/rows": 3}, APEX) == []


SAMPLE_AGES = {"replay/sample_age": 300, "replay1/sample_age": 500, "rate/env_steps_per_s": 160.0}


def test_flow_sums_the_rows_of_shards_and_averages_their_ratios():
    shards = replay("replay", 100) | replay("replay1", 300, samples_per_insert=4.1)
    flow = read_flow(shards | {"policy/lag": 12} | SAMPLE_AGES, APEX)  # 80 rows per second in each shard
    assert (flow.rows, flow.capacity, flow.policy_lag, flow.sample_age_s) == (400, 2000, 12, 5)
    assert flow.samples_per_insert_target == 4.0 and flow.samples_per_insert == pytest.approx(4.0)
    assert flow.gradients is None and flow.limit == " at 4 samples/insert"
    servers = {f"server{i}/{name}": 10.0 for i in ("", "1") for name in ("applied", "dropped_stale", "delay")}
    assert read_flow(servers, GORILA).gradients == {
        "applied": 10, "dropped_stale": 10, "dropped_outlier": 0, "delay": 10
    }  # fmt: skip
    assert read_flow({}, APEX) == Flow()


def pql(critic=(805, 100.0), policy=(402, 100.5)):
    return {
        f"{learner}/{name}": value
        for learner, counts in (("critic", critic), ("policy", policy))
        for name, value in zip(("updates", "steps"), counts, strict=True)
    }


def test_ratios_are_computed_from_the_metrics_that_the_system_declares():
    flow = read_flow(pql() | {"loss/critic": 1.0}, PQL)
    assert [ratio.name for ratio in flow.ratios] == ["beta_av", "beta_pv"]
    assert ratio_metrics(flow) == {
        "ratio/beta_av": 8.05, "ratio/beta_pv": pytest.approx(8.05 / 4.0), "ratio/beta_av_target": 8.0,
        "ratio/beta_pv_target": 2.0,
    }  # fmt: skip
    assert ratio_metrics(read_flow({}, PQL)) == {} and read_flow(pql(critic=(0, 0.0)), PQL).ratios == ()
    without_target = read_flow(pql((300, 100.0), (100, 100.0)), pql_topology(None, None))
    assert ratio_metrics(without_target) == {"ratio/beta_av": 3.0, "ratio/beta_pv": 3.0}
    assert without_target.limit == ""


@pytest.mark.parametrize("targets, text", [
    ((8.0, 2.0), "8.05 of 8 critic updates/step   2.01 of 2 per policy update"),
    ((None, None), "8.05 critic updates/step   2.01 per policy update, no target"),
])  # fmt: skip
def test_ratios_are_on_the_panel(targets, text):
    flow = read_flow(pql(), pql_topology(*targets))
    (ratios,) = (parts for label, parts in flow_lines(flow, 80) if label == "ratios")
    assert "".join(piece for piece, _ in ratios) == text


def test_metrics_of_many_roles_are_written_as_one_group():
    few, many = apex(actors=8), apex(actors=9) | {"loss/critic": 1.0}
    assert fold_groups(few) == few
    written = fold_groups(many)
    assert not [name for name in written if name.startswith("role/actor")]
    rates = [written[f"roles/actor/{name}"] for name in ("steps_per_s", "steps_per_s_min", "steps_per_s_max")]
    assert (rates, written["roles/actor/count"]) == ([14.0, 10.0, 18.0], 9)
    assert written["role/learner/busy"] == 0.5 and written["loss/critic"] == 1.0


def test_metrics_of_many_replays_and_servers_are_written_as_one_group():
    replays = {f"replay{i}/{name}": float(i) for i in range(9) for name in ("rows", "sample_age")}
    servers = {f"server{i or ''}/applied": 5.0 for i in range(3)}
    assert fold_groups(replays | servers) == servers | {
        "replays/count": 9,
        "replays/rows": 4.0, "replays/rows_min": 0.0, "replays/rows_max": 8.0,
        "replays/sample_age": 4.0, "replays/sample_age_min": 0.0, "replays/sample_age_max": 8.0,
    }  # fmt: skip


AT_TARGET = Flow(samples_per_insert_target=4.0, samples_per_insert=4.0)
FREE = Flow(samples_per_insert_target=0.0, samples_per_insert=9.0)
BELOW_TARGET = Flow(samples_per_insert_target=4.0, samples_per_insert=2.0)
APEX_CASES = {
    "learner starved": (apex(0.97, learner=0.4, learner_waits=0.6), AT_TARGET, "actors: busy 97%"),
    "learner idle": (apex(0.97, learner=0.4), AT_TARGET, "learner idle 60% at 4 samples/insert"),
    "unknown ratio": (apex(0.97, learner=0.4, learner_waits=0.6), Flow(), "actors: busy 97%, learner waits"),
    "actors limited": (apex(0.4, waiting=0.6, learner=0.98), AT_TARGET, "learner: busy 98%, actors wait 60%"),
    "actors limited, busy replay": (apex(0.4, learner=0.98, replay=0.9), AT_TARGET, "learner: "),
    "free, busy learner": (apex(0.8, 0.2, learner=0.98), FREE, "learner: busy 98%, actors wait 20%"),
    "full queue": (apex(0.6, blocked=0.4), AT_TARGET, "replay: busy 30%, actors blocked 40%"),
    "busy replay": (apex(0.6, 0.4, learner_waits=0.5, replay=0.97), AT_TARGET, "replay: busy 97%"),
    "late batches": (apex(0.97, learner=0.5, replay=0.97), BELOW_TARGET, "replay: busy 97%"),
    "free, late batches": (apex(0.97, learner=0.5, learner_waits=0.5), FREE, "replay: batches arrive late"),
    "both busy": (apex(0.95, learner=0.95, replay=0.9), AT_TARGET, "actors and learner: both are busy"),
    "balanced": (apex(0.7, learner=0.7), AT_TARGET, "none: balanced at 4 samples/insert; actors 70%"),
    "nothing saturated": (apex(0.5, learner=0.8), FREE, "none: no role is saturated"),
    "paused": (apex(0.0, learner=0.0, replay=0.0), AT_TARGET, "none: all roles are paused"),
    "one busy shard": (
        apex(0.5, 0.5, learner_waits=0.5) | role("replay1", 0.99), AT_TARGET, "replays: busy 99%",
    ),
    "no replay": (role("actor0", 0.5, 0.0, 0.5) | role("learner", 0.8), Flow(), "learner: busy 80%, actor0"),
    "unknown role": (role("oracle", 0.99), Flow(), "oracle: busy 99%"),
}  # fmt: skip


@pytest.mark.parametrize("case", APEX_CASES)
def test_bottleneck_of_actors_and_a_learner(case):
    metrics, flow, text = APEX_CASES[case]
    assert text in str(bottleneck(groups(metrics, APEX), flow, updates=5))


OTHER_CASES = {
    "trainer": (SYNC, role("trainer", 0.99) | role("evaluator", 0.2),
                "trainer: busy 99%, it acts and learns in turn"),
    "server": (GORILA, role("bundle0", 0.4, 0.6) | role("bundle1", 0.4, 0.6) | role("server", 0.9),
               "server: busy 90%, bundles wait 60%"),
    "critic learner": (
        PQL, role("actor", 0.3, 0.6) | role("critic", 0.97) | role("policy", 0.5) | role("transitions", 0.1),
        "critic: busy 97%, actor waits 60% at 8 critic updates/step",
    ),
    "policy learner": (pql_topology(None, None),
                       role("actor", 0.3, 0.6) | role("critic", 0.5) | role("policy", 0.97),
                       "policy: busy 97%, actor waits 60%"),
}  # fmt: skip


@pytest.mark.parametrize("case", OTHER_CASES)
def test_bottleneck_of_other_systems(case):
    topology, metrics, text = OTHER_CASES[case]
    assert text in str(bottleneck(groups(metrics, topology), read_flow(pql(), topology), updates=5))


def test_pql_groups_come_in_the_order_of_the_data_flow():
    metrics = {}
    for node in PQL_NODES:
        metrics |= role(node.name, 0.5)
    assert [group.name for group in groups(metrics, PQL)] == [
        "actor", "observations", "transitions", "policy", "critic", "policies", "critics",
    ]  # fmt: skip


def test_before_the_first_update_data_are_collected():
    roles = groups(apex(0.97, learner=0.0, learner_waits=0.9), APEX)
    assert "before the first update" in str(bottleneck(roles, AT_TARGET, updates=0))
    assert bottleneck([], AT_TARGET, 0) is None


# A system unknown to the logging code: scouts play, an archive stores, a coach learns from the archive,
# a gossip server distributes its weights, and a scribe serves only the referee.
INVENTED = Topology(
    (
        NodeSpec("archive", "storing"),
        NodeSpec("gossip", "serving"),
        NodeSpec("scribe", "serving"),
        NodeSpec("coach", "learning", ("archive", "gossip")),
        *nodes("scout", 3, "acting", "archive", "gossip"),
        NodeSpec("referee", "evaluating", ("gossip", "scribe")),
    ),
    (RatioSpec("drill", ("coach/drills",), ("scout/games",), "drills/game", 3.0),),
)


def invented(scout, coach, scout_waits=0.0):
    metrics = {"coach/drills": 290.0, "scout/games": 100.0}
    metrics |= role("referee", 0.99) | role("scribe", 0.99) | role("gossip", 0.02) | role("coach", coach)
    for i in range(3):
        metrics |= role(f"scout{i}", scout, scout_waits)
    return metrics | role("archive", 0.3)


def test_invented_system_needs_no_change_of_the_logging_code():
    metrics = invented(scout=0.4, coach=0.97, scout_waits=0.6)
    roles, flow = groups(metrics, INVENTED), read_flow(metrics, INVENTED)
    assert [(x.name, x.count) for x in roles] == [
        ("scout", 3), ("archive", 1), ("coach", 1), ("gossip", 1), ("scribe", 1), ("referee", 1),
    ]  # fmt: skip
    assert flow.ratios == (RatioReading("drill", 2.9, "drills/game", 3.0),)
    assert ratio_metrics(flow) == {"ratio/drill": 2.9, "ratio/drill_target": 3.0}
    assert str(bottleneck(roles, flow, 5)) == "coach: busy 97%, scouts wait 60% at 3 drills/game"
    busy_scouts = invented(scout=0.97, coach=0.5)
    roles = groups(busy_scouts, INVENTED)
    assert str(bottleneck(roles, flow, 5)) == "scouts: busy 97%, coach idle 50% at 3 drills/game"
    text = "\n".join(draw(dataclasses.replace(SHOWN, flow=flow, roles=roles), 100))
    assert "2.9 of 3 drills/game" in text
    assert text.index("scout x3") < text.index("archive") < text.index("coach") < text.index("referee")


METRICS = apex(0.66, waiting=0.22, learner=0.97, actors=32) | replay("replay", 512) | {"policy/lag": 12.4}
SHOWN = Progress(
    env_steps=1_253_000,
    updates=31_200,
    wall_s=312.3,
    return_mean=812.4,
    human_normalized=123.4,
    episode_return=790.1,
    losses={f"loss/{i}": 0.1 * i for i in range(20)},
    counters={"restarts": 2},
    flow=read_flow(METRICS, APEX),
    roles=groups(METRICS, APEX),
    bottleneck=str(bottleneck(groups(METRICS, APEX), read_flow(METRICS, APEX), 5)),
    history=range(100),
)


def draw(progress, width, height=None):
    terminal = Terminal(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    terminal.print(panel("apex", "seed 1", progress, width, height))
    return terminal.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("height", [24, 20, 10, None])
def test_the_panel_shows_roles_within_the_terminal(width, height):
    rows = draw(SHOWN, width, height)
    assert {len(row) for row in rows} == {min(width, 110)}
    text = "\n".join(rows)
    for part in ("actor x32", "816", "66%   22%    0%", "512 of 1k rows", "12 updates behind", "restarts 2",
                 "123% of human", "bottleneck learner: busy 97%", "3.9 of 4 samp"):  # fmt: skip
        assert part in text
    assert height is None or len(rows) < max(height, 18)
    assert width < 100 or "25.5 (10-41)" in text
    assert width < 80 or "cores memory" in text


def test_every_share_stays_within_its_bar():
    odd = groups(
        role("learner", 7.0, -1.0, float("inf"), 1e12, 10**9, 10**12) | role("a" * 99, 0.3, 0.3, 0.3), APEX
    )
    for width in (60, 80, 120):
        assert {len(row) for row in draw(dataclasses.replace(SHOWN, roles=odd), width)} == {min(width, 110)}


def test_cpu_and_memory_of_a_group_are_sums():
    metrics = apex(actors=2)
    for i, node in enumerate(("actor0", "actor1", "learner")):
        metrics |= {f"role/{node}/cpu": 0.25 * (i + 1), f"role/{node}/memory_bytes": 4e8 * (i + 1)}
    found = {group.name: group for group in groups(metrics, APEX)}
    assert (found["actor"].cpu, found["actor"].memory_bytes) == (0.75, 1.2e9)
    for width in (80, 120):
        rows = draw(dataclasses.replace(SHOWN, roles=groups(metrics, APEX)), width)
        assert any("actor x2" in row and "0.8  1.2GB" in row for row in rows)
        assert {len(row) for row in rows} == {min(width, 110)}


SPLIT = {"act": 0.05, "env": 0.3, "learn": 0.6, "evaluate": 0.04, "other": 0.01}


def test_time_split_has_the_shares_of_one_thread():
    split = time_split(act_s=1, env_s=6, learn_s=12, evaluation_s=1, total_s=25)
    assert split == pytest.approx({"act": 0.04, "env": 0.24, "learn": 0.48, "evaluate": 0.04, "other": 0.2})
    assert time_split(0, 0, 0, 5, 10) == {}
    # Clocks of parts and of the whole are read at different moments; shares never exceed one.
    assert sum(time_split(1, 1, 9, 0, 10).values()) == pytest.approx(1.0)


@pytest.mark.parametrize(("split", "updates", "text"), [
    (SPLIT, 5, "learn: 60% of the time, env 30%, act 5%"),
    ({"act": 0.1, "env": 0.8, "learn": 0.1}, 5, "env: 80% of the time, act 10%, learn 10%"),
    ({"act": 0.1, "env": 0.9, "learn": 0.0}, 0,
     "env: 90% of the time; data are collected before the first update"),
    ({"act": 0.1, "env": 0.35, "learn": 0.35, "other": 0.2}, 5,
     "none: env 35%, learn 35%, other 20%, act 10%"),
    ({}, 5, "None"),
])  # fmt: skip
def test_bottleneck_of_one_thread_is_its_largest_part(split, updates, text):
    assert str(split_bottleneck(split, updates)) == text


def test_panel_of_one_thread_shows_split_bottleneck_and_process():
    text = str(split_bottleneck(SPLIT, 5))
    shown = dataclasses.replace(
        SHOWN, roles=[], split=SPLIT, bottleneck=text, cpu=1.94, memory_bytes=1.2e9, growing=["trainer"]
    )
    for width in (80, 120):
        rows = draw(shown, width, 24)
        drawn = "\n".join(rows)
        for part in ("act 5%", "env 30%", "learn 60%", "evaluate 4%", "other 1%", f"bottleneck {text}",
                     "1.9 cores   1.2GB of memory", "memory of trainer grows"):  # fmt: skip
            assert part in drawn
        assert {len(row) for row in rows} == {min(width, 110)}
    assert "learn 60%" in line(shown) and "1.9 cores 1.2GB" in line(shown) and text in line(shown)


def test_plain_lines_name_the_bottleneck():
    text = line(SHOWN)
    for part in ("(123% of human)", "busy actor x32 66%", "lag 12", "restarts 2", "bottleneck learner: busy"):
        assert part in text


def test_sizes_in_bytes():
    assert [size(x) for x in (0, 950, 1000, 12_345, 1_400_000, 3e10)] == [
        "0B", "950B", "1.0kB", "12kB", "1.4MB", "30GB",
    ]  # fmt: skip
