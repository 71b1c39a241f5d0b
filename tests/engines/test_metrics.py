"""MetricAggregator: counts are summed, all other metrics are averaged."""

import pytest
import torch

from troop.engines.metrics import MetricAggregator


def test_counts_are_summed_and_other_metrics_averaged_until_read():
    aggregator = MetricAggregator()
    aggregator.add({"count/env_steps": 3, "loss": 1.0})
    aggregator.add({"count/env_steps": 4, "loss": 3.0, "lag": 2})
    assert aggregator.read_counts() == {"count/env_steps": 7} and aggregator.read_counts() == {}
    assert aggregator.read_means() == {"loss": 2.0, "lag": 2.0} and aggregator.read_means() == {}


def test_tensors_and_numbers_of_one_metric_may_be_mixed():
    aggregator = MetricAggregator()
    aggregator.add({"count/updates": 2, "loss": torch.tensor(1.0), "return": 10.0})
    aggregator.add({"count/updates": torch.tensor(5.0), "loss": 3.0, "return": torch.tensor(20.0)})
    assert aggregator.read_counts() == {"count/updates": 7}
    assert aggregator.read_means() == {"loss": pytest.approx(2.0), "return": pytest.approx(15.0)}


def test_a_count_held_as_tensor_is_read_only_on_request():
    aggregator = MetricAggregator()
    aggregator.add({"count/env_steps": 4, "count/updates": torch.tensor(5.0)})
    assert (aggregator.plain_count("count/env_steps"), aggregator.plain_count("count/updates")) == (4, 0)
    assert aggregator.plain_count("count/missing") == 0
