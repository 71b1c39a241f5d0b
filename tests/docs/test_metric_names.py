"""Every metric that a run writes is in the table of names, and every entry of the table is written."""

import dataclasses
import json

import pytest
from troop_docs import metrics_page

from troop.api import make_experiment
from troop.core.engine import Until
from troop.logs.metric_names import METRICS, describe

RUNS = {  # system: recipe, env, env steps, engine
    "sync": ("sac", "toy:PointMass", 1200, "inline"),
    "sync with flashsac": ("flashsac", "toy:PointMass", 1400, "inline"),
    "apex": ("apex-dqn", "CartPole-v1", 2000, "inline"),
    "apex with r2d2": ("r2d2", "Cue-v0", 3000, "inline"),
    "gorila": ("gorila-dqn", "CartPole-v1", 1300, "inline"),
    "pql": ("pql", "toy:PointMass", 1200, "inline"),
    "on-policy": ("ppo", "CartPole-v1", 26_000, "inline"),
    "on-policy with unreal": ("unreal", "Catch-v0", 2000, "inline"),
    "a3c": ("a3c", "CartPole-v1", 1000, "inline"),
    "impala": ("impala", "CartPole-v1", 3000, "inline"),
    "impala with appo": ("appo", "CartPole-v1", 3000, "inline"),
    "seed": ("seed-vtrace", "CartPole-v1", 5000, "inline"),
    "seed with r2d2": ("seed-r2d2", "Cue-v0", 3000, "inline"),
    "data-parallel": ("dd-ppo", "CartPole-v1", 9000, "inline"),
    "apex in processes": ("apex-dqn", "CartPole-v1", 1500, "processes"),
}
CONDITIONAL = (  # not run here
    "the 57 Atari games with published scores",
    "more than 8 nodes of one kind",
    "APPO with `--kl-target`",
)


@pytest.fixture(scope="module")
def emitted(tmp_path_factory):
    """The names of all metrics that short runs of each system write."""
    root, names = tmp_path_factory.mktemp("runs"), {}
    for label, (recipe, env, steps, engine) in RUNS.items():
        short = make_experiment(recipe, env, engine=engine)
        short = dataclasses.replace(
            short,
            until=Until(env_steps=steps),
            evaluation=dataclasses.replace(short.evaluation, episodes=2, max_episode_steps=50),
            engine=dataclasses.replace(short.engine, log_s=0.05, threads=1),
        )
        if "actors" in {field.name for field in dataclasses.fields(short.system)}:
            short = dataclasses.replace(short, system=dataclasses.replace(short.system, actors=2))
        short.run(root / label, quiet=True)
        lines = (root / label / "metrics.jsonl").read_text().splitlines()
        names[label] = {name for line in lines for name in json.loads(line)}
    return names


def test_every_metric_is_in_the_table(emitted):
    for label, names in emitted.items():
        for name in names:
            metric = describe(name)
            assert metric is not None, f"{label} writes {name}, which troop.logs.metric_names does not list"
            assert not metric.systems or label.split()[0] in metric.systems, f"{label} writes {name}"


def test_every_entry_is_written_by_its_systems(emitted):
    for metric in METRICS:
        if metric.condition in CONDITIONAL:
            continue
        systems = metric.systems or tuple(RUNS)
        labels = [label for label in RUNS if label in systems or label.split()[0] in systems]
        found = [label for label in labels if any(metric.matches(name) for name in emitted[label])]
        assert found, f"no run writes {metric.pattern}"
        if not metric.condition:
            missing = set(labels) - set(found)
            assert not missing, f"{metric.pattern} is not written by {missing}"


def test_page_lists_every_entry():
    page = metrics_page.page()
    assert all(f"`{metric.pattern}`" in page for metric in METRICS)
