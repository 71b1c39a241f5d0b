from troop.bench.learner import SIZES, flop
from troop.bench.table import Line, table


def test_operations_per_row_are_those_counted_by_hand():
    # Critic 30-1024-512-256-101 and policy 24-512-256-128-6; biases are not products.
    critic = 30 * 1024 + 1024 * 512 + 512 * 256 + 256 * 101
    actor = 24 * 512 + 512 * 256 + 256 * 128 + 128 * 6
    critics = actor + 2 * critic + 2 * (3 * critic - 30 * 1024)
    policy = 3 * actor - 24 * 512 + 4 * critic
    full = flop(*SIZES["full"][:2])
    assert full == 2 * critics + policy
    assert 14.9e6 < full < 15.2e6


def test_a_table_shows_ours_the_limit_and_the_ratio():
    text = table([Line("thing", "10 a second", "20 a second", 0.5, ">= 0.4")])
    assert "thing" in text and "0.50" in text and ">= 0.4" in text
