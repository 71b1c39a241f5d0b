"""The panel fits into the terminal, plain lines are rare, and output errors never stop training."""

import dataclasses
import io
import math

import pytest
from rich.console import Console as Terminal

from troop.logs.console import Console, line
from troop.logs.flow import Flow
from troop.logs.panel import panel
from troop.logs.progress import Progress, count, duration, number, sparkline

FULL = Progress(
    env_steps=1_253_000,
    updates=31_200,
    wall_s=312.3,
    evaluation_s=14.2,
    env_steps_per_s=12_412.0,
    updates_per_s=49.3,
    return_mean=812.4,
    return_std=20.1,
    best=830.2,
    target=900.0,
    episode_return=790.1,
    losses={f"a_loss_with_a_long_name_{i}": 0.1 * i for i in range(20)},
    fraction=0.62,
    seconds_left=221,
    counters={"env faults": 2, "skipped updates": 0, "restarts": 1},
    flow=Flow(rows=512_000, capacity=1_000_000),
    history=[math.log(i + 1) for i in range(200)],
)
BARE = Progress(env_steps=0, updates=0, wall_s=0.0)
ODD = dataclasses.replace(
    FULL,
    return_mean=math.nan,
    fraction=7.0,
    seconds_left=math.inf,
    losses={"x\x1b[2J": math.inf},
    history=[math.nan, 1, 1],
)


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("progress", [FULL, BARE, ODD], ids=["full", "bare", "odd"])
@pytest.mark.reliability("X9")
def test_panel_fits_into_the_terminal(width, progress):
    terminal = Terminal(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    terminal.print(panel("fast-td3 on WalkerWalk-v1" * 4, "runs/a-long-name" * 9, progress, width))
    rows = terminal.file.getvalue().splitlines()
    assert len(rows) <= 20
    assert {len(row) for row in rows} == {min(width, 110)}
    assert not any("\x1b" in row for row in rows)
    if progress is FULL:
        text = "\n".join(rows)
        for part in (
            "812.4 ± 20.1",
            "best 830.2",
            "target 900",
            "62%",
            "3m 41s left",
            "1.25M",
            "12.4k/s",
            "49.3/s",
        ):
            assert part in text
        assert "env faults 2, restarts 1" in text and "skipped" not in text and "512k of 1M rows" in text


@pytest.mark.reliability("X9")
def test_plain_lines_are_rare_and_have_no_escape_codes():
    now, stream = [0.0], io.StringIO()
    console = Console(stream, clock=lambda: now[0])
    console.start("fast-td3 on x", "seed 0")
    for i in range(1000):
        now[0] = i * 0.02
        console.show(dataclasses.replace(FULL, env_steps=i))
    console.note("checkpoint\x1b[2J saved")
    console.stop()
    console.stop()
    lines = stream.getvalue().splitlines()
    assert lines[0] == "fast-td3 on x  seed 0"
    assert len(lines) == 1 + 4 + 1 + 1 and "steps 999" in lines[-1]
    assert "\x1b" not in stream.getvalue()
    assert all(part in line(FULL) for part in ("62%", "3m 41s left", "return 812.4 ± 20.1", "env faults 2"))


def test_last_live_panel_stays_on_the_screen():
    now, stream = [0.0], io.StringIO()
    terminal = Terminal(file=stream, width=80, force_terminal=True, color_system=None)
    with Console(stream, terminal, clock=lambda: now[0]) as console:
        assert console.interactive
        console.start("a title")
        for i in range(100):
            now[0] = i * 0.01
            console.show(dataclasses.replace(FULL, env_steps=i))
        console.note("evaluation 812 ± 20")
        drawings = stream.getvalue().count("╭─ a title")
    assert drawings <= 1 + 4 + 1
    end = stream.getvalue()
    assert "evaluation 812 ± 20" in end and "99 " in end[end.rindex("a title") :]
    assert end.rindex("\x1b[?25h") > end.rindex("\x1b[?25l")  # the cursor is visible again
    console.stop()


def test_stage_of_the_start_is_shown_until_the_first_line_or_erased():
    stream = io.StringIO()
    terminal = Terminal(file=stream, width=80, force_terminal=True, color_system=None)
    console = Console(stream, terminal)
    console.show_stage("td3 on Ant", "loading libraries")
    assert "╭─ td3 on Ant" in stream.getvalue() and "loading libraries" in stream.getvalue()
    console.start("td3 on Ant-v5", "seed 1", "building envs")
    assert "building envs" in stream.getvalue() and "td3 on Ant-v5" in stream.getvalue()
    console.show(FULL)
    console.discard()  # a panel with a run stays
    assert "1.25M" in stream.getvalue()[stream.getvalue().rindex("╭─") :]
    stream.truncate(0)
    console = Console(stream, terminal)
    console.show_stage("td3 on Ant", "loading libraries")
    console.discard()
    assert "\x1b[2K" in stream.getvalue()[stream.getvalue().rindex("loading") :]  # erased
    plain = io.StringIO()
    Console(plain).show_stage("td3 on Ant", "loading libraries")
    assert plain.getvalue() == ""


class BrokenPipe(io.StringIO):
    def write(self, _):
        raise BrokenPipeError


def test_closed_pipe_and_ascii_encoding_raise_no_error():
    terminal = Terminal(file=BrokenPipe(), width=80, force_terminal=True)
    for console in (Console(BrokenPipe()), Console(BrokenPipe(), terminal)):
        console.start("a")
        console.show(FULL)
        console.note("b")
        console.stop()
    raw = io.BytesIO()
    ascii_only = Console(io.TextIOWrapper(raw, encoding="ascii"))
    ascii_only.note("evaluation 812 ± 20")
    assert raw.getvalue() == b"evaluation 812 ? 20\n"
    closed = io.StringIO()
    closed.close()
    Console(closed).start("a")


def test_short_forms_of_numbers():
    counts = [count(x) for x in (0, 950, 1000, 12_345, 999_949, 4_560_000, 2.5, 123.4, math.nan)]
    assert counts == ["0", "950", "1k", "12.3k", "1M", "4.56M", "2.5", "123", "-"]
    assert [duration(x) for x in (0, 59.4, 60, 3599, 7500, 90_000, None, -5)] == [
        "0s", "59s", "1m 00s", "59m 59s", "2h 05m", "1d 01h", "-", "0s",
    ]  # fmt: skip
    assert [number(x) for x in (None, 0.0, 0.12345, -3.21, 12_345.6, 1e-5, math.nan)] == [
        "-", "0", "0.1235", "-3.21", "12346", "1.00e-05", "nan",
    ]  # fmt: skip
    assert sparkline([0, 1], 9) == "▁█" and sparkline([], 9) == "" and sparkline([3, 3], 9) == "▁▁"
    assert len(sparkline(range(1000), 40)) == 40
