"""Hand-written suite directories become normalised results, tables, notes and a figure."""

import csv
import dataclasses
import io
import json
import math

import numpy as np
import pytest

from troop.compare.plan import Attempt, ComparisonPlan, run_path
from troop.compare.session import Comparison
from troop.runs.summary import Summary
from troop.suites import report, table
from troop.suites.notes import notes
from troop.suites.pairs import time_ratios
from troop.suites.plan import SuitePlan, task_path
from troop.suites.report import SuiteReport
from troop.suites.results import BEST_RETURN, LEVELS, aggregate, read_task
from troop.suites.task import Suite, Task

MACHINE = {
    "cpu": "Abacus", "cores": 2, "gpu": None, "memory_gb": 1.0, "system": "Linux", "torch": "2", "troop": "0",
}  # fmt: skip
PUBLISHED = {"A-v1": Task("A-v1", 10.0, 110.0, "paper"), "B-v1": Task("B-v1", -200.0, -100.0, "paper")}


@pytest.fixture(autouse=True)
def references(monkeypatch):
    """Two envs with a published reference; all others have none."""
    found = {env: (task, "A paper.") for env, task in PUBLISHED.items()}
    monkeypatch.setattr("troop.suites.results.find_task", found.get)


def write_task(folder, env, *recipes, seeds=1, **changes):
    path = task_path(folder, env)
    path.mkdir(parents=True, exist_ok=True)
    experiments = {recipe: {"engine": {"kind": "Inline"}} for recipe in recipes}
    plan = ComparisonPlan(env, 2.0, None, seeds, (), (), MACHINE, experiments)
    dataclasses.replace(plan, **changes).write(path)


def write_run(folder, env, recipe, seed, points, status="done"):
    """Write a run directory with evaluations `points` (seconds, env steps, return)."""
    path = run_path(task_path(folder, env), recipe, seed)
    path.mkdir(parents=True)
    (path / "config.json").write_text("{}")
    lines = [{"wall_s": s, "env_steps": n, "updates": n, "eval/return_mean": r} for s, n, r in points]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    Summary(status, wall_s=120.0, env_steps=1000, env_steps_per_s=100.0).write(path)


def write_curve(folder, env, name, seed, points, **fields):
    path = task_path(folder, env) / name / f"seed{seed}"
    path.mkdir(parents=True)
    content = {"name": name, "command": f"python {name}.py", "points": points} | fields
    (path / "curve.json").write_text(json.dumps(content))


def suite_of(folder, *envs, left_out=None):
    suite = SuitePlan("made-up", envs, left_out or {})
    suite.write(folder)
    return suite


@pytest.fixture
def two_tasks(tmp_path):
    """`hare` scores 0.2 and 1.0 on A and 0.5 on B; `snail` scores 0.9 on A only."""
    write_task(tmp_path, "A-v1", "hare", "snail", seeds=2)
    write_task(tmp_path, "B-v1", "hare", seeds=1)
    write_run(tmp_path, "A-v1", "hare", 1, [(10, 100, 10), (60, 500, 40), (120, 1000, 30)])
    write_run(tmp_path, "A-v1", "hare", 2, [(20, 100, 60), (60, 500, 101), (120, 1000, 110)])
    write_run(tmp_path, "A-v1", "snail", 1, [(30, 10, 20), (120, 100, 100)])
    write_run(tmp_path, "B-v1", "hare", 1, [(30, 100, -190), (90, 500, -150), (120, 1000, -150)])
    return tmp_path


def read(folder, suite):
    tasks = [read_task(comparison) for comparison in suite.comparisons(folder)]
    return tasks, aggregate(tasks)


