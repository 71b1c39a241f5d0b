"""Hand-written run directories become ranked results, tables, notes and a figure."""

import csv
import dataclasses
import io
import json
import math

import numpy as np
import pytest

from troop.compare import report, table
from troop.compare.notes import notes
from troop.compare.plan import Attempt, ComparisonPlan, run_path
from troop.compare.ranking import answer, curve_band, default_thresholds, rank_recipes
from troop.compare.run_result import RunResult, read_runs
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


def make_plan(*recipes, seeds=3, engine="Inline", **changes):
    experiments = {recipe: {"engine": {"kind": engine}} for recipe in recipes}
    plan = ComparisonPlan("Toy-v0", 2.0, None, seeds, (), (), MACHINE, experiments)
    return dataclasses.replace(plan, **changes)


def write_run(folder, recipe, seed, points, status="done", **fields):
    """Write a run directory with evaluations `points` (seconds, env steps, return) after one log line."""
    path = run_path(folder, recipe, seed)
    path.mkdir(parents=True)
    (path / "config.json").write_text("{}")
    lines = [{"wall_s": 0.5, "env_steps": 3, "updates": 0, "train/return": 1e9}]
    lines += [{"wall_s": s, "env_steps": n, "updates": n, "eval/return_mean": r} for s, n, r in points]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (path / "metrics.jsonl").write_text(text + '{"wall_s": 9e9, "env_st')  # a truncated last line
    values = {"wall_s": 120.0, "env_steps": 1000, "env_steps_per_s": 100.0} | fields
    Summary(status, **values).write(path)


@pytest.fixture
def two_recipes(tmp_path):
    """`hare` is fast on two seeds and never reaches 90 on the third; `snail` reaches it late on all seeds."""
    for seed, (first, last) in enumerate([(60, 100), (70, 100), (10, 20)], 1):
        write_run(tmp_path, "hare", seed, [(10 * seed, 100, first), (60, 500, last), (120, 1000, last)])
        write_run(tmp_path, "snail", seed, [(30, 10, 0), (90 + seed, 50, 60), (120, 100, 96)])
    return tmp_path


def ranked(folder, plan):
    return rank_recipes(plan, read_runs(plan, folder))


def test_curve_band_is_iqm_of_forward_filled_runs():
    a, b = np.array([1.0, 4.0]), np.array([2.0, 3.0, 6.0])
    runs = [RunResult("x", 1, "done", returns=np.array([10.0, 20.0]), seconds=a)]
    runs += [RunResult("x", 2, "done", returns=np.array([0.0, 30.0, 50.0]), seconds=b)]
    band = curve_band([a, b], runs)
    assert band.x.tolist() == [2, 3, 4, 6]  # from where both have a value to the last evaluation
    assert band.iqm.tolist() == [5, 20, 25, 35]  # of two runs: their mean
    assert (band.low <= band.iqm).all() and (band.iqm <= band.high).all()
    assert band.low.tolist() == [0, 10, 20, 20] and band.high.tolist() == [10, 30, 30, 50]


def test_final_return_and_times_equal_hand_computed_values(two_recipes):
    plan = make_plan("hare", "snail", thresholds=(90.0, 50.0))
    first, second = ranked(two_recipes, plan)
    assert (first.recipe, second.recipe) == ("hare", "snail")
    assert first.final_return[0] == pytest.approx((20 / 4 + 100 + 100 / 4) / 1.5)
    assert [time.threshold for time in first.thresholds] == [50, 90]
    assert first.thresholds[0].seconds == [10, 20, math.inf] and first.thresholds[0].median_seconds == 20
    assert first.thresholds[1].median_seconds == 60 and first.thresholds[1].reached == 2
    assert second.thresholds[0].median_seconds == 92 and second.thresholds[0].env_steps == [50, 50, 50]
    assert first.env_steps_per_s == 100
    assert answer([first, second]) == (
        "Fastest to 90: hare, 1m 00s of training (median of 3 seeds); next snail, 2m 00s. "
        "hare was faster in 6 of 9 pairs of runs."
    )


