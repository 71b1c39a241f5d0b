from statistics import median

import pytest

from troop.envs.atari_scores import SCORES, human_normalized, published_scores
from troop.envs.envpool import catalog

# Horgan et al., 2018, no-op starts.
APE_X = """
Alien 40804.9 Amidar 8659.2 Assault 24559.4 Asterix 313305 Asteroids 155495 Atlantis 944498 BankHeist 1716.4
BattleZone 98895 BeamRider 63305 Berzerk 57197 Bowling 17.6 Boxing 100 Breakout 800.9 Centipede 12974
ChopperCommand 721851 CrazyClimber 320426 Defender 411944 DemonAttack 133086 DoubleDunk 23.5 Enduro 2177
FishingDerby 44.4 Freeway 33.7 Frostbite 9328.6 Gopher 120501 Gravitar 1598.5 Hero 31656 IceHockey 33
Jamesbond 21323 Kangaroo 1416 Krull 11741 KungFuMaster 97830 MontezumaRevenge 2500 MsPacman 11255
NameThisGame 25783 Phoenix 224491 Pitfall -0.6 Pong 20.9 PrivateEye 49.8 Qbert 302391 Riverraid 63864
RoadRunner 222235 Robotank 73.8 Seaquest 392952 Skiing -10790 Solaris 2893 SpaceInvaders 54681
StarGunner 434343 Surround 7.1 Tennis 23.9 TimePilot 87085 Tutankham 272.6 UpNDown 401884 Venture 1813
VideoPinball 565163 WizardOfWor 46204 YarsRevenge 148595 Zaxxon 42286
"""


def test_median_of_ape_x_is_the_published_one():
    words = APE_X.split()
    scores = dict(zip(words[::2], map(float, words[1::2]), strict=True))
    assert set(scores) == set(SCORES) and len(SCORES) == 57
    percent = [human_normalized(f"{game}-v5", score) for game, score in scores.items()]
    assert round(median(percent)) == 434
    assert sum(p >= 100 for p in percent) == 49


@pytest.mark.parametrize(
    ("game", "scores"),
    [
        ("Pong", (-20.7, 14.6)),
        ("Breakout", (1.7, 30.5)),
        ("SpaceInvaders", (148.0, 1668.7)),
        ("Seaquest", (68.4, 42054.7)),
        ("Qbert", (163.9, 13455.0)),
        ("BeamRider", (363.9, 16926.5)),
        ("Enduro", (0.0, 860.5)),
        ("Freeway", (0.0, 29.6)),
        ("MontezumaRevenge", (0.0, 4753.3)),
    ],
)
def test_published_scores_for_every_spelling_of_the_id(game, scores):
    for id in (
        f"{game}-v5",
        f"ALE/{game}-v5",
        f"{game}NoFrameskip-v4",
        f"{game}-v0",
        f"{game}Deterministic-v4",
    ):
        assert published_scores(id) == scores


def test_human_normalized_is_zero_for_random_and_one_hundred_for_human_play():
    for game, (random, human) in SCORES.items():
        assert human_normalized(f"{game}-v5", random) == 0
        assert human_normalized(f"ALE/{game}-v5", human) == pytest.approx(100)
    assert human_normalized("Pong-v5", 49.9) == pytest.approx(200)


def test_other_envs_have_no_published_scores():
    for id in (
        "MinAtar/Breakout-v1",
        "MinAtar/Breakout-v0",
        "own:Pong-v5",
        "Clock",
        "Adventure-v5",
        "CartPole-v1",
    ):
        assert published_scores(id) is None and human_normalized(id, 3.0) is None


def test_only_atari_tasks_of_envpool_have_published_scores():
    pytest.importorskip("envpool")
    modules = catalog.modules()
    assert all(modules.get(f"{game}-v5") == "envpool.atari" for game in SCORES)
    assert {modules[id] for id in modules if published_scores(id)} == {"envpool.atari"}
