"""Suite of five Atari games (Aitchison et al. 2023), normalised by the published random and human scores."""

from __future__ import annotations

from troop.envs.atari_scores import SCORES
from troop.suites.task import Suite, Task

HUMAN = "human"
SOURCES = {HUMAN: "human score, no-op starts (Wang et al. 2016); the random score is from the same table"}
_GAMES = ("BattleZone", "DoubleDunk", "NameThisGame", "Phoenix", "Qbert")
_TASKS = tuple(Task(f"{game}-v5", *SCORES[game], HUMAN) for game in _GAMES)
SUITES = {"atari-5": Suite("atari-5", _TASKS, SOURCES)}
