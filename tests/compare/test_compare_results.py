"""From run directories, written by hand, to standings, tables, notes and figure."""

import csv
import dataclasses
import io
import json
import math

import numpy as np
import pytest

from troop.compare import report, table
from troop.compare.notes import notes
from troop.compare.plan import Attempt, Plan, run_path
from troop.compare.ranking import answer, band, fitting, standings
from troop.compare.run_result import RunResult, gather
from troop.runs.summary import Summary

MACHINE = {
    "cpu": "Abacus",
    "cores": 2,
    "gpu": None,
    "memory_gb": 1.0,
    "system": "Linux",
    "torch": "2",
    "troop": "0",
}


def plan_of(*recipes, seeds=3, engine="Inline", **changes):
    made = {recipe: {"engine": {"kind": engine}} for recipe in recipes}
    plan = Plan("Toy-v0", 2.0, None, seeds, (), (), MACHINE, made)
    return dataclasses.replace(plan, **changes)


def leave(folder, recipe, seed, points, status="done", **fields):
    """A run directory with evaluations (seconds, env steps, return), and log lines between them."""
    path = run_path(folder, recipe, seed)
    path.mkdir(parents=True)
    (path / "config.json").write_text("{}")
    lines = [{"wall_s": 0.5, "env_steps": 3, "updates": 0, "train/return": 1e9}]
    lines += [{"wall_s": s, "env_steps": n, "updates": n, "eval/return_mean": r} for s, n, r in points]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (path / "metrics.jsonl").write_text(text + '{"wall_s": 9e9, "env_st')  # a torn last line
    known = {"wall_s": 120.0, "env_steps": 1000, "env_steps_per_s": 100.0} | fields
    Summary(status, **known).write(path)


@pytest.fixture
def walked(tmp_path):
    """`hare` is quick on two seeds and never arrives on the third; `snail` always arrives, late."""
    for seed, (first, last) in enumerate([(60, 100), (70, 100), (10, 20)], 1):
        leave(tmp_path, "hare", seed, [(10 * seed, 100, first), (60, 500, last), (120, 1000, last)])
        leave(tmp_path, "snail", seed, [(30, 10, 0), (90 + seed, 50, 60), (120, 100, 96)])
    return tmp_path


def found_in(folder, plan):
    return standings(plan, gather(plan, folder))


def test_a_curve_is_the_iqm_of_runs_whose_last_value_is_held():
    a, b = np.array([1.0, 4.0]), np.array([2.0, 3.0, 6.0])
    runs = [RunResult("x", 1, "done", returns=np.array([10.0, 20.0]), seconds=a)]
    runs += [RunResult("x", 2, "done", returns=np.array([0.0, 30.0, 50.0]), seconds=b)]
    found = band([a, b], runs)
    assert found.at.tolist() == [2, 3, 4, 6]  # from where both have a value to the last of all
    assert found.middle.tolist() == [5, 20, 25, 35]  # of two runs: their mean
    assert (found.low <= found.middle).all() and (found.middle <= found.high).all()
    assert found.low.tolist() == [0, 10, 20, 20] and found.high.tolist() == [10, 30, 30, 50]


def test_final_return_and_times_by_hand(walked):
    plan = plan_of("hare", "snail", thresholds=(90.0, 50.0))
    first, second = found_in(walked, plan)
    assert (first.recipe, second.recipe) == ("hare", "snail")
    assert first.final[0] == pytest.approx((20 / 4 + 100 + 100 / 4) / 1.5)
    assert [reach.threshold for reach in first.reached] == [50, 90]
    assert first.reached[0].seconds == [10, 20, math.inf] and first.reached[0].time == 20
    assert first.reached[1].time == 60 and first.reached[1].count == 2
    assert second.reached[0].time == 92 and second.reached[0].env_steps == [50, 50, 50]
    assert first.rate == 100
    assert answer([first, second]) == (
        "Fastest to 90: hare, 1m 00s of training (median of 3 seeds); next snail, 2m 00s. "
        "hare was sooner in 6 of 9 pairs of runs."
    )


