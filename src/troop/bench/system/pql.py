"""PQL: whether its ratios are kept, what three roles at once are worth, and how old their weights are."""

from __future__ import annotations

from troop.algorithms import TD3Config
from troop.bench.system.scaling import ENGINES
from troop.bench.system.trial import BOTH, SETTING, Trial, tried
from troop.bench.table import Line
from troop.core.program import Program
from troop.engines import Inline, Processes
from troop.envs import Toy
from troop.recipes.fast_td3 import CPU_UNKNOWN
from troop.roles.trainer import UpdateSchedule
from troop.systems import PQL, Sync

RATIOS = ((4, 1), (8, 2), (16, 4))  # critic updates for a vector step, and for a policy update
QUICK = Toy("PointMass", envs=16, limit=100)
SLEEPING = Toy("Sleepy", envs=16, limit=100, seconds=0.005)
LIGHT = TD3Config(**CPU_UNKNOWN | {"actor_hidden": (16,), "critic_hidden": (16,), "atoms": 11})
# So that the simulator, the critics and the policy each take about as long as the others.
EVEN = TD3Config(**CPU_UNKNOWN | {"policy_delay": 1})
BATCH, SLACK = 256, 0.02
OTHER = {"critic": "policy", "policy": "critic"}


def system(beta_av: float, beta_pv: float, batch: int) -> PQL:
    """Small stores; else as it comes."""
    return PQL(
        beta_av, beta_pv, batch_size=batch, replay_capacity=50_000, learning_starts=10, save_replay=False
    )


def achieved(engine: str, beta_av: float, beta_pv: float, seconds: float) -> tuple[float, float]:
    """Critic updates for each vector step and for each policy update, after the warm-up."""
    program = system(beta_av, beta_pv, 64).program(LIGHT, QUICK, SETTING)
    trial = tried(program, ENGINES[engine], Trial(seconds, warm=2.0, moving=BOTH))
    critic, policy = (
        trial.value_and_grad(f"{name}/updates", f"{name}/steps") for name in ("critic", "policy")
    )
    return critic, critic / policy


def ratios(seconds: float, engines: tuple[str, ...]) -> list[Line]:
    """Those had against those wanted."""
    lines = []
    for engine in engines:
        for wanted in RATIOS:
            had = achieved(engine, *wanted, seconds)
            for name, want, have in zip(("a:v", "p:v"), wanted, had, strict=True):
                lines.append(
                    Line(
                        f"{engine}, beta_{name}",
                        f"1:{have:.3f}",
                        f"1:{want}",
                        have / want,
                        f"{1 - SLACK} to {1 + SLACK}",
                    )
                )
    return lines


def sync() -> Program:
    """The same steps and updates in turn."""
    made = Sync(
        UpdateSchedule(BATCH, updates_per_step=1), replay_capacity=50_000, save_replay=False, recreate_every=0
    )
    return made.program(EVEN, SLEEPING, SETTING)


def together(seconds: float) -> list[Line]:
    """Three roles at once against the same in turn on one thread or two, whichever is faster."""
    in_turn = max(
        tried(sync(), Inline(threads=threads), Trial(seconds, moving=BOTH)).rate("env_steps")
        for threads in (1, 2)
    )
    program = system(1, 1, BATCH).program(EVEN, SLEEPING, SETTING)
    trial = tried(program, Processes(threads=1), Trial(seconds, warm=2.0, moving=BOTH))
    at_once, envs = trial.rate("env_steps"), SLEEPING.envs
    speed = Line(
        "three roles at once",
        f"{at_once / envs:.0f} vector steps/s with their updates",
        f"in turn {in_turn / envs:.0f}",
        at_once / in_turn,
        ">= 1.6",
    )
    return [speed, *(age(trial, reader, 1.0) for reader in OTHER)]


def ages(seconds: float) -> list[Line]:
    """Of a net at a learner who mostly waits, because the other makes four updates for each of its own."""
    lines = []
    for reader, beta_pv in (("critic", 1 / 4), ("policy", 4.0)):
        made = system(1, beta_pv, BATCH)
        program = made.program(EVEN, SLEEPING, SETTING)
        trial = tried(program, Processes(threads=1), Trial(seconds, warm=2.0, moving=BOTH))
        lines.append(age(trial, reader, made.pace(OTHER[reader]).publish_every, idle=True))
    return lines


def age(trial: Trial, reader: str, publish: float, idle: bool = False) -> Line:
    """Publications by which a learner was behind when newer weights came."""
    of = OTHER[reader]
    lag = trial.median(f"{reader}/{of}_lag") / publish
    return Line(
        f"age of the {of} net at the {'idle' if idle else 'busy'} {reader} learner",
        f"{lag:.2f} publications",
        "1",
        lag,
        "<= 1" if idle else "",
    )


def run(seconds: float = 60.0, engines: tuple[str, ...] = ("processes", "ray")) -> list[Line]:
    """Ratios, speed, age."""
    short = min(seconds, 10.0)
    return ratios(seconds, engines) + together(short) + ages(short)