def test_scores_and_times_equal_hand_computed_values(two_tasks):
    tasks, results = read(two_tasks, suite_of(two_tasks, "A-v1", "B-v1"))
    first, second = tasks
    assert first.plan.thresholds == (60, 100) and second.plan.thresholds == (-150, -110)
    assert first.final_scores("hare") == pytest.approx([0.2, 1.0])
    assert second.final_scores("hare") == pytest.approx([0.5]) and len(second.final_scores("snail")) == 0
    assert first.score("hare") == pytest.approx(0.6) and second.score("snail") is None
    snail, hare = results
    assert (snail.recipe, snail.iqm, snail.runs, snail.has_interval) == (
        "snail",
        pytest.approx(0.9),
        1,
        False,
    )
    # Weights 1/4 and 1/4 on A, 1/2 on B: the middle half is the run on B.
    assert hare.iqm == pytest.approx(0.5) and hare.has_interval
    assert (hare.low, hare.high) == (
        pytest.approx(0.35),
        pytest.approx(0.75),
    )  # both runs on A are 0.2 or 1.0
    assert hare.times(0.5) == [math.inf, 90] and hare.tasks_reached(0.5) == 1
    assert hare.median_time(0.5) == math.inf and snail.median_time(0.5) == snail.median_time(0.9) == 120
    above = dict(zip(np.round(LEVELS, 2), hare.profile.iqm, strict=True))
    assert (above[0.1], above[0.3], above[0.6], above[1.1]) == (1, 0.75, 0.25, 0)
    assert hare.curve.x[0] == 30 and hare.curve.x[-1] == 120  # from where every run has an evaluation
    # At 30 s: 0.0 and 0.5 on A, 0.1 on B; the middle half of weights 1/4, 1/2, 1/4 is B.
    assert hare.curve.iqm[0] == pytest.approx(0.1)


def test_env_without_reference_is_normalised_by_the_best_return(tmp_path):
    write_task(tmp_path, "C-v1", "hare", "snail")
    write_run(tmp_path, "C-v1", "hare", 1, [(10, 10, -50.0), (120, 100, 10.0)])
    write_run(tmp_path, "C-v1", "snail", 1, [(10, 10, -30.0), (120, 100, -20.0)])
    suite = suite_of(tmp_path, "C-v1")
    (task,), results = read(tmp_path, suite)
    assert (task.random, task.reference, task.source) == (-40, 10, BEST_RETURN) and not task.published
    assert [result.recipe for result in results] == ["hare", "snail"]
    assert [result.iqm for result in results] == pytest.approx([1.0, 0.4])
    assert any("No published reference for C-v1" in text for text in notes(suite, [task], results))


def test_returns_that_never_change_score_zero(tmp_path):
    write_task(tmp_path, "C-v1", "hare")
    write_run(tmp_path, "C-v1", "hare", 1, [(10, 10, 0.0), (120, 100, 0.0)])
    _, (result,) = read(tmp_path, suite_of(tmp_path, "C-v1"))
    assert result.iqm == 0


def test_task_with_unpublished_reference_keeps_its_random_return(tmp_path, monkeypatch):
    task = Task("P-v1", 3.0, None, "none")
    monkeypatch.setattr("troop.suites.results.find_task", lambda env: (task, "none found"))
    write_task(tmp_path, "P-v1", "hare")
    write_run(tmp_path, "P-v1", "hare", 1, [(10, 10, 1.0), (120, 100, 800.0)])
    (result,), _ = read(tmp_path, suite_of(tmp_path, "P-v1"))
    assert (result.random, result.reference, result.published) == (3, 800, False)


def test_external_curves_stand_beside_recipes(two_tasks):
    write_curve(two_tasks, "B-v1", "sbx-sac", 1, [[20, 100, -150], [119, 900, -110], [121, 950, -100]])
    write_curve(two_tasks, "B-v1", "sbx-sac", 2, [[60, 100, -120], [600, 9000, -90]], machine="laptop")
    suite = suite_of(two_tasks, "A-v1", "B-v1")
    tasks, results = read(two_tasks, suite)
    peer = next(result for result in results if result.recipe == "sbx-sac")
    assert peer.label == "sbx-sac (external)" and peer.runs == 2 and [t.env for t in peer.tasks] == ["B-v1"]
    # The point at 600 s lies beyond the budget of 120 s, the one at 121 s counts.
    assert tasks[1].final_scores("sbx-sac") == pytest.approx([1.0, 0.8])
    assert peer.times(0.5) == [40.0]
    texts = notes(suite, tasks, results)
    assert "B-v1 sbx-sac is external: `python sbx-sac.py`." in texts
    assert any("not comparable over tasks" in text for text in texts)
    assert [row["external"] for row in table.runs_json(tasks) if row["recipe"] == "sbx-sac"] == [True, True]


