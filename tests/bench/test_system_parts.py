"""`troop bench system`: invalid arguments, names of parts, and the scaling figure."""

import math

import pytest

from troop.bench.system import learning_figure, start
from troop.bench.system.learning import ACTORS, LearningRun, experiment
from troop.bench.system.parts import DEFAULT_PARTS, PARTS
from troop.cli.main import run


@pytest.mark.parametrize(
    "argv, message",
    [
        (["system", "transprot"], "transport"),
        (["system", "nothing"], "learning"),
        (["system", "transport", "--seconds", "0"], "--seconds"),
        (["system", "learning", "--seeds", "0"], "--seeds"),
        (["learner", "transport"], "only `troop bench system`"),
        (["learner", "--threads", "-1"], "--threads is -1"),
    ],
)
def test_invalid_arguments_are_one_sentence_before_any_measurement(argv, message, capsys):
    assert run(["bench", *argv]) == 2
    captured = capsys.readouterr()
    assert message in captured.err and captured.err.count("\n") == 1 and captured.out == ""


def test_help_names_every_part(capsys):
    with pytest.raises(SystemExit):
        run(["bench", "--help"])
    text = capsys.readouterr().out
    assert all(name in text for name in PARTS) and set(DEFAULT_PARTS) < set(PARTS)


def test_figure_is_small_and_accepts_runs_that_never_reached_the_threshold(tmp_path):
    curve = [(1.0, 20.0), (9.0, 475.0)]
    runs = {n: [LearningRun(n, 0, math.inf, curve), LearningRun(n, 1, 80 / n, curve)] for n in ACTORS}
    image = learning_figure.draw(runs, 475.0, tmp_path / "scaling.png")
    assert image.read_bytes()[:4] == b"\x89PNG" and image.stat().st_size < 150_000


def test_runs_of_the_figure_differ_only_in_the_number_of_actors():
    one, many = experiment(1, 1), experiment(8, 1)
    one.check()
    assert one.to_dict() | {"system": None} == many.to_dict() | {"system": None}


def test_start_ends_at_the_first_complete_line_with_env_steps(tmp_path):
    metrics = tmp_path / "metrics.jsonl"
    assert not start._has_env_steps(metrics)
    for text, has_steps in (('{"env_steps": 0}\n', False), ('{"env_steps": 8', False), ("}\n", True)):
        with metrics.open("a") as file:
            file.write(text)
        assert start._has_env_steps(metrics) == has_steps
