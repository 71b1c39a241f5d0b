"""Systems: which roles exist and which role holds a reference to which."""

from troop.core.system import Evaluation, RunSettings
from troop.systems.apex import Apex
from troop.systems.gorila import Gorila
from troop.systems.pql import PQL
from troop.systems.sync import Sync

__all__ = ["PQL", "Apex", "Evaluation", "Gorila", "RunSettings", "Sync"]