def test_time_ratio_to_external_programs_per_task(tmp_path):
    for env, own, other in [("A-v1", 60, 90), ("B-v1", 90, 60), ("C-v1", 30, None), ("D-v1", None, 30)]:
        write_task(tmp_path, env, "hare")
        low, high = (-190, -100) if env == "B-v1" else (10, 110)
        points = [(10, 10, low), (own or 120, 100, high if own else low), (120, 200, high if own else low)]
        write_run(tmp_path, env, "hare", 1, points)
        write_curve(tmp_path, env, "sbx", 1, [[10, 10, low], [other or 120, 100, high if other else low]])
    write_task(tmp_path, "E-v1", "hare")  # not trained by the other program
    suite = suite_of(tmp_path, "A-v1", "B-v1", "C-v1", "D-v1", "E-v1")
    (ratio,) = time_ratios(read(tmp_path, suite)[0])
    assert (ratio.recipe, ratio.external, ratio.tasks, ratio.faster) == ("hare", "sbx", 4, 2)
    assert ratio.ratios == {"A-v1": 60 / 90, "B-v1": 1.5, "C-v1": 0, "D-v1": math.inf}
    assert ratio.median == pytest.approx((60 / 90 + 1.5) / 2) and ratio.worst == ("D-v1", math.inf)
    rows = table.ratio_cells([ratio])
    assert rows[1] == ["hare", "sbx", "4", "2", "1.08", "never reached (D-v1)"]
    none = dataclasses.replace(ratio, ratios={})
    assert table.ratio_cells([none])[1][-2:] == ["-", "-"]
    SuiteReport(suite, tmp_path).show()
    assert "## External programs" in (tmp_path / "results.md").read_text()
    (stored,) = json.loads((tmp_path / "results.json").read_text())["time_ratios"]
    assert stored["ratios"]["D-v1"] is None and stored["median"] == pytest.approx(ratio.median)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "cannot be used: "),
        ("[]", "not a JSON object"),
        ('{"name": "other", "command": "x", "points": [[1, 1, 1]]}', "its directory is sbx"),
        ('{"name": "sbx", "points": [[1, 1, 1]]}', '"command"'),
        ('{"name": "sbx", "command": "x"}', '"points"'),
        ('{"name": "sbx", "command": "x", "points": []}', '"points"'),
        ('{"name": "sbx", "command": "x", "points": [[1, 1]]}', "[1, 1]"),
        ('{"name": "sbx", "command": "x", "points": [[1, 1, NaN]]}', "nan"),
        ('{"name": "sbx", "command": "x", "points": [[1, 1, "2"]]}', "'2'"),
        ('{"name": "sbx", "command": "x", "points": [[2, 1, 0], [1, 2, 0]]}', "decrease"),
        ('{"name": "sbx", "command": "x", "points": [[-1, 1, 0]]}', "negative"),
        ('{"name": "sbx", "command": "x", "points": [[500, 1, 0]]}', "within the budget"),
    ],
)
def test_damaged_curve_is_a_failed_run_and_stops_no_report(two_tasks, content, reason):
    path = task_path(two_tasks, "B-v1") / "sbx" / "seed1"
    path.mkdir(parents=True)
    (path / "curve.json").write_text(content)
    suite = suite_of(two_tasks, "A-v1", "B-v1")
    tasks, results = read(two_tasks, suite)
    assert "sbx" not in [result.recipe for result in results]
    (failure,) = [text for text in notes(suite, tasks, results) if "sbx seed 1 failed" in text]
    assert str(path / "curve.json") in failure and reason in failure


def test_notes_name_failures_left_out_recipes_variants_and_the_method(two_tasks):
    failed = Attempt("snail", 2, "2024", 0.5, "failed", "The critic is not finite.")
    write_task(
        two_tasks, "A-v1", "hare", "snail", seeds=2, history=(failed,), variants={"snail": ("sac", "--x")}
    )
    left_out = {"B-v1": {"snail": "snail: B-v1 has discrete actions."}}
    suite = suite_of(two_tasks, "A-v1", "B-v1", left_out=left_out)
    tasks, results = read(two_tasks, suite)
    text = "\n".join(notes(suite, tasks, results))
    assert "A-v1 snail seed 2 failed: The critic is not finite." in text
    assert "Left out for snail: B-v1. snail: B-v1 has discrete actions." in text
    assert "snail is `sac --x`." in text and "stratified bootstrap" in text
    single = [result for result in results if not result.has_interval]
    assert "there is no interval" in "\n".join(notes(suite, tasks, single))


