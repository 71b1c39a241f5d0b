"""Published scores of a random and a human player in 57 Atari games, and human-normalized scores.

The table is the one for no-op starts that DQN, dueling networks (Wang et al., 2016), Rainbow and Ape-X use:
at most 30 minutes of play, up to 30 no-ops at the start, no sticky actions.
"""

from __future__ import annotations

import re

# game: (random, human)
SCORES: dict[str, tuple[float, float]] = {
    "Alien": (227.8, 7127.7),
    "Amidar": (5.8, 1719.5),
    "Assault": (222.4, 742.0),
    "Asterix": (210.0, 8503.3),
    "Asteroids": (719.1, 47388.7),
    "Atlantis": (12850.0, 29028.1),
    "BankHeist": (14.2, 753.1),
    "BattleZone": (2360.0, 37187.5),
    "BeamRider": (363.9, 16926.5),
    "Berzerk": (123.7, 2630.4),
    "Bowling": (23.1, 160.7),
    "Boxing": (0.1, 12.1),
    "Breakout": (1.7, 30.5),
    "Centipede": (2090.9, 12017.0),
    "ChopperCommand": (811.0, 7387.8),
    "CrazyClimber": (10780.5, 35829.4),
    "Defender": (2874.5, 18688.9),
    "DemonAttack": (152.1, 1971.0),
    "DoubleDunk": (-18.6, -16.4),
    "Enduro": (0.0, 860.5),
    "FishingDerby": (-91.7, -38.7),
    "Freeway": (0.0, 29.6),
    "Frostbite": (65.2, 4334.7),
    "Gopher": (257.6, 2412.5),
    "Gravitar": (173.0, 3351.4),
    "Hero": (1027.0, 30826.4),
    "IceHockey": (-11.2, 0.9),
    "Jamesbond": (29.0, 302.8),
    "Kangaroo": (52.0, 3035.0),
    "Krull": (1598.0, 2665.5),
    "KungFuMaster": (258.5, 22736.3),
    "MontezumaRevenge": (0.0, 4753.3),
    "MsPacman": (307.3, 6951.6),
    "NameThisGame": (2292.3, 8049.0),
    "Phoenix": (761.4, 7242.6),
    "Pitfall": (-229.4, 6463.7),
    "Pong": (-20.7, 14.6),
    "PrivateEye": (24.9, 69571.3),
    "Qbert": (163.9, 13455.0),
    "Riverraid": (1338.5, 17118.0),
    "RoadRunner": (11.5, 7845.0),
    "Robotank": (2.2, 11.9),
    "Seaquest": (68.4, 42054.7),
    "Skiing": (-17098.1, -4336.9),
    "Solaris": (1236.3, 12326.7),
    "SpaceInvaders": (148.0, 1668.7),
    "StarGunner": (664.0, 10250.0),
    "Surround": (-10.0, 6.5),
    "Tennis": (-23.8, -8.3),
    "TimePilot": (3568.0, 5229.2),
    "Tutankham": (11.4, 167.6),
    "UpNDown": (533.4, 11693.2),
    "Venture": (0.0, 1187.5),
    "VideoPinball": (16256.9, 17667.9),
    "WizardOfWor": (563.5, 4756.5),
    "YarsRevenge": (3092.9, 54576.9),
    "Zaxxon": (32.5, 9173.3),
}

# EnvPool registers `Pong-v5`; Gymnasium registers `ALE/Pong-v5` and `PongNoFrameskip-v4`.
# `MinAtar/Breakout-v1` is a different game and does not match.
ATARI_ID = re.compile(r"(?:ALE/)?(?P<game>[A-Za-z]+?)(?:NoFrameskip|Deterministic)?-v[045]")


def published_scores(env_id: str) -> tuple[float, float] | None:
    """Return (random, human) for an Atari id of EnvPool or Gymnasium; None for any other env."""
    match = ATARI_ID.fullmatch(env_id)
    return SCORES.get(match["game"]) if match else None


def human_normalized(env_id: str, score: float) -> float | None:
    """Return `score` in percent: 0 is a random player, 100 a human; None if no scores are published.

    `env_id` is the id without a backend prefix (`EnvConfig.id`).
    """
    scores = published_scores(env_id)
    if scores is None:
        return None
    random, human = scores
    return 100 * (score - random) / (human - random)
