"""Systems: which roles exist and which role holds a reference to which."""

from troop.core.system import Evaluation, RunSettings
from troop.systems.a3c import A3C
from troop.systems.apex import Apex
from troop.systems.data_parallel import DataParallel
from troop.systems.gorila import Gorila
from troop.systems.impala import IMPALA
from troop.systems.on_policy import OnPolicy
from troop.systems.pql import PQL
from troop.systems.seed import SEED
from troop.systems.sync import Sync

__all__ = [
    "A3C",
    "IMPALA",
    "PQL",
    "SEED",
    "Apex",
    "DataParallel",
    "Evaluation",
    "Gorila",
    "OnPolicy",
    "RunSettings",
    "Sync",
]
