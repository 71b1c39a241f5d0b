"""AXIS 3: which roles exist and who holds whom."""

from troop.systems.apex import Apex
from troop.systems.gorila import Gorila
from troop.systems.pql import PQL
from troop.systems.settings import Evaluation, RunSettings
from troop.systems.sync import Sync

__all__ = ["PQL", "Apex", "Evaluation", "Gorila", "RunSettings", "Sync"]
