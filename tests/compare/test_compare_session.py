"""Session with child processes of a few lines that end in every possible way."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from troop.compare import report, session
from troop.compare.plan import ComparisonPlan, run_path
from troop.compare.report import ComparisonReport
from troop.compare.session import Comparison, Session

CHILD = """
    import json, os, pathlib, signal, sys, time
    folder, recipe, seed = sys.argv[1:]
    path = pathlib.Path(folder) / recipe / f"seed{seed}"
    order = pathlib.Path(folder) / "order.txt"
    with open(order, "a") as file:
        resumed = (path / "config.json").exists()
        file.write(f"{recipe}{seed}{'+' if resumed else ''}\\n")
    (path / "checkpoints" / "ckpt-1").mkdir(parents=True, exist_ok=True)

    def end(status, code, message=None, checkpoint=True):
        (path / "config.json").write_text("{}")
        if checkpoint:
            (path / "checkpoints" / "ckpt-1" / "manifest.json").write_text("{}")
        row = {"wall_s": 60, "env_steps": 100, "updates": 1, "eval/return_mean": 5.0}
        (path / "metrics.jsonl").write_text(json.dumps(row) + "\\n")
        summary = {"status": status, "wall_s": 60, "env_steps": 100, "return_mean": 5.0, "message": message}
        (path / "summary.json").write_text(json.dumps(summary))
        sys.exit(code)

    if recipe == "good" or resumed:
        end("done", 0)
    elif recipe == "faulty":
        end("failed", 4, "The critic is not finite.")
    elif recipe == "invalid":
        print("troop: The replay does not fit.", file=sys.stderr)
        sys.exit(5)
    elif recipe == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif recipe == "unknown_exit":
        sys.exit(77)
    elif recipe == "stopped":
        end("stopped", 3)
    elif recipe == "no_checkpoint":
        end("failed", 4, "No checkpoint was written.", checkpoint=False)
    elif recipe == "slow":
        (pathlib.Path(folder) / "slow.pid").write_text(str(os.getpid()))
        sys.stdin.buffer.read(1)
        end("stopped", 3)
    elif recipe == "ignores_stop":
        (pathlib.Path(folder) / "ignores_stop.pid").write_text(str(os.getpid()))
        sys.stdin.buffer.read(1)
        (pathlib.Path(folder) / "stop_requested").touch()
        time.sleep(60)