def test_answer_states_missing_runs_and_small_differences(tmp_path):
    plan = make_plan("a", "b", seeds=1, thresholds=(50.0, 90.0))
    assert answer(ranked(tmp_path, plan)) == "No run is done yet."
    write_run(tmp_path, "a", 1, [(10, 10, 60), (20, 20, 60)])
    assert answer(ranked(tmp_path, plan)) == (
        "Fastest to 50: a, 10s of training (one seed); b has no result yet."
    )
    write_run(tmp_path, "b", 1, [(9, 10, 0), (19, 20, 60)])
    assert answer(ranked(tmp_path, plan)).endswith("; next b, 19s, less than one evaluation later.")
    assert answer(ranked(tmp_path, make_plan("a", "b", seeds=1, thresholds=(70.0,)))) == (
        "No recipe reached a threshold."
    )
    assert answer(ranked(tmp_path, make_plan("a", seeds=1, thresholds=(5.0,)))).endswith("(one seed).")


def test_recipes_are_ranked_by_thresholds_reached_then_time_then_return(tmp_path):
    write_run(tmp_path, "quick", 1, [(1, 10, 50), (120, 1000, 50)])
    write_run(tmp_path, "far", 1, [(60, 10, 50), (100, 500, 90), (120, 1000, 90)])
    write_run(tmp_path, "poor", 1, [(60, 10, 5), (120, 1000, 5)])
    write_run(tmp_path, "poorer", 1, [(60, 10, 5), (120, 1000, 4)])
    plan = make_plan("poorer", "poor", "absent", "quick", "far", seeds=1, thresholds=(40.0, 80.0, 1000.0))
    order = [result.recipe for result in ranked(tmp_path, plan)]
    assert order == ["far", "quick", "poor", "poorer", "absent"]


@pytest.mark.parametrize(
    ("best", "worst", "expected"),
    [
        (1000, 20, [500, 750, 900]),  # nothing negative: shares of the best
        (-150, -1250, [-700, -430, -260]),  # a span of 1,100 that starts at the worst
        (250, -200, [25, 137, 205]),
        (1.0, 0.0, [0.5, 0.75, 0.9]),
        (7.0, 7.0, [3.5, 5.25, 6.3]),
        (-3.0, -3.0, [-3.0]),
        (0.0, 0.0, [0.0]),
    ],
)
def test_default_thresholds_are_shares_of_the_best_return(best, worst, expected):
    run = RunResult(
        "x", 1, "done", returns=np.array([float(worst), float(best)]), seconds=np.array([1.0, 2.0])
    )
    assert default_thresholds([curve_band([run.seconds], [run]), None], [run]) == expected


def test_failed_run_counts_as_never_reaching_further_thresholds(two_recipes):
    plan = make_plan("hare", "snail", thresholds=(50.0, 90.0))
    Summary("failed", message="boom").write(run_path(two_recipes, "hare", 2))
    plan = plan.with_attempt(Attempt("hare", 2, "now", 0.0, "failed", "NaN in the critic."))
    (run_path(two_recipes, "hare", 2) / "metrics.jsonl").write_text(
        '{"wall_s": 20, "env_steps": 100, "updates": 1, "eval/return_mean": 70}\n'
    )
    hare = next(result for result in ranked(two_recipes, plan) if result.recipe == "hare")
    assert len(hare.done_runs) == 2 and hare.final_return[0] == 60  # (100 + 20) / 2
    assert hare.thresholds[0].seconds == [10, 20, math.inf]
    assert hare.thresholds[1].seconds == [60, math.inf, math.inf]
    assert table.cells([hare])[1][1] == "2 of 3, 1 failed"
    assert table.cells([hare])[1][5] == "- (1 of 3)"
    assert notes(plan, [hare])[0] == "hare seed 2 failed: NaN in the critic."


