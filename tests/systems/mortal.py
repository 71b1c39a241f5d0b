"""Roles that kill their own process once, in the middle of their work."""

import os
import signal
from pathlib import Path

from troop.replay.shards import Shard
from troop.roles.actor import Actor
from troop.roles.learner import Learner
from troop.roles.parameter_server import ParameterServer
from troop.roles.trainer import Trainer


def perish(marker):
    """SIGKILL, unless it was done before."""
    if not Path(marker).exists():
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)


class MortalActor(Actor):
    """Dies after 200 env steps."""

    marker = ""

    def step(self):
        if self.env_steps > 200:
            perish(self.marker)
        return super().step()


class MortalShard(Shard):
    """Dies when it has 1000 rows."""

    marker = ""

    def add(self, piece):
        if self.limiter.inserted > 1000:
            perish(self.marker)
        super().add(piece)


class MortalLearner(Learner):
    """Dies after 60 updates."""

    marker = ""

    def step(self):
        if self.updates > 60:
            perish(self.marker)
        return super().step()


class MortalTrainer(Trainer):
    """Dies after 60 updates."""

    marker = ""

    def step(self):
        if self.version > 60:
            perish(self.marker)
        return super().step()


class MortalServer(ParameterServer):
    """Dies when it has applied 100 gradients."""

    marker = ""

    def exchange(self, *args):
        if self.counts["applied"] == 100:
            perish(self.marker)
        return super().exchange(*args)


KINDS = {
    "actor1": MortalActor,
    "replay": MortalShard,
    "learner": MortalLearner,
    "bundle1": MortalTrainer,
    "server": MortalServer,
}


def mortal(name, marker, *args, **kwargs):
    """The role of that name, mortal."""
    made = KINDS[name](*args, **kwargs)
    made.marker = marker
    return made