def test_the_answer_says_how_little_it_knows(tmp_path):
    plan = plan_of("a", "b", seeds=1, thresholds=(50.0, 90.0))
    assert answer(found_in(tmp_path, plan)) == "No run is done yet."
    leave(tmp_path, "a", 1, [(10, 10, 60), (20, 20, 60)])
    assert answer(found_in(tmp_path, plan)) == (
        "Fastest to 50: a, 10s of training (one seed); b has no result yet."
    )
    leave(tmp_path, "b", 1, [(9, 10, 0), (19, 20, 60)])
    assert answer(found_in(tmp_path, plan)).endswith("; next b, 19s, less than one evaluation later.")
    assert answer(found_in(tmp_path, plan_of("a", "b", seeds=1, thresholds=(70.0,)))) == (
        "No recipe reached a threshold."
    )
    assert answer(found_in(tmp_path, plan_of("a", seeds=1, thresholds=(5.0,)))).endswith("(one seed).")


def test_who_reaches_more_comes_before_who_is_sooner_and_return_decides_the_rest(tmp_path):
    leave(tmp_path, "quick", 1, [(1, 10, 50), (120, 1000, 50)])
    leave(tmp_path, "far", 1, [(60, 10, 50), (100, 500, 90), (120, 1000, 90)])
    leave(tmp_path, "poor", 1, [(60, 10, 5), (120, 1000, 5)])
    leave(tmp_path, "poorer", 1, [(60, 10, 5), (120, 1000, 4)])
    plan = plan_of("poorer", "poor", "absent", "quick", "far", seeds=1, thresholds=(40.0, 80.0, 1000.0))
    assert [s.recipe for s in found_in(tmp_path, plan)] == ["far", "quick", "poor", "poorer", "absent"]


@pytest.mark.parametrize(
    ("best", "worst", "wanted"),
    [
        (1000, 20, [500, 750, 900]),  # nothing negative: shares of the best
        (-150, -1250, [-700, -430, -260]),  # a way of 1,100 that begins at the worst
        (250, -200, [25, 137, 205]),
        (1.0, 0.0, [0.5, 0.75, 0.9]),
        (7.0, 7.0, [3.5, 5.25, 6.3]),
        (-3.0, -3.0, [-3.0]),
        (0.0, 0.0, [0.0]),
    ],
)
def test_thresholds_that_fit(best, worst, wanted):
    run = RunResult(
        "x", 1, "done", returns=np.array([float(worst), float(best)]), seconds=np.array([1.0, 2.0])
    )
    assert fitting([band([run.seconds], [run]), None], [run]) == wanted


def test_a_failed_run_counts_as_one_that_got_no_further(walked):
    plan = plan_of("hare", "snail", thresholds=(50.0, 90.0))
    Summary("failed", message="boom").write(run_path(walked, "hare", 2))
    plan = plan.noted(Attempt("hare", 2, "now", 0.0, "failed", "NaN in the critic."))
    (run_path(walked, "hare", 2) / "metrics.jsonl").write_text(
        '{"wall_s": 20, "env_steps": 100, "updates": 1, "eval/return_mean": 70}\n'
    )
    hare = next(s for s in found_in(walked, plan) if s.recipe == "hare")
    assert len(hare.done) == 2 and hare.final[0] == 60  # (100 + 20) / 2
    assert hare.reached[0].seconds == [10, 20, math.inf] and hare.reached[1].seconds == [
        60,
        math.inf,
        math.inf,
    ]
    assert table.cells([hare])[1][1] == "2 of 3, 1 failed"
    assert table.cells([hare])[1][5] == "- (1 of 3)"
    assert notes(plan, [hare])[0] == "hare seed 2 failed: NaN in the critic."


