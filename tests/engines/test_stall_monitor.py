"""The inline engine with envs that do not return: reports, limits, stops, and what is saved."""

import signal
import threading
import time
from traceback import FrameSummary

import pytest

from troop import api
from troop.core.engine import Counters, Result, Until
from troop.core.env_calls import EnvFailure, env_call
from troop.core.errors import TrainingFault
from troop.core.locations import user_location
from troop.core.program import Program, Schedule
from troop.engines import Inline, stall_monitor
from troop.engines.stall_monitor import StallLimits

HANG_LINE = "test_stall_monitor.py, line"


class ArmLost(BaseException):
    """A user's exception that no `except Exception` catches."""


class HangingEnvRole:
    """Counts steps; in step `at` the call of its env hangs as `how` says."""

    def __init__(self, how, at=5):
        self.how, self.at, self.steps = how, at, 0

    def step(self):
        if self.steps == self.at:
            with env_call("reach:Reach", "step"):
                self.hang()
        self.steps += 1
        return {"count/env_steps": 1}

    def hang(self):
        if self.how == "sleep":
            time.sleep(1000)
        while self.how == "loop":
            pass
        while self.how == "catch":  # user code that catches everything
            try:
                time.sleep(1000)
            except BaseException:
                continue
        if self.how == "raise":
            raise ValueError("the arm is broken\nsecond line")
        if self.how == "exit":
            raise SystemExit(1)
        if self.how == "interrupt":
            raise KeyboardInterrupt
        if self.how == "other":
            raise ArmLost("no power")

    def state_dict(self):
        return {"steps": self.steps}

    def load_state_dict(self, state):
        self.steps = state["steps"]


class HangingEvaluator:
    """Its evaluation hangs in an env."""

    def step(self):
        with env_call("reach:Reach", "step"):
            time.sleep(1000)


class HangingUpdate(HangingEnvRole):
    """Hangs outside of an env."""

    def step(self):
        if self.steps == self.at:
            time.sleep(1000)
        self.steps += 1
        return {"count/env_steps": 1}


class UncloseableRole(HangingEnvRole):
    """Hangs in the end."""

    def close(self):
        with env_call("reach:Reach", "close"):
            time.sleep(1000)


class StallRecorder:
    """Records what an engine tells; `stop_at_report` requests a stop when the first stall is reported."""

    def __init__(self, stop_at_report=False, stop_now=False):
        self.saves, self.notes, self.stalls, self.ends = [], [], [], []
        self.stop_at_report, self.stop = stop_at_report, stop_now
        self.exited = threading.Event()

    def log(self, counters, metrics):
        pass

    def log_evaluation(self, counters, metrics):
        pass

    def save(self, counters, state, last):
        self.saves.append(state)

    def note(self, text):
        self.notes.append(text)

    def stop_requested(self):
        return self.stop

    def report_stall(self, seconds, text):
        self.stalls.append(text)
        self.stop = self.stop or self.stop_at_report

    def exit_process(self, end):
        self.ends.append(end)
        self.exited.set()
        while True:  # a real observer exits the process
            time.sleep(1000)


@pytest.fixture(autouse=True)
def short_limits(monkeypatch):
    limits = StallLimits(report_s=0.3, stop_s=0.3, update_s=0.6, interrupt_s=0.6)
    monkeypatch.setattr(stall_monitor, "StallLimits", lambda: limits)
    monkeypatch.setattr(stall_monitor, "POLL_S", 0.05)


def program_of(role, *args):
    program = Program("hanging")
    program.add("trainer", role, *args)
    return program


def test_the_location_is_a_line_of_a_file():
    """Code that was made from text, such as the methods of dataclasses, has no file to look at."""
    frames = [FrameSummary("/home/me/arm.py", 7, "step"), FrameSummary("<string>", 1, "__init__")]
    assert user_location(frames) == "arm.py, line 7"


def test_the_location_is_not_the_script_that_called_troop():
    script, library = FrameSummary("/home/me/train.py", 3, "<module>"), FrameSummary(api.__file__, 9, "train")
    env = FrameSummary("/home/me/arm.py", 7, "step")
    assert user_location([script, library, env, library]) == "arm.py, line 7"
    assert user_location([script, library], fallback=False) == ""
    assert user_location([script, library]) == "api.py, line 9"
    assert user_location([script]) == "train.py, line 3"