def test_report_writes_markdown_csv_json_and_figure(two_tasks, capsys):
    suite = suite_of(two_tasks, "A-v1", "B-v1")
    SuiteReport(suite, two_tasks).show()
    output = capsys.readouterr().out
    assert "made-up, 2 tasks, 2 minutes of training each, 1 to 2 seeds" in output
    assert (
        "Not ranked, because the done runs are on different tasks: snail 0.90 (IQM of 1 task), hare 0.50"
        in output.replace("\n", " ")
    )
    page = (two_tasks / "results.md").read_text()
    assert "| hare | 2 of 2 | 3 | 0.50 | 0.35 to 0.75 | - (1 of 2 tasks) | - (0 of 2 tasks) |" in page
    assert "| A-v1 | snail | 1 of 2 | 100 | - | 110 | 0.90 | 2m 00s | 2m 00s |" in page
    assert "| B-v1 | -200 | -100 | A paper. |" in page and "![curves](results.png)" in page
    rows = list(csv.DictReader(io.StringIO((two_tasks / "results.csv").read_text())))
    assert [(row["task"], row["recipe"], row["seed"], row["status"]) for row in rows][-1] == (
        "B-v1", "hare", "1", "done",
    )  # fmt: skip
    assert (rows[1]["normalised"], rows[1]["seconds_to_50"], rows[1]["seconds_to_90"]) == (
        "1.0",
        "20.0",
        "60.0",
    )
    assert rows[0]["seconds_to_50"] == ""
    content = json.loads((two_tasks / "results.json").read_text())
    hare = content["recipes"][1]
    assert hare["normalised_return"]["iqm"] == pytest.approx(0.5) and hare["tasks"] == ["A-v1", "B-v1"]
    assert hare["reached"][0] == {"fraction": 0.5, "tasks": 1, "median_seconds": None}
    assert len(hare["by_seconds"]["x"]) == 41 and len(hare["performance_profile"]["x"]) == len(LEVELS)
    assert content["tasks"][0]["reference"] == 110 and content["tasks"][0]["published"] is True
    assert (two_tasks / "results.png").stat().st_size > 10_000
    assert not (two_tasks / "A-v1" / "results.md").exists(), "only the task of a new run is rewritten"


def test_report_after_a_run_rewrites_its_task_and_the_suite(two_tasks, monkeypatch):
    monkeypatch.setattr(report, "draw", lambda *_: None)
    monkeypatch.setattr(report.compare_report, "draw", lambda *_: None)
    suite = suite_of(two_tasks, "A-v1", "B-v1")
    writer = SuiteReport(suite, two_tasks)
    first = suite.comparisons(two_tasks)[0]
    writer.write(first)
    assert "time to 60" in (two_tasks / "A-v1" / "results.md").read_text()
    write_run(two_tasks, "A-v1", "snail", 2, [(30, 10, 110)])
    writer.write(first)
    assert json.loads((two_tasks / "results.json").read_text())["recipes"][0]["runs"] == 2
    assert not (two_tasks / "B-v1" / "results.md").exists()


def test_report_without_any_run(tmp_path, capsys):
    write_task(tmp_path, "A-v1", "hare")
    SuiteReport(suite_of(tmp_path, "A-v1"), tmp_path).show()
    assert "No run is done yet." in capsys.readouterr().out
    assert json.loads((tmp_path / "results.json").read_text())["recipes"] == []


def test_comparisons_name_their_task_in_messages(two_tasks):
    (first, second) = suite_of(two_tasks, "A-v1", "B-v1").comparisons(two_tasks)
    assert isinstance(first, Comparison) and (first.prefix, second.prefix) == ("A-v1 ", "B-v1 ")


def test_suite_lists_its_envs_in_order():
    assert Suite("made-up", tuple(PUBLISHED.values()), {"paper": "A paper."}).envs == ("A-v1", "B-v1")
