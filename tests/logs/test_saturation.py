import pytest

from troop.algorithms import FlashSACConfig, SACConfig, TD3Config
from troop.logs.saturation import LINES, SaturationMonitor, cures


def warnings(shares):
    monitor = SaturationMonitor(TD3Config())
    return [monitor.update({} if share is None else {"policy/saturation": share}) for share in shares]


def test_a_policy_that_stays_saturated_is_warned_about_once():
    texts = warnings([0.97] * (3 * LINES))
    assert [index for index, text in enumerate(texts) if text] == [LINES - 1]
    assert "0.97" in texts[LINES - 1]
    assert "--preactivation-penalty" in texts[LINES - 1]
    assert "flashsac" in texts[LINES - 1]


def test_lines_below_the_limit_start_the_count_again():
    assert not any(warnings([0.97] * (LINES - 1) + [0.5] + [0.97] * (LINES - 1)))


def test_lines_without_the_metric_do_not_count():
    texts = warnings([0.97, None] * LINES)
    assert [index for index, text in enumerate(texts) if text] == [2 * LINES - 2]


@pytest.mark.parametrize(
    "algorithm, expected, unexpected",
    [
        (TD3Config(), ["--preactivation-penalty 1 ", "--normalize-rewards", "flashsac"], []),
        (TD3Config(preactivation_penalty=1.0), ["--preactivation-penalty 10"], []),
        (SACConfig(normalize_rewards=True), ["flashsac"], ["--preactivation-penalty", "--normalize-rewards"]),
        (FlashSACConfig(), ["--actor-lr"], ["--preactivation-penalty", "flashsac"]),
    ],
)
def test_the_warning_names_only_flags_of_the_algorithm(algorithm, expected, unexpected):
    text = cures(algorithm)
    assert all(each in text for each in expected), text
    assert not any(each in text for each in unexpected), text