"""


@pytest.fixture
def make_session(tmp_path, monkeypatch):
    monkeypatch.setattr(session, "background_load", lambda: 0.0)
    monkeypatch.setattr(report, "draw", lambda *_: None)  # takes a second each
    script = tmp_path / "child.py"
    script.write_text(textwrap.dedent(CHILD))

    def make(*recipes, seeds=1):
        folder = tmp_path / "c"
        folder.mkdir(exist_ok=True)
        plan = ComparisonPlan("Toy-v0", 1.0, None, seeds, (), (), {}, {recipe: {} for recipe in recipes})
        plan.write(folder)
        return session_of(folder, (sys.executable, str(script))), folder

    return make


def session_of(folder, command):
    comparison = Comparison(ComparisonPlan.read(folder), folder)
    return Session([comparison], ComparisonReport(comparison), command)


def started_runs(folder):
    return (folder / "order.txt").read_text().split()


def test_all_recipes_of_a_seed_run_before_the_next_seed(make_session):
    first, folder = make_session("good", "stopped", seeds=2)
    first.run()
    assert started_runs(folder) == ["good1", "stopped1", "good2", "stopped2"]


def test_done_runs_are_skipped_and_stopped_runs_are_resumed(make_session, capsys):
    first, folder = make_session("good", "stopped")
    assert first.run() == 3
    assert f"Continue with: troop compare --run {folder}" in capsys.readouterr().out
    second = session_of(folder, first.command)
    assert second.run() == 0
    assert started_runs(folder) == ["good1", "stopped1", "stopped1+"]
    assert [a.outcome for a in ComparisonPlan.read(folder).attempts("stopped", 1)] == ["stopped", "done"]
    assert second.run() == 0 and len(started_runs(folder)) == 3, "a finished comparison starts no run"


@pytest.mark.parametrize(
    ("recipe", "reason"),
    [
        ("faulty", "The critic is not finite."),
        ("invalid", "The replay does not fit."),
        ("killed", "SIGKILL"),
        ("unknown_exit", "exit code 77"),
    ],
)
def test_failed_run_is_reported_with_its_reason_and_the_others_continue(make_session, capsys, recipe, reason):
    first, folder = make_session(recipe, "good")
    assert first.run() == 4
    output = capsys.readouterr().out
    assert f"{recipe} seed 1 failed: " in output and reason in output and "1 failed" in output
    assert started_runs(folder) == [f"{recipe}1", "good1"]
    assert reason in ComparisonPlan.read(folder).attempts(recipe, 1)[-1].reason
    runs = json.loads((folder / "results.json").read_text())["runs"]
    assert {run["recipe"]: run["status"] for run in runs} == {recipe: "failed", "good": "done"}


def test_failed_run_is_resumed_from_its_checkpoint(make_session):
    first, folder = make_session("faulty")
    assert first.run() == 4
    assert session_of(folder, first.command).run() == 0
    assert started_runs(folder) == ["faulty1", "faulty1+"]


def test_run_without_checkpoint_is_moved_aside_and_not_deleted(make_session):
    first, folder = make_session("no_checkpoint")
    assert first.run() == 4
    assert session_of(folder, first.command).run() == 4
    assert started_runs(folder) == ["no_checkpoint1", "no_checkpoint1"], "started again, not resumed"
    aside = run_path(folder, "no_checkpoint", 1).with_name("seed1-aside-1")
    assert json.loads((aside / "summary.json").read_text())["message"] == "No checkpoint was written."


def test_seed_of_every_comparison_runs_before_the_next_seed_and_failures_stop_no_other(
    make_session, tmp_path, capsys
):
    first, folder = make_session("good", "faulty", seeds=2)
    other = tmp_path / "other"
    other.mkdir()
    ComparisonPlan("Other-v0", 1.0, None, 1, (), (), {}, {"good": {}}).write(other)
    comparisons = [*first.comparisons, Comparison(ComparisonPlan.read(other), other, "Other-v0 ")]
    both = Session(comparisons, first.report, first.command)
    assert [(c.folder.name, recipe, seed) for c, recipe, seed in both.runs()] == [
        ("c", "good", 1),
        ("c", "faulty", 1),
        ("other", "good", 1),
        ("c", "good", 2),
        ("c", "faulty", 2),
    ]
    assert both.run() == 4
    assert started_runs(folder) == ["good1", "faulty1", "good2", "faulty2"] and started_runs(other) == [
        "good1"
    ]
    output = capsys.readouterr().out
    assert "[3/5] Other-v0 good seed 1: starting (1 minute of training; at most 3m 00s for all" in output
    assert ComparisonPlan.read(other).attempts("good", 1)[-1].outcome == "done"


def call_when_written(path, function):
    """Call the function in a thread once the file exists."""

    def wait():
        while not path.exists() or (path.suffix == ".pid" and not path.read_text()):
            time.sleep(0.01)
        function()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_lets_the_child_save_and_starts_no_other_run(make_session, number, capsys):
    first, folder = make_session("slow", "good")
    before = signal.getsignal(signal.SIGINT)
    thread = call_when_written(folder / "slow.pid", lambda: os.kill(os.getpid(), number))
    assert first.run() == 3
    thread.join()
    assert started_runs(folder) == ["slow1"]
    assert ComparisonPlan.read(folder).attempts("slow", 1)[-1].outcome == "stopped"
    output = capsys.readouterr().out
    assert "Not finished and left out: slow seed 1." in output
    assert "Not started and left out: good seed 1." in output
    assert signal.getsignal(signal.SIGINT) is before, "the previous handler is restored"


def test_second_signal_ends_a_child_that_ignores_the_stop_request(make_session):
    session, folder = make_session("ignores_stop", "good")
    threads = [
        call_when_written(folder / name, lambda: os.kill(os.getpid(), signal.SIGINT))
        for name in ("ignores_stop.pid", "stop_requested")
    ]
    assert session.run() == 3
    for thread in threads:
        thread.join()
    with pytest.raises(ProcessLookupError):
        os.kill(int((folder / "ignores_stop.pid").read_text()), 0)


def test_child_stops_when_its_standard_input_closes():
    code = """
        import time
        from troop.compare.child import stop_when_stdin_closes
        try:
            stop_when_stdin_closes()
            print("ready", flush=True)
            time.sleep(60)
        except KeyboardInterrupt:
            print("stopped", flush=True)
    """
    argv = [sys.executable, "-c", textwrap.dedent(code)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "ready\n" and child.poll() is None
        child.stdin.close()
        assert child.stdout.readline() == "stopped\n" and child.wait(10) == 0