def test_runs_that_are_not_done_say_nothing_yet(walked):
    plan = plan_of("hare", "snail", "tortoise", seeds=4, thresholds=(50.0,))
    leave(walked, "snail", 4, [(1, 1, 1e6)], status="stopped")
    found = {s.recipe: s for s in found_in(walked, plan)}
    assert len(found["snail"].done) == 3 and found["snail"].reached[0].seconds == [91, 92, 93]
    assert found["tortoise"].final is None and found["tortoise"].reached[0].seconds == []
    told = notes(plan, list(found.values()))
    assert "Not finished and left out: snail seed 4." in told
    assert any(text.startswith("Not started") and "tortoise seed 2" in text for text in told)


def test_notes_tell_of_early_ends_restarts_and_a_busy_machine(tmp_path):
    leave(tmp_path, "a", 1, [(50, 10, 1)], wall_s=50.0, restarts=2)
    leave(tmp_path, "b", 1, [(120, 10, 1)])
    plan = plan_of("a", "b", seeds=1, engine="Processes")
    for outcome in ("stopped", "done"):
        plan = plan.noted(Attempt("b", 1, outcome, 0.4 if outcome == "done" else 0.0, outcome))
    told = "\n".join(notes(plan, found_in(tmp_path, plan)))
    assert "a seed 1 ended early, after 50 s and 1,000 env steps." in told
    assert "a seed 1: restarts of roles 2." in told and "b seed 1: resumed 1." in told
    assert "(up to 40%) at the start of b seed 1:" in told
    assert "beside training" in told and "One run of each" in told
    quiet = notes(plan_of("b", seeds=1), found_in(tmp_path, plan_of("b", seeds=1)))
    assert not any("early" in text or "resumed" in text or "beside" in text for text in quiet)


def test_markdown_csv_json_and_figure_agree(walked):
    plan = plan_of("hare", "snail", thresholds=(50.0, 90.0), flags=("--envs", "4"))
    found, told = report.write(plan, walked)
    page = (walked / "results.md").read_text()
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if "|" in line
    ]
    assert rows[0] == [
        "recipe",
        "runs",
        "return (IQM)",
        "95 % interval",
        "to 50",
        "to 90",
        "steps to 90",
        "env steps/s",
    ]
    assert rows[2] == [
        "hare",
        "3 of 3",
        "86.67",
        "20 to 100",
        "20s (2 of 3)",
        "1m 00s (2 of 3)",
        "500",
        "100",
    ]
    assert "Abacus" in page and "`--envs 4`" in page and "![curves](results.png)" in page
    lines = list(csv.DictReader(io.StringIO((walked / "results.csv").read_text())))
    assert len(lines) == 6 and lines[2]["recipe"] == "hare" and lines[2]["seconds_to_90"] == ""
    assert lines[3]["recipe"] == "snail" and float(lines[3]["seconds_to_50"]) == 91
    known = json.loads((walked / "results.json").read_text())
    assert known["answer"] == answer(found) and known["notes"] == told and known["thresholds"] == [50, 90]
    hare = known["recipes"][0]
    assert hare["return"]["iqm"] == pytest.approx(86.667, abs=1e-3) and hare["reached"][1]["runs"] == 2
    assert hare["by_seconds"]["at"] == [30, 60, 120] and hare["by_env_steps"]["at"] == [100, 500, 1000]
    assert known["runs"][2]["reached"]["90"] == {"seconds": None, "env_steps": None}
    assert (walked / "results.png").read_bytes()[:4] == b"\x89PNG"


def test_the_same_results_come_out_twice(walked):
    plan = plan_of("hare", "snail")
    written = []
    for _ in range(2):
        report.write(plan, walked)
        written.append([(walked / f"results.{kind}").read_bytes() for kind in ("json", "csv", "md")])
    assert written[0] == written[1]


def test_nothing_done_yet_is_a_table_too(tmp_path, capsys):
    plan = plan_of("hare", "snail")
    found, told = report.write(plan, tmp_path)
    report.show(plan, tmp_path, found, told)
    said = capsys.readouterr().out
    assert "No run is done yet." in said and "0 of 3" in said


def test_a_picture_without_matplotlib_is_a_note(walked, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    _, told = report.write(plan_of("hare", "snail"), walked)
    assert "trooprl[plots]" in told[-1] and "results.png" not in (walked / "results.md").read_text()
