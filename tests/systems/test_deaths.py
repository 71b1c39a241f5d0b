"""A host of Ape-X or Gorila is killed in the middle of its work: the run goes on, and no row is torn."""

import dataclasses
import itertools

import pytest
from mortal import mortal
from test_apex import CLOCK, DQN, numbers
from test_apex import SMALL as APEX
from test_gorila import SMALL as GORILA
from watching import Watch

from troop.core.engine import Until
from troop.core.program import Build
from troop.engines import Processes
from troop.systems.setting import Evaluation, Setting

SETTING = Setting(3, "cpu", Evaluation(episodes=2, env_steps=10**9, longest=100))
SYSTEMS = {
    "actor1": dataclasses.replace(APEX, capacity=400_000, samples_per_insert=1.0),
    "replay": dataclasses.replace(APEX, capacity=400_000, samples_per_insert=1.0),
    "learner": dataclasses.replace(APEX, capacity=400_000, samples_per_insert=1.0),
    "server": dataclasses.replace(GORILA, capacity=20_000),
    "bundle1": dataclasses.replace(GORILA, capacity=20_000),
}


@pytest.mark.parametrize("name", SYSTEMS)
def test_one_that_is_killed_comes_back_and_no_row_is_torn(name, tmp_path):
    program = SYSTEMS[name].program(DQN, CLOCK, SETTING)
    node = program.nodes[name]
    node.build = Build(mortal, (name, str(tmp_path / "dead"), *node.build.args), node.build.kwargs)
    watch = Watch()
    result = Processes(threads=1, log_s=0.2).run(program, Until(env_steps=4000), 3, watch)
    assert (tmp_path / "dead").exists() and result.counters.restarts == 1 and result.status == "done"
    assert result.counters.updates > 50
    if name in ("actor1", "replay", "learner"):
        for steps, closing in numbers(watch.state["replay.replay"]):
            begins = [0, *(at + 1 for at, closed in enumerate(closing) if closed), len(steps)]
            for begin, end in itertools.pairwise(begins):
                assert steps[begin:end] == list(range(steps[begin], steps[begin] + end - begin))
            assert sum(closing) <= 1
