"""Children that end in every way, and what the session makes of it; the children are a few lines each."""

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
from troop.compare.plan import Plan, run_path
from troop.compare.session import Session

CHILD = """
    import json, os, pathlib, signal, sys, time
    folder, recipe, seed = sys.argv[1:]
    path = pathlib.Path(folder) / recipe / f"seed{seed}"
    order = pathlib.Path(folder) / "order.txt"
    with open(order, "a") as file:
        again = (path / "config.json").exists()
        file.write(f"{recipe}{seed}{'+' if again else ''}\\n")
    (path / "checkpoints" / "ckpt-1").mkdir(parents=True, exist_ok=True)

    def end(status, code, message=None, saved=True):
        (path / "config.json").write_text("{}")
        if saved:
            (path / "checkpoints" / "ckpt-1" / "manifest.json").write_text("{}")
        row = {"wall_s": 60, "env_steps": 100, "updates": 1, "eval/return_mean": 5.0}
        (path / "metrics.jsonl").write_text(json.dumps(row) + "\\n")
        known = {"status": status, "wall_s": 60, "env_steps": 100, "return_mean": 5.0, "message": message}
        (path / "summary.json").write_text(json.dumps(known))
        sys.exit(code)

    if recipe == "good" or again:
        end("done", 0)
    elif recipe == "bad":
        end("failed", 4, "The critic is not finite.")
    elif recipe == "refused":
        print("troop: No room for the replay.", file=sys.stderr)
        sys.exit(5)
    elif recipe == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif recipe == "odd":
        sys.exit(77)
    elif recipe == "stopped":
        end("stopped", 3)
    elif recipe == "barren":
        end("failed", 4, "No checkpoint was made.", saved=False)
    elif recipe == "slow":
        (pathlib.Path(folder) / "slow.pid").write_text(str(os.getpid()))
        sys.stdin.buffer.read(1)
        end("stopped", 3)
    elif recipe == "deaf":
        (pathlib.Path(folder) / "deaf.pid").write_text(str(os.getpid()))
        sys.stdin.buffer.read(1)
        (pathlib.Path(folder) / "asked").touch()
        time.sleep(60)
"""


@pytest.fixture
def begin(tmp_path, monkeypatch):
    monkeypatch.setattr(session, "busy", lambda: 0.0)
    monkeypatch.setattr(report, "draw", lambda *_: None)  # a second each
    script = tmp_path / "child.py"
    script.write_text(textwrap.dedent(CHILD))

    def made(*recipes, seeds=1):
        folder = tmp_path / "c"
        folder.mkdir(exist_ok=True)
        plan = Plan("Toy-v0", 1.0, None, seeds, (), (), {}, {recipe: {} for recipe in recipes})
        plan.write(folder)
        return Session(plan, folder, (sys.executable, str(script))), folder

    return made


def order(folder):
    return (folder / "order.txt").read_text().split()


def test_all_recipes_of_a_seed_come_before_the_next_seed(begin):
    going, folder = begin("good", "stopped", seeds=2)
    going.run()
    assert order(folder) == ["good1", "stopped1", "good2", "stopped2"]


def test_what_is_done_is_skipped_and_what_was_stopped_goes_on(begin, capsys):
    going, folder = begin("good", "stopped")
    assert going.run() == 3
    assert f"Go on with: troop compare --run {folder}" in capsys.readouterr().out
    again = Session(Plan.read(folder), folder, going.command)
    assert again.run() == 0
    assert order(folder) == ["good1", "stopped1", "stopped1+"]
    assert [a.outcome for a in Plan.read(folder).attempts("stopped", 1)] == ["stopped", "done"]
    assert again.run() == 0 and len(order(folder)) == 3, "a comparison that is done runs nothing"


@pytest.mark.parametrize(
    ("recipe", "reason"),
    [
        ("bad", "The critic is not finite."),
        ("refused", "No room for the replay."),
        ("killed", "SIGKILL"),
        ("odd", "exit code 77"),
    ],
)
def test_a_failed_run_is_told_with_its_reason_and_the_others_go_on(begin, capsys, recipe, reason):
    going, folder = begin(recipe, "good")
    assert going.run() == 4
    said = capsys.readouterr().out
    assert f"{recipe} seed 1 failed: " in said and reason in said and "1 failed" in said
    assert order(folder) == [f"{recipe}1", "good1"]
    assert reason in Plan.read(folder).last_attempt(recipe, 1).reason
    runs = json.loads((folder / "results.json").read_text())["runs"]
    assert {run["recipe"]: run["status"] for run in runs} == {recipe: "failed", "good": "done"}


def test_a_failed_run_is_tried_again_from_its_checkpoint(begin):
    going, folder = begin("bad")
    assert going.run() == 4
    assert Session(Plan.read(folder), folder, going.command).run() == 0
    assert order(folder) == ["bad1", "bad1+"]


def test_a_start_without_a_checkpoint_is_moved_aside_and_not_deleted(begin):
    going, folder = begin("barren")
    assert going.run() == 4
    assert Session(Plan.read(folder), folder, going.command).run() == 4
    assert order(folder) == ["barren1", "barren1"], "begun anew, not resumed"
    aside = run_path(folder, "barren", 1).with_name("seed1-aside-1")
    assert json.loads((aside / "summary.json").read_text())["message"] == "No checkpoint was made."


def when(path, act):
    """Do it once a file is there."""

    def wait():
        while not path.exists() or (path.suffix == ".pid" and not path.read_text()):
            time.sleep(0.01)
        act()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_the_child_save_and_starts_no_other(begin, number, capsys):
    going, folder = begin("slow", "good")
    before = signal.getsignal(signal.SIGINT)
    thread = when(folder / "slow.pid", lambda: os.kill(os.getpid(), number))
    assert going.run() == 3
    thread.join()
    assert order(folder) == ["slow1"]
    assert Plan.read(folder).last_attempt("slow", 1).outcome == "stopped"
    said = capsys.readouterr().out
    assert (
        "Not finished and left out: slow seed 1." in said and "Not started and left out: good seed 1." in said
    )
    assert signal.getsignal(signal.SIGINT) is before, "handlers are given back"


def test_a_second_signal_ends_a_child_that_does_not_listen(begin):
    going, folder = begin("deaf", "good")
    first = when(folder / "deaf.pid", lambda: os.kill(os.getpid(), signal.SIGINT))
    second = when(folder / "asked", lambda: os.kill(os.getpid(), signal.SIGINT))
    assert going.run() == 3
    first.join(), second.join()
    with pytest.raises(ProcessLookupError):
        os.kill(int((folder / "deaf.pid").read_text()), 0)


def test_a_child_stops_itself_when_its_parent_is_gone():
    code = """
        import time
        from troop.compare.child import follow_parent
        try:
            follow_parent()
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
