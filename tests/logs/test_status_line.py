"""The status line of long commands: rewritten on a terminal, rare in a pipe, none for a short command."""

import io
import time

from troop.logs.status_line import StatusLine


class Terminal(io.StringIO):
    def isatty(self):
        return True


def wait_for(stream, text):
    deadline = time.monotonic() + 30
    while text not in stream.getvalue() and time.monotonic() < deadline:
        time.sleep(0.005)
    assert text in stream.getvalue()


def test_terminal_shows_the_newest_text_on_one_line_and_erases_it():
    stream = Terminal()
    with StatusLine("loading", stream, interval_s=0.01) as status:
        wait_for(stream, "loading (0s)")
        status.update("step 3 \x1b[2J of 9")
        wait_for(stream, "step 3  [2J of 9")
    assert "\n" not in stream.getvalue() and stream.getvalue().endswith("\r\x1b[2K")


def test_lines_of_the_result_stand_alone():
    stream = Terminal()
    with StatusLine("loading", stream, interval_s=0.01) as status:
        wait_for(stream, "loading (0s)")
        status.print("checkpoint 7", stream)
        assert "\r\x1b[2Kcheckpoint 7\n" in stream.getvalue()


def test_pipe_gets_plain_lines_and_none_from_a_short_command():
    stream = io.StringIO()
    with StatusLine("loading", stream, interval_s=0.01):
        wait_for(stream, "loading (0s)\n")
    assert "\x1b" not in stream.getvalue()
    short = io.StringIO()
    with StatusLine("loading", short):
        pass
    assert short.getvalue() == ""


def test_closed_stream_does_not_stop_the_command():
    class Closed(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    stream = Closed()
    with StatusLine("loading", stream, interval_s=0.001) as status:
        status._ended.wait(30)
        assert status._ended.is_set()