def test_unfinished_runs_are_left_out_and_noted(two_recipes):
    plan = make_plan("hare", "snail", "tortoise", seeds=4, thresholds=(50.0,))
    write_run(two_recipes, "snail", 4, [(1, 1, 1e6)], status="stopped")
    results = {result.recipe: result for result in ranked(two_recipes, plan)}
    snail, tortoise = results["snail"], results["tortoise"]
    assert len(snail.done_runs) == 3 and snail.thresholds[0].seconds == [91, 92, 93]
    assert tortoise.final_return is None and tortoise.thresholds[0].seconds == []
    texts = notes(plan, list(results.values()))
    assert "Not finished and left out: snail seed 4." in texts
    assert any(text.startswith("Not started") and "tortoise seed 2" in text for text in texts)


def test_notes_report_early_ends_restarts_and_background_load(tmp_path):
    write_run(tmp_path, "a", 1, [(50, 10, 1)], wall_s=50.0, restarts=2)
    write_run(tmp_path, "b", 1, [(120, 10, 1)])
    plan = make_plan("a", "b", seeds=1, engine="Processes")
    for outcome in ("stopped", "done"):
        plan = plan.with_attempt(Attempt("b", 1, outcome, 0.4 if outcome == "done" else 0.0, outcome))
    text = "\n".join(notes(plan, ranked(tmp_path, plan)))
    assert "a seed 1 ended early, after 50 s and 1,000 env steps." in text
    assert "a seed 1: restarts of roles 2." in text and "b seed 1: resumed 1." in text
    assert "up to 40% of the cores at the start of b seed 1:" in text
    assert "concurrently with training" in text and "One run per recipe" in text
    quiet = notes(make_plan("b", seeds=1), ranked(tmp_path, make_plan("b", seeds=1)))
    assert not any(word in note for note in quiet for word in ("early", "resumed", "concurrently"))


def test_markdown_csv_json_and_figure_agree(two_recipes):
    plan = make_plan("hare", "snail", thresholds=(50.0, 90.0), flags=("--envs", "4"))
    results, texts = report.write(plan, two_recipes)
    page = (two_recipes / "results.md").read_text()
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if "|" in line
    ]
    assert rows[0] == [
        "recipe",
        "runs",
        "return (IQM)",
        "95 % interval",
        "time to 50",
        "time to 90",
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
    lines = list(csv.DictReader(io.StringIO((two_recipes / "results.csv").read_text())))
    assert len(lines) == 6 and lines[2]["recipe"] == "hare" and lines[2]["seconds_to_90"] == ""
    assert lines[3]["recipe"] == "snail" and float(lines[3]["seconds_to_50"]) == 91
    values = json.loads((two_recipes / "results.json").read_text())
    assert values["answer"] == answer(results) and values["notes"] == texts
    assert values["thresholds"] == [50, 90]
    hare = values["recipes"][0]
    assert hare["return"]["iqm"] == pytest.approx(86.667, abs=1e-3)
    assert (hare["reached"][1]["runs_reached"], hare["reached"][1]["runs"]) == (2, 3)
    assert hare["by_seconds"]["x"] == [30, 60, 120] and hare["by_env_steps"]["x"] == [100, 500, 1000]
    assert values["runs"][2]["reached"]["90"] == {"seconds": None, "env_steps": None}
    assert (two_recipes / "results.png").read_bytes()[:4] == b"\x89PNG"


def test_rewriting_results_is_deterministic(two_recipes):
    plan = make_plan("hare", "snail")
    written = []
    for _ in range(2):
        report.write(plan, two_recipes)
        written.append([(two_recipes / f"results.{kind}").read_bytes() for kind in ("json", "csv", "md")])
    assert written[0] == written[1]


def test_table_is_shown_before_any_run_is_done(tmp_path, capsys):
    plan = make_plan("hare", "snail")
    report.show(plan, tmp_path, *report.write(plan, tmp_path))
    output = capsys.readouterr().out
    assert "No run is done yet." in output and "0 of 3" in output


def test_missing_matplotlib_becomes_a_note(two_recipes, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    _, texts = report.write(make_plan("hare", "snail"), two_recipes)
    assert "trooprl[plots]" in texts[-1] and "results.png" not in (two_recipes / "results.md").read_text()