@pytest.mark.timeout(60)
@pytest.mark.parametrize("how", ["sleep", "loop"])
def test_a_stop_ends_a_hung_env_and_saves_what_was_learned(how):
    observer = StallRecorder(stop_at_report=True)
    result = Inline(threads=1).run(program_of(HangingEnvRole, how), Until(env_steps=99), 0, observer)
    assert result == Result("stopped", Counters(5, wall_s=result.counters.wall_s,
        evaluation_s=result.counters.evaluation_s), {})  # fmt: skip
    assert observer.saves[-1]["trainer.steps"] == 5 and len(observer.saves) == 2
    reports = [text for text in observer.stalls if text]
    assert len(reports) == 1
    assert "step() of env 'reach:Reach' has not returned for" in reports[0] and HANG_LINE in reports[0]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("until", [Until(minutes=0.005), Until(env_steps=99)])
def test_the_end_of_the_minutes_or_the_limit_of_a_step_ends_a_hung_env(until):
    engine, observer = Inline(threads=1, step_limit_s=1000 if until.minutes else 1.0), StallRecorder()
    with pytest.raises(TrainingFault, match=rf"env 'reach:Reach' has not returned.*{HANG_LINE}"):
        engine.run(program_of(HangingEnvRole, "sleep"), until, 0, observer)
    assert observer.saves[-1]["trainer.steps"] == 5


@pytest.mark.timeout(60)
def test_an_evaluation_is_interrupted_by_a_stop():
    program, observer = program_of(HangingEnvRole, "never"), StallRecorder(stop_at_report=True)
    program.add("evaluator", HangingEvaluator)
    program.schedule("evaluator", Schedule(env_steps=3))
    assert Inline(threads=1).run(program, Until(env_steps=99), 0, observer).status == "stopped"
    assert observer.saves[-1]["trainer.steps"] == 3


@pytest.mark.timeout(60)
def test_a_stop_does_not_save_the_middle_of_an_update():
    observer = StallRecorder(stop_at_report=True)
    result = Inline(threads=1).run(program_of(HangingUpdate, "sleep"), Until(env_steps=99), 0, observer)
    assert result.status == "stopped" and len(observer.saves) == 1
    assert "an update was interrupted" in observer.notes[-1]


@pytest.mark.timeout(60)
def test_a_stop_ends_a_start_that_hangs():
    class HangingStart:
        def __init__(self):
            with env_call("reach:Reach", "__init__"):
                time.sleep(1000)

    observer = StallRecorder(stop_at_report=True)
    assert (
        Inline(threads=1).run(program_of(HangingStart), Until(env_steps=9), 0, observer).status == "stopped"
    )
    assert not observer.saves


@pytest.mark.timeout(60)
def test_an_env_that_cannot_be_closed_does_not_change_the_result():
    observer = StallRecorder()
    result = Inline(threads=1).run(program_of(UncloseableRole, "never"), Until(env_steps=9), 0, observer)
    assert result.status == "done" and "close() of env 'reach:Reach'" in observer.notes[-1]


@pytest.mark.timeout(60)
def test_the_monitor_ends_a_run_that_cannot_be_interrupted():
    """The run is in a thread, which no signal interrupts, and stays there: as code in C would."""
    observer = StallRecorder(stop_at_report=True)
    arguments = (program_of(HangingEnvRole, "catch"), Until(env_steps=99), 0, observer)
    threading.Thread(target=Inline(threads=1).run, args=arguments, daemon=True).start()
    assert observer.exited.wait(50)
    assert observer.ends[0].status == "stopped" and observer.ends[0].counters.env_steps == 5
    assert observer.saves[-1]["trainer.steps"] == 5


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("raise", "ValueError: the arm is broken ("),
        ("exit", "SystemExit: 1 ("),
        ("other", "ArmLost: no power ("),
        ("interrupt", "KeyboardInterrupt: no message ("),
    ],
)
def test_an_exception_of_an_env_is_saved_and_names_env_and_line(how, text):
    observer = StallRecorder()
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in a run, which has a handler of its own
    try:
        check_saved_failure(observer, how, text)
    finally:
        signal.signal(signal.SIGINT, previous)


def test_ctrl_c_passes_through_an_env_where_the_run_does_not_handle_it():
    with pytest.raises(KeyboardInterrupt), env_call("reach:Reach", "step"):
        signal.raise_signal(signal.SIGINT)


def check_saved_failure(observer, how, text):
    with pytest.raises(EnvFailure) as failure:
        Inline(threads=1).run(program_of(HangingEnvRole, how), Until(env_steps=99), 0, observer)
    assert str(failure.value).startswith(f"step() of env 'reach:Reach' raised {text}{HANG_LINE}")
    assert observer.saves[-1]["trainer.steps"] == 5
