"""`troop bench system`: its parts by name, its figure, and what it refuses."""

import math

import pytest

from troop.bench.system import learning_figure, start
from troop.bench.system.learning import ACTORS, Learned, experiment
from troop.bench.system.parts import PARTS, USUAL
from troop.cli.main import run


@pytest.mark.parametrize(
    "words, said",
    [
        (["system", "transprot"], "transport"),
        (["system", "nothing"], "learning"),
        (["system", "transport", "--seconds", "0"], "--seconds"),
        (["system", "learning", "--seeds", "0"], "--seeds"),
        (["learner", "transport"], "only `troop bench system`"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_a_sentence(words, said, capsys):
    assert run(["bench", *words]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


def test_parts_are_named_as_the_help_names_them(capsys):
    with pytest.raises(SystemExit):
        run(["bench", "--help"])
    said = capsys.readouterr().out
    assert all(name in said for name in PARTS) and set(USUAL) < set(PARTS)


def test_the_figure_is_small_and_takes_runs_that_never_arrived(tmp_path):
    path = [(1.0, 20.0), (9.0, 475.0)]
    found = {n: [Learned(n, 0, math.inf, path), Learned(n, 1, 80 / n, path)] for n in ACTORS}
    picture = learning_figure.draw(found, 475.0, tmp_path / "scaling.png")
    assert picture.read_bytes()[:4] == b"\x89PNG" and picture.stat().st_size < 150_000


def test_only_the_number_of_actors_differs_between_runs_of_the_figure():
    one, many = experiment(1, 1), experiment(8, 1)
    one.check()
    assert one.to_dict() | {"system": None} == many.to_dict() | {"system": None}


def test_a_start_is_over_at_the_first_whole_line_with_env_steps(tmp_path):
    metrics = tmp_path / "metrics.jsonl"
    assert not start._stepped(metrics)
    for text, stepped in (('{"env_steps": 0}\n', False), ('{"env_steps": 8', False), ("}\n", True)):
        with metrics.open("a") as file:
            file.write(text)
        assert start._stepped(metrics) == stepped
