"""Sentences about the length of a run and its learning rate."""

import dataclasses

import pytest

from troop.api import make_experiment
from troop.core.engine import Until
from troop.start_notes import annealing_notes


@pytest.mark.parametrize(
    "end, expected",
    [
        (10_000_000, []),
        (None, ["falls to 0 at 10,000,000 env steps (--anneal-steps)"]),
        (20_000_000, ["nothing is learned in the 10,000,000 steps after them"]),
        (1_000_000, ["after 1,000,000, 90% of it is left"]),
    ],
)
def test_a_learning_rate_that_does_not_end_with_the_run_is_mentioned(end, expected):
    run = make_experiment("ppo-atari", "Pong-v5")
    notes = annealing_notes(dataclasses.replace(run, until=Until(minutes=1, env_steps=end)))
    assert len(notes) == len(expected) and all(
        text in note for text, note in zip(expected, notes, strict=True)
    )


def test_a_constant_learning_rate_is_not_mentioned():
    assert annealing_notes(make_experiment("ppo", "CartPole-v1")) == []
