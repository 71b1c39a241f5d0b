"""What the papers say: their values by flag, in the units of the flag, and why a recipe differs if it does.

`tests/docs/test_reference.py` builds each recipe at the paper's scale and fails if a value differs from the
paper without a reason here, or if a reason is given for a value that is the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Value:
    """One value of a paper; `note` is its source or unit, `reason` why the recipe's value differs.

    `by_cores` describes a value that depends on the number of cores of the machine.
    """

    paper: object
    note: str = ""
    reason: str = ""
    by_cores: str = ""


@dataclass(frozen=True)
class Paper:
    """Where a recipe's values come from and on which env and device the recipe follows them."""

    citation: str
    env: str | None
    device: str
    values: dict[str, Value] = field(default_factory=dict)


CUDA = "cuda:0"
OFF_BY_DEFAULT = "an option here; not run, since no GPU was available"
PER_FOUR_STEPS = "a quarter of the number of envs, which step together"
PER_STEP = "all envs step together, so that one vector step has one update for each env"

_FASTTD3_PAPER = "Seo et al. 2025, FastTD3 (arXiv 2505.22642), table of hyperparameters"
_FASTTD3: dict[str, Value] = {
    "env.envs": Value(1024),
    "env.reward": Value("tuned", "of training; evaluation uses the default reward, there and here"),
    "algorithm.gamma": Value(0.97),
    "algorithm.n-step": Value(1),
    "algorithm.tau": Value(0.1),
    "algorithm.policy-delay": Value(2),
    "algorithm.critics": Value(2),
    "algorithm.atoms": Value(101),
    "algorithm.v-min": Value(-10.0),
    "algorithm.v-max": Value(10.0),
    "algorithm.clipped-double-q": Value(True),
    "algorithm.normalize-observations": Value(True),
    "algorithm.actor-hidden": Value((512, 256, 128)),
    "algorithm.critic-hidden": Value((1024, 512, 256)),
    "algorithm.actor-init": Value(0.01),
    "algorithm.actor-lr": Value(3e-4),
    "algorithm.critic-lr": Value(3e-4),
    "algorithm.weight-decay": Value(0.1),
    "algorithm.policy-noise": Value(0.001),
    "algorithm.noise-clip": Value(0.5),
    "algorithm.std-min": Value(
        0.001, "the published curves used 0.05: the flag did not reach the actor then"
    ),
    "algorithm.std-max": Value(0.4, "the published curves used 0.8"),
    "algorithm.compile": Value(True, reason=OFF_BY_DEFAULT),
    "algorithm.amp": Value(True, reason=OFF_BY_DEFAULT),
    "system.schedule.batch-size": Value(32_768),
    "system.schedule.updates-per-step": Value(2),
    "system.learning-starts": Value(10, "vector steps"),
    "system.replay-capacity": Value(1024 * 10_240, "10,240 for each env"),
}

_DQN_ZOO = "values of the paper in the units of DQN Zoo: 4 frames are one env step, 4 env steps one update"
_ATARI_ENVS = Value(1, reason="envs step together; updates per vector step keep one update for 4 env steps")
_DQN: dict[str, Value] = {
    "env.envs": _ATARI_ENVS,
    "algorithm.gamma": Value(0.99),
    "algorithm.n-step": Value(1),
    "algorithm.loss": Value("huber", "the error is clipped to [-1, 1]"),
    "algorithm.optimizer": Value("rmsprop_tf"),
    "algorithm.lr": Value(2.5e-4),
    "algorithm.decay": Value(0.95),
    "algorithm.eps": Value(0.01 / 32**2, "0.01 on the sum over 32 rows"),
    "algorithm.centered": Value(True),
    "algorithm.target-update-period": Value(2500, "10,000 env steps, counted in updates"),
    "algorithm.epsilon-start": Value(1.0),
    "algorithm.epsilon-end": Value(0.1),
    "algorithm.epsilon-steps": Value(1_000_000, "four million frames"),
    "algorithm.epsilon-delay": Value(50_000, "env steps before the first update"),
    "algorithm.hidden": Value((512,)),
    "system.schedule.batch-size": Value(32),
    "system.schedule.updates-per-step": Value(0.25, "one update for 4 env steps", reason=PER_FOUR_STEPS),
    "system.replay-capacity": Value(1_000_000),
    "system.priority.alpha": Value(0.0, "uniform replay"),
}
_DOUBLE = _DQN | {
    "algorithm.double": Value(True),
    "algorithm.epsilon-end": Value(0.01),
    "algorithm.target-update-period": Value(7500, "30,000 env steps"),
}
_DUELING = _DOUBLE | {
    "algorithm.dueling": Value(True),
    "algorithm.rescale-torso": Value(True, "gradient into the shared layers times 1/sqrt(2)"),
    "algorithm.lr": Value(6.25e-5),
    "algorithm.max-grad-norm": Value(10.0),
}
_ANNEALED = {
    "system.priority.beta": Value(0.4),
    "system.priority.beta-end": Value(1.0),
    "system.priority.beta-anneal-batches": Value(12_500_000, "all updates of 200 million frames"),
}
_PER = _DOUBLE | {
    "algorithm.lr": Value(6.25e-5, "a quarter of DQN's"),
    "algorithm.eps": Value(0.01 / 32**2 / 16, "follows the square of the learning rate"),
    "system.priority.alpha": Value(0.6, "proportional variant"),
    **_ANNEALED,
}
_ADAM = {"algorithm.optimizer": Value("adam"), "algorithm.max-grad-norm": Value(10.0)}
_ATOMS = {
    "algorithm.atoms": Value(51),
    "algorithm.v-min": Value(-10.0),
    "algorithm.v-max": Value(10.0),
}
_UNUSED = ("algorithm.decay", "algorithm.centered", "algorithm.loss")
_CATEGORICAL = {flag: value for flag, value in _DQN.items() if flag not in _UNUSED} | _ADAM | _ATOMS
_C51 = _CATEGORICAL | {
    "algorithm.lr": Value(2.5e-4),
    "algorithm.eps": Value(0.01 / 32),
    "algorithm.epsilon-end": Value(0.01),
}
_NO_EPSILON = ("algorithm.epsilon-steps", "algorithm.epsilon-delay")
_RAINBOW = {flag: value for flag, value in _CATEGORICAL.items() if flag not in _NO_EPSILON} | {
    "algorithm.n-step": Value(3),
    "algorithm.double": Value(True),
    "algorithm.dueling": Value(True),
    "algorithm.noisy": Value(0.5),
    "algorithm.epsilon-start": Value(0.0),
    "algorithm.epsilon-end": Value(0.0),
    "algorithm.lr": Value(6.25e-5),
    "algorithm.eps": Value(1.5e-4),
    "algorithm.target-update-period": Value(2000, "32,000 frames, counted in updates"),
    "system.priority.alpha": Value(0.5),
    **_ANNEALED,
}

_APEX_DQN: dict[str, Value] = {
    "system.actors": Value(360, by_cores="cores - 2, at least 2, at most 360"),
    "env.envs": Value(
        1,
        "for each actor; exploration rates beyond the number of actors become envs of an actor",
        by_cores="360 / actors, at most 16",
    ),
    "algorithm.gamma": Value(0.99),
    "algorithm.n-step": Value(3),
    "algorithm.double": Value(True),
    "algorithm.dueling": Value(True),
    "algorithm.loss": Value("squared"),
    "algorithm.optimizer": Value("rmsprop_tf"),
    "algorithm.lr": Value(6.25e-5),
    "algorithm.decay": Value(0.95),
    "algorithm.eps": Value(1.5e-7),
    "algorithm.centered": Value(True),
    "algorithm.max-grad-norm": Value(40.0),
    "algorithm.target-update-period": Value(2500, "training batches"),
    "algorithm.hidden": Value((512,)),
    "system.weight-sync-steps": Value(100, "400 frames"),
    "system.learner.batch-size": Value(512),
    "system.learner.prefetch": Value(16),
    "system.replay-capacity": Value(2_000_000, "a soft limit there"),
    "system.learning-starts": Value(50_000),
    "system.priority.alpha": Value(0.6),
    "system.priority.beta": Value(0.4),
    "system.priority.beta-end": Value(0.4, "constant"),
    "system.initial-priority": Value("td_error"),
    "system.epsilon-base": Value(0.4),
    "system.epsilon-alpha": Value(7.0),
    "system.samples-per-insert": Value(0.0, "not limited; about 0.78 by itself at the paper's rates"),
    "system.replay-shards": Value(1),
}
_TARGET_COPY = "the paper copies every 100 batches; a share of 0.01 per batch is as old on average"
_APEX_DPG: dict[str, Value] = {
    "system.actors": Value(64, by_cores="cores - 2, at least 2, at most 64"),
    "algorithm.gamma": Value(0.99),
    "algorithm.n-step": Value(3),
    "algorithm.critics": Value(1),
    "algorithm.atoms": Value(0, "a scalar critic"),
    "algorithm.tau": Value("copy", reason=_TARGET_COPY),
    "algorithm.std-min": Value(0.3),
    "algorithm.std-max": Value(0.3),
    "algorithm.actor-lr": Value(1e-4),
    "algorithm.critic-lr": Value(1e-4),
    "algorithm.actor-hidden": Value((300, 200)),
    "algorithm.critic-hidden": Value((400, 300)),
    "algorithm.activation": Value("tanh", reason="no tanh layers here"),
    "algorithm.action-gradient-clip": Value(1.0, "each element of dQ/da"),
    "algorithm.actor-carries-critic": Value(True, "for initial priorities"),
    "system.learner.batch-size": Value(256),
    "system.replay-capacity": Value(1_000_000, "evicted by inverse priority there, oldest first here"),
    "system.priority.alpha": Value(0.6),
    "system.priority.beta": Value(0.4),
    "system.priority.beta-end": Value(0.4),
    "system.samples-per-insert": Value(0.0, "not limited"),
}
_GORILA: dict[str, Value] = {
    "system.bundles": Value(100, by_cores="cores - 1, at least 2, at most 100"),
    "system.servers": Value(31, by_cores="0.31 x bundles, at least 1"),
    "env.envs": Value(1),
    "algorithm.gamma": Value(0.99),
    "algorithm.target-update-period": Value(60_000, "updates of all bundles together"),
    "algorithm.epsilon-start": Value(1.0),
    "algorithm.epsilon-end": Value(0.1),
    "algorithm.epsilon-steps": Value(1_000_000, "updates of all bundles together"),
    "algorithm.hidden": Value((512,)),
    "system.schedule.batch-size": Value(32),
    "system.schedule.updates-per-step": Value(1),
    "system.replay-capacity": Value(1_000_000, "of each bundle"),
    "system.adagrad.lr": Value("not published", reason="chosen here"),
    "system.adagrad.max-staleness": Value("not published", reason="0 is 20 times the number of bundles"),
    "system.outliers.max-deviations": Value('"several"', reason="chosen here"),
}

_SCALED = "the authors scale rewards by hand for each task"
_PQL: dict[str, Value] = {
    "env.envs": Value(4096),
    "algorithm.gamma": Value(0.99),
    "algorithm.n-step": Value(3),
    "algorithm.tau": Value(0.05),
    "algorithm.critics": Value(2),
    "algorithm.actor-hidden": Value((512, 256, 128)),
    "algorithm.critic-hidden": Value((512, 256, 128)),
    "algorithm.activation": Value("elu"),
    "algorithm.actor-lr": Value(5e-4),
    "algorithm.critic-lr": Value(5e-4),
    "algorithm.weight-decay": Value(0.01, "the default of AdamW"),
    "algorithm.max-grad-norm": Value(0.5),
    "algorithm.normalize-observations": Value(True),
    "algorithm.normalize-rewards": Value(False, reason=_SCALED),
    "system.beta-av": Value(8.0, "written 1:8 in the paper"),
    "system.beta-pv": Value(2.0, "written 1:2 in the paper"),
    "system.batch-size": Value(8192),
    "system.replay-capacity": Value(5_000_000),
    "system.learning-starts": Value(32, "vector steps"),
}
_PQL_NOISE = {
    "algorithm.policy-noise": Value(0.8),
    "algorithm.noise-clip": Value(0.2),
    "algorithm.std-min": Value(0.05),
    "algorithm.std-max": Value(0.8),
    "algorithm.clip-actions": Value(True),
}
_DDPG_N = {flag: value for flag, value in (_PQL | _PQL_NOISE).items() if not flag.startswith("system.")} | {
    "algorithm.atoms": Value(0, "scalar critics"),
    "algorithm.policy-delay": Value(1, "8 critic and 8 actor updates per vector step"),
    "system.schedule.batch-size": Value(8192),
    "system.schedule.updates-per-step": Value(8),
    "system.replay-capacity": Value(5_000_000),
    "system.learning-starts": Value(32, "vector steps"),
}

_ROWS_PER_ENV = "rows of each env: the paper's number divided by the envs"
_TD3: dict[str, Value] = {
    "env.envs": Value(1, reason=PER_STEP),
    "algorithm.gamma": Value(0.99),
    "algorithm.n-step": Value(1),
    "algorithm.tau": Value(0.005),
    "algorithm.policy-delay": Value(2),
    "algorithm.critics": Value(2),
    "algorithm.atoms": Value(0, "scalar critics"),
    "algorithm.policy-q": Value("first"),
    "algorithm.policy-noise": Value(0.2),
    "algorithm.noise-clip": Value(0.5),
    "algorithm.std-min": Value(0.1),
    "algorithm.std-max": Value(0.1),
    "algorithm.clip-actions": Value(True),
    "algorithm.target-policy": Value(True),
    "algorithm.delay-targets": Value(True),
    "algorithm.normalize-observations": Value(False),
    "algorithm.actor-hidden": Value((256, 256)),
    "algorithm.critic-hidden": Value((256, 256)),
    "algorithm.actor-lr": Value(3e-4),
    "algorithm.critic-lr": Value(3e-4),
    "algorithm.weight-decay": Value(0.0),
    "system.schedule.batch-size": Value(256),
    "system.schedule.updates-per-step": Value(1, "for each env step", reason=PER_STEP),
    "system.replay-capacity": Value(1_000_000),
    "system.learning-starts": Value(25_000, "env steps", reason=_ROWS_PER_ENV),
    "algorithm.random-steps": Value(25_000, "env steps with uniform random actions"),
}
_RARE_REWARDS = "finds rare rewards, as FastTD3 does; `td3-paper` and `ddpg-paper` have the paper's value"
_TD3_GENERAL: dict[str, Value] = {
    "algorithm.n-step": Value(1, reason=_RARE_REWARDS),
    "algorithm.std-min": Value(0.1, reason=_RARE_REWARDS),
    "algorithm.std-max": Value(0.1, reason=_RARE_REWARDS),
    "algorithm.normalize-observations": Value(False, reason=_RARE_REWARDS),
    "system.priority.alpha": Value(0.0, "uniform replay", reason=_RARE_REWARDS),
}
_AS_TD3 = "TD3's, so that the two recipes differ in the algorithm only"
_DDPG: dict[str, Value] = {
    "env.envs": Value(1, reason=PER_STEP),
    "algorithm.gamma": Value(0.99),
    "algorithm.n-step": Value(1),
    "algorithm.tau": Value(0.001, reason=_AS_TD3),
    "algorithm.policy-delay": Value(1),
    "algorithm.critics": Value(1),
    "algorithm.atoms": Value(0, "a scalar critic"),
    "algorithm.policy-noise": Value(0.0),
    "algorithm.target-policy": Value(True),
    "algorithm.delay-targets": Value(False),
    "algorithm.std-min": Value(0.2, "Ornstein-Uhlenbeck process", reason="Gaussian noise, as in TD3"),
    "algorithm.std-max": Value(0.2, "Ornstein-Uhlenbeck process", reason="Gaussian noise, as in TD3"),
    "algorithm.actor-hidden": Value((400, 300), reason=_AS_TD3),
    "algorithm.critic-hidden": Value((400, 300), reason=_AS_TD3),
    "algorithm.actor-lr": Value(1e-4, reason=_AS_TD3),
    "algorithm.critic-lr": Value(1e-3, reason=_AS_TD3),
    "algorithm.weight-decay": Value(0.01, "of the critic, as an L2 loss", reason=_AS_TD3),
    "algorithm.random-steps": Value(0, "not stated", reason="10,000, as in the TD3 paper"),
    "system.schedule.batch-size": Value(64, reason=_AS_TD3),
    "system.schedule.updates-per-step": Value(1, "for each env step", reason=PER_STEP),
    "system.replay-capacity": Value(1_000_000),
}
_DDPG_GENERAL: dict[str, Value] = {
    "algorithm.n-step": Value(1, reason=_RARE_REWARDS),
    "algorithm.std-min": Value(0.2, "Ornstein-Uhlenbeck process", reason=_RARE_REWARDS),
    "algorithm.std-max": Value(0.2, "Ornstein-Uhlenbeck process", reason=_RARE_REWARDS),
    "system.priority.alpha": Value(0.0, "uniform replay", reason=_RARE_REWARDS),
}
_SAC: dict[str, Value] = {
    "env.envs": Value(1, reason=PER_STEP),
    "algorithm.gamma": Value(0.99),
    "algorithm.n-step": Value(1),
    "algorithm.tau": Value(0.005),
    "algorithm.policy-delay": Value(1),
    "algorithm.critics": Value(2),
    "algorithm.atoms": Value(0, "scalar critics"),
    "algorithm.clipped-double-q": Value(True),
    "algorithm.target-entropy-ratio": Value(1.0, "target entropy -dim(A)"),
    "algorithm.log-std-min": Value(-20.0, "a clamp", reason="squashed by tanh, which keeps a gradient"),
    "algorithm.log-std-max": Value(2.0),
    "algorithm.actor-hidden": Value((256, 256)),
    "algorithm.critic-hidden": Value((256, 256)),
    "algorithm.actor-lr": Value(3e-4),
    "algorithm.critic-lr": Value(3e-4),
    "algorithm.alpha-lr": Value(3e-4),
    "system.schedule.batch-size": Value(256),
    "system.schedule.updates-per-step": Value(1, "for each env step", reason=PER_STEP),
    "system.replay-capacity": Value(1_000_000),
    "system.learning-starts": Value(10_000, "env steps", reason=_ROWS_PER_ENV),
    "algorithm.random-steps": Value(10_000, "env steps with uniform random actions"),
}
_DRQ: dict[str, Value] = {
    "env.envs": Value(1, reason=PER_STEP),
    "env.frames.repeat": Value(2),
    "env.frames.stack": Value(3),
    "env.frames.gray": Value(False),
    "algorithm.gamma": Value(0.99),
    "algorithm.n-step": Value(3),
    "algorithm.tau": Value(0.01),
    "algorithm.policy-delay": Value(1),
    "algorithm.critics": Value(2),
    "algorithm.atoms": Value(0, "scalar critics"),
    "algorithm.clipped-double-q": Value(True),
    "algorithm.actor-hidden": Value((1024, 1024)),
    "algorithm.critic-hidden": Value((1024, 1024)),
    "algorithm.image-features": Value(50),
    "algorithm.random-shift": Value(4, "of 84 pixels", reason="in proportion to the size of the images"),
    "algorithm.torso": Value("4 layers of 32 filters 3x3", reason="nature: a third of the operations"),
    "algorithm.actor-lr": Value(1e-4),
    "algorithm.critic-lr": Value(1e-4),
    "algorithm.random-steps": Value(2000, "4,000 frames"),
    "system.schedule.batch-size": Value(256),
    "system.schedule.updates-per-step": Value(0.5, "for each env step", reason=PER_STEP),
    "system.replay-capacity": Value(1_000_000),
}
_DRQ_NOISE: dict[str, Value] = {
    "algorithm.policy-noise": Value("1 to 0.1", "over 500,000 frames", reason="a constant, as in TD3"),
    "algorithm.noise-clip": Value(0.3),
    "algorithm.std-min": Value(0.1, "at the end of a schedule; here the range of the envs"),
    "algorithm.std-max": Value(1.0, "at the start of a schedule; here the range of the envs"),
}
_FASTSAC: dict[str, Value] = {
    "env.envs": Value(4096),
    "algorithm.gamma": Value(0.97),
    "algorithm.n-step": Value(1),
    "algorithm.tau": Value(0.125),
    "algorithm.policy-delay": Value(4),
    "algorithm.atoms": Value(101),
    "algorithm.v-min": Value(-20.0),
    "algorithm.v-max": Value(20.0),
    "algorithm.clipped-double-q": Value(False),
    "algorithm.actor-hidden": Value((512, 256, 128)),
    "algorithm.critic-hidden": Value((768, 384, 192)),
    "algorithm.activation": Value("silu"),
    "algorithm.layer-norm": Value(True),
    "algorithm.actor-init": Value(0.0),
    "algorithm.log-std-min": Value(-5.0),
    "algorithm.log-std-max": Value(0.0),
    "algorithm.alpha-init": Value(0.001),
    "algorithm.target-entropy-ratio": Value(0.0),
    "algorithm.actor-lr": Value(3e-4),
    "algorithm.critic-lr": Value(3e-4),
    "algorithm.alpha-lr": Value(3e-4),
    "algorithm.beta2": Value(0.95),
    "algorithm.weight-decay": Value(0.001),
    "algorithm.normalize-observations": Value(True),
    "algorithm.amp": Value(True, reason=OFF_BY_DEFAULT),
    "system.schedule.batch-size": Value(8192),
    "system.schedule.updates-per-step": Value(8),
    "system.replay-capacity": Value(4096 * 1024, "1,024 for each env"),
}
_FLASHSAC: dict[str, Value] = {
    "env.envs": Value(1024),
    "algorithm.gamma": Value(0.97),
    "algorithm.n-step": Value(1),
    "algorithm.tau": Value(0.01),
    "algorithm.policy-delay": Value(2),
    "algorithm.alpha-init": Value(0.01),
    "algorithm.alpha-min": Value(0.0, "no bound"),
    "algorithm.alpha-lr": Value(3e-4),
    "algorithm.target-std": Value(0.15),
    "algorithm.log-std-min": Value(-10.0),
    "algorithm.log-std-max": Value(2.0),
    "algorithm.noise-exponent": Value(2.0),
    "algorithm.noise-repeats": Value(16),
    "algorithm.shared-repeats": Value(True, reason="each env has its own number of steps"),
    "algorithm.random-steps": Value(100_000, "env steps with uniform random actions"),
    "algorithm.critics": Value(2),
    "algorithm.atoms": Value(101),
    "algorithm.v-max": Value(5.0),
    "algorithm.normalize-rewards": Value(True),
    "algorithm.actor-width": Value(128),
    "algorithm.critic-width": Value(256),
    "algorithm.blocks": Value(2),
    "algorithm.batch-norm-momentum": Value(0.01),
    "algorithm.input-clip": Value(0.0, "none", reason="constant inputs would be amplified up to 316 times"),
    "algorithm.actor-init": Value(0.0, "unit-norm rows"),
    "algorithm.actor-lr": Value(3e-4),
    "algorithm.critic-lr": Value(3e-4),
    "algorithm.lr-end": Value(0.5, "from 3e-4 to 1.5e-4"),
    "algorithm.compile": Value(True, reason=OFF_BY_DEFAULT),
    "algorithm.amp": Value(True, "fp16", reason=OFF_BY_DEFAULT),
    "system.schedule.batch-size": Value(2048),
    "system.schedule.updates-per-step": Value(2),
    "system.replay-capacity": Value(10_000_000),
    "system.learning-starts": Value(100_000, "env steps", reason=_ROWS_PER_ENV),
}

G1 = "G1JoystickFlatTerrain-v1"
_PPO = {
    "algorithm.rollout-length": Value(128),
    "algorithm.epochs": Value(3, reason="4 in OpenAI's and all later code"),
    "algorithm.minibatches": Value(4, "256 of 1,024 rows"),
    "algorithm.lr": Value(2.5e-4),
    "algorithm.clip": Value(0.1),
    "algorithm.gamma": Value(0.99),
    "algorithm.gae-lambda": Value(0.95),
    "algorithm.entropy-coef": Value(0.01),
    "algorithm.value-coef": Value(1.0, reason="0.5 in OpenAI's and all later code"),
    "algorithm.anneal-steps": Value(10_000_000, "40 million frames"),
    "env.envs": Value(8),
}
_PPO_MASSIVE = {
    "algorithm.rollout-length": Value(24),
    "algorithm.epochs": Value(5),
    "algorithm.minibatches": Value(4),
    "algorithm.lr": Value(1e-3, "initial"),
    "algorithm.desired-kl": Value(0.01),
    "algorithm.clip": Value(0.2),
    "algorithm.value-clip": Value(0.2),
    "algorithm.value-coef": Value(1.0, reason="the value loss there is not halved"),
    "algorithm.entropy-coef": Value(0.01),
    "algorithm.gamma": Value(0.99),
    "algorithm.gae-lambda": Value(0.95),
    "algorithm.max-grad-norm": Value(1.0),
    "env.envs": Value(4096),
}
_A2C = {
    "algorithm.rollout-length": Value(5),
    "algorithm.lr": Value(7e-4),
    "algorithm.eps": Value(1e-5),
    "algorithm.decay": Value(0.99),
    "algorithm.value-coef": Value(0.25),
    "algorithm.entropy-coef": Value(0.01),
    "algorithm.max-grad-norm": Value(0.5),
    "env.envs": Value(16),
}
_MEAN_OF_FIVE = "of the mean over five steps, which the paper sums: the same steps"
_A3C = {
    "algorithm.rollout-length": Value(5),
    "algorithm.gamma": Value(0.99),
    "algorithm.entropy-coef": Value(0.01),
    "algorithm.max-grad-norm": Value(40.0, "of common implementations", reason=_MEAN_OF_FIVE),
    "algorithm.net": Value("nips", "16 filters 8x8, 32 filters 4x4"),
    "system.rmsprop.decay": Value(0.99),
    "system.rmsprop.eps": Value(0.1, reason=_MEAN_OF_FIVE),
    "env.envs": Value(1),
}
_IMPALA = {
    "algorithm.unroll-length": Value(20),
    "algorithm.gamma": Value(0.99),
    "algorithm.lr": Value(6e-4),
    "algorithm.eps": Value(0.01),
    "algorithm.decay": Value(0.99),
    "algorithm.entropy-cost": Value(0.01),
    "algorithm.baseline-cost": Value(0.5),
    "algorithm.max-grad-norm": Value(40.0),
    "algorithm.reward-clip": Value("abs_one"),
    "algorithm.anneal-steps": Value(50_000_000, "200 million frames"),
    "system.batch-size": Value(32),
}

_UNREAL = {
    "env.envs": Value(1, "per worker"),
    "env.last-step": Value(True),
    "algorithm.unroll-length": Value(20),
    "algorithm.gamma": Value(0.99),
    "algorithm.pixel-control-gamma": Value(0.9),
    "algorithm.pixel-cells": Value(20, "20x20 cells of 4x4 pixels"),
    "algorithm.pixel-control-coef": Value(1e-3, "middle of the range 1e-4 to 1e-2 for Atari"),
    "algorithm.reward-prediction-coef": Value(1.0),
    "algorithm.value-replay-coef": Value(1.0),
    "algorithm.entropy-coef": Value(0.002, "middle of the range 5e-4 to 1e-2"),
    "algorithm.replay-length": Value(2000),
    "algorithm.clip-rewards": Value(True),
    "algorithm.net": Value("nips", "16 filters 8x8, 32 filters 4x4"),
    "algorithm.torso-features": Value(256),
    "algorithm.core": Value("lstm"),
    "algorithm.core-size": Value(256),
    "algorithm.max-grad-norm": Value(40.0, "of common implementations"),
    "system.rmsprop.lr": Value(7e-4, "middle of the range 1e-4 to 5e-3"),
    "system.rmsprop.decay": Value(0.99),
    "system.rmsprop.eps": Value(0.1),
}

_BEAST = {
    "algorithm.unroll-length": Value(80),
    "algorithm.gamma": Value(0.99),
    "algorithm.lr": Value(4.8e-4),
    "algorithm.eps": Value(0.01),
    "algorithm.decay": Value(0.99),
    "algorithm.optimizer": Value("rmsprop", "PyTorch's"),
    "algorithm.entropy-cost": Value(6e-4),
    "algorithm.baseline-cost": Value(0.5),
    "algorithm.max-grad-norm": Value(40.0),
    "algorithm.reward-clip": Value("abs_one"),
    "algorithm.anneal-steps": Value(30_000_000, "the example of the documentation"),
    "system.batch-size": Value(8),
    "env.last-step": Value(True),
    "env.envs": Value(1),
}
_NI = {
    "algorithm.gamma": Value(0.99),
    "algorithm.n-step": Value(1),
    "algorithm.sequence-length": Value(64),
    "algorithm.burn-in": Value(0, "", "a stored state needs one (R2D2); there sequences start from zero"),
    "algorithm.tau": Value(0.005),
    "algorithm.embedding": Value(64, "32 for the observation, 16 each for last action and reward"),
    "algorithm.core-size": Value(128),
    "algorithm.input-shortcut": Value(False, "actor and critics read the observation through a layer"),
    "algorithm.average-tau": Value(0.0, "the actor itself is evaluated"),
    "algorithm.actor-hidden": Value((256, 256)),
    "algorithm.critic-hidden": Value((256, 256)),
    "algorithm.actor-lr": Value(3e-4),
    "algorithm.critic-lr": Value(3e-4),
    "algorithm.random-steps": Value(10_000, "ten episodes of 1,000 steps"),
    "system.schedule.batch-size": Value(64, "sequences"),
    "system.schedule.updates-per-step": Value(1.0, "per env step", PER_STEP),
    "system.replay-capacity": Value(31_250, "sequences with 32 new steps each: a million steps"),
    "system.priority.alpha": Value(0.0, "uniform"),
    "env.last-step": Value(True),
    "env.envs": Value(1, "", "more envs fill the replay from different episodes"),
}
_DD_PPO = {
    "algorithm.rollout-length": Value(128),
    "algorithm.epochs": Value(2),
    "algorithm.minibatches": Value(2),
    "algorithm.gamma": Value(0.99),
    "algorithm.gae-lambda": Value(0.95),
    "algorithm.clip": Value(0.2),
    "algorithm.value-clip": Value(0.2),
    "algorithm.value-coef": Value(0.5),
    "algorithm.entropy-coef": Value(0.01),
    "algorithm.lr": Value(2.5e-4),
    "algorithm.eps": Value(1e-5),
    "algorithm.max-grad-norm": Value(0.2),
    "algorithm.normalize-advantages": Value("none"),
    "algorithm.core": Value("lstm"),
    "algorithm.core-size": Value(512),
    "algorithm.core-layers": Value(2),
    "system.preemption": Value(0.6),
    "env.envs": Value(4),
}
_DD_PPO_CITATION = "Wijmans et al. 2020, DD-PPO (arXiv 1911.00357), authors' code"

_R2D2: dict[str, Value] = {
    "algorithm.sequence-length": Value(120, "80 and a burn-in of 40"),
    "algorithm.burn-in": Value(40),
    "algorithm.gamma": Value(0.997),
    "algorithm.n-step": Value(5),
    "algorithm.eta": Value(0.9),
    "algorithm.target-update-period": Value(2500),
    "algorithm.lr": Value(1e-4),
    "algorithm.eps": Value(1e-3),
    "algorithm.rescale-values": Value(True),
    "algorithm.core-size": Value(512),
    "env.last-step": Value(True),
}

PAPERS: dict[str, Paper] = {
    "fasttd3": Paper(_FASTTD3_PAPER + ", MuJoCo Playground column", G1, CUDA, _FASTTD3),
    "fasttd3-paper": Paper(_FASTTD3_PAPER + ", MuJoCo Playground column", G1, CUDA, _FASTTD3),
    "fasttd3-simbav2": Paper(
        "FastTD3's code (`fasttd3_simbav2`), nets of Lee et al. 2025, SimbaV2 (arXiv 2502.15280)",
        G1,
        CUDA,
        _FASTTD3
        | {
            "algorithm.net": Value("simbav2_port"),
            "algorithm.actor-hidden": Value((256,), "one block"),
            "algorithm.critic-hidden": Value((512, 512), "two blocks"),
            "algorithm.lr-end": Value(0.1, "from 3e-4 to 3e-5"),
            "algorithm.weight-decay": Value(0.0),
            "system.schedule.batch-size": Value(8192),
        },
    ),
    "td3": Paper(
        "Fujimoto et al. 2018, TD3 (arXiv 1802.09477), authors' code", None, CUDA, _TD3 | _TD3_GENERAL
    ),
    "td3-paper": Paper("Fujimoto et al. 2018, TD3 (arXiv 1802.09477), authors' code", None, CUDA, _TD3),
    "ddpg": Paper("Lillicrap et al. 2016, DDPG (arXiv 1509.02971)", None, CUDA, _DDPG | _DDPG_GENERAL),
    "ddpg-paper": Paper("Lillicrap et al. 2016, DDPG (arXiv 1509.02971)", None, CUDA, _DDPG),
    "td3-gru": Paper(
        "Ni et al. 2022, recurrent TD3 (arXiv 2110.05038), authors' code",
        None,
        CUDA,
        _NI
        | {
            "algorithm.policy-noise": Value(0.2),
            "algorithm.noise-clip": Value(0.5),
            "algorithm.std-min": Value(0.1),
            "algorithm.std-max": Value(0.1),
            "algorithm.policy-delay": Value(1, "their code", "2 in TD3"),
        },
    ),
    "sac-gru": Paper(
        "Ni et al. 2022, recurrent SAC (arXiv 2110.05038), authors' code",
        None,
        CUDA,
        _NI
        | {
            "algorithm.alpha-init": Value(1.0, "where alpha is learned"),
            "algorithm.alpha-lr": Value(3e-4),
            "algorithm.target-entropy-ratio": Value(1.0),
            "algorithm.log-std-min": Value(-20.0, "clamped there", "squashed by a tanh into [-5, 2]"),
            "algorithm.log-std-max": Value(2.0),
            "algorithm.noise-scale-max": Value(1.0, "actions are sampled from the policy"),
        },
    ),
    "sac": Paper("Haarnoja et al. 2018, SAC (arXiv 1812.05905), table 1", None, CUDA, _SAC),
    "td3-pixels": Paper(
        "Yarats et al. 2021, DrQ-v2 (arXiv 2107.09645), table 2", "CarRacing-v3", CUDA, _DRQ | _DRQ_NOISE
    ),
    "sac-pixels": Paper(
        "Yarats et al. 2021, DrQ-v2 (arXiv 2107.09645), table 2, with SAC instead of its DDPG",
        "CarRacing-v3",
        CUDA,
        _DRQ,
    ),
    "fastsac": Paper("holosoma (arXiv 2512.01996), locomotion of G1 and T1", G1, CUDA, _FASTSAC),
    "flashsac": Paper(
        "Kim et al. 2026, FlashSAC (arXiv 2604.04539), authors' code, MuJoCo Playground", G1, CUDA, _FLASHSAC
    ),
    "ppo": Paper("Schulman et al. 2017, PPO (arXiv 1707.06347), table 5", "Pong-v5", CUDA, _PPO),
    "ppo-atari": Paper("Schulman et al. 2017, PPO (arXiv 1707.06347), table 5", "Pong-v5", "cpu", _PPO),
    "ppo-lstm": Paper(
        "Schulman et al. 2017 with the LSTM of OpenAI's code",
        "Pong-v5",
        "cpu",
        _PPO | {"algorithm.core": Value("lstm"), "algorithm.core-size": Value(128)},
    ),
    "ppo-massive": Paper("Rudin et al. 2022 (arXiv 2109.11978) and rsl_rl", None, CUDA, _PPO_MASSIVE),
    "a2c": Paper("Mnih et al. 2016 (arXiv 1602.01783); OpenAI's synchronous code", "Pong-v5", "cpu", _A2C),
    "a3c": Paper("Mnih et al. 2016 (arXiv 1602.01783), section 8", "Pong-v5", "cpu", _A3C),
    "unreal": Paper("Jaderberg et al. 2016, UNREAL (arXiv 1611.05397)", "Pong-v5", "cpu", _UNREAL),
    "impala": Paper("Espeholt et al. 2018 (arXiv 1802.01561), table G.1", "Pong-v5", "cpu", _IMPALA),
    "impala-lstm": Paper(
        "Espeholt et al. 2018 (arXiv 1802.01561), table G.1",
        "Pong-v5",
        "cpu",
        _IMPALA | {"algorithm.core": Value("lstm"), "algorithm.core-size": Value(256)},
    ),
    "impala-deep": Paper(
        "Espeholt et al. 2018 (arXiv 1802.01561), table G.1",
        "Pong-v5",
        "cpu",
        _IMPALA | {"algorithm.net": Value("impala", "15 convolutions")},
    ),
    "monobeast": Paper(
        "Küttler et al. 2019, TorchBeast (arXiv 1910.03552), defaults of MonoBeast",
        "Pong-v5",
        "cpu",
        _BEAST
        | {
            "algorithm.torso-features": Value(512),
            "system.actors": Value(4),
            "algorithm.core": Value("none"),
            "algorithm.core-layers": Value(2, "of its optional LSTM"),
            "algorithm.core-size": Value(
                519,
                "of its optional LSTM: 512 features, reward and 6 actions",
                "the layer of 512 units before the LSTM also reads the last reward and action",
            ),
        },
    ),
    "polybeast": Paper(
        "Küttler et al. 2019, TorchBeast (arXiv 1910.03552), defaults of PolyBeast",
        "Pong-v5",
        "cpu",
        _BEAST
        | {
            "algorithm.net": Value("impala", "deep residual network"),
            "algorithm.torso-features": Value(256),
            "system.runners": Value(4),
        },
    ),
    "seed-vtrace": Paper(
        "Espeholt et al. 2019, SEED RL (arXiv 1910.06591), V-trace agent of the authors' code",
        "Pong-v5",
        "cpu",
        {
            "algorithm.unroll-length": Value(100),
            "algorithm.gamma": Value(0.99),
            "algorithm.lr": Value(4.8e-4),
            "algorithm.eps": Value(3.125e-7),
            "algorithm.entropy-cost": Value(2.5e-4),
            "algorithm.reduction": Value("mean"),
            "algorithm.net": Value("impala", "deep residual network"),
            "algorithm.core": Value("lstm"),
            "algorithm.core-size": Value(256),
            "system.batch-size": Value(32),
            "env.last-step": Value(True),
        },
    ),
    "seed-sac": Paper(
        "Espeholt et al. 2019, SEED RL (arXiv 1910.06591), SAC agent of the authors' code",
        "CartpoleSwingup-v1",
        "cuda",
        {
            "algorithm.gamma": Value(0.99),
            "algorithm.n-step": Value(1),
            "algorithm.tau": Value(0.1, "polyak 0.9"),
            "algorithm.actor-lr": Value(3e-4),
            "algorithm.critic-lr": Value(3e-4),
            "system.batch-size": Value(256),
            "system.replay.capacity": Value(1_000_000),
            "system.replay.samples-per-insert": Value(4.0),
            "system.replay.priority.alpha": Value(0.0, "uniform"),
        },
    ),
    "r2d2": Paper(
        "Kapturowski et al. 2019, R2D2 (ICLR), section 2.3 and table 2; the rest as Ape-X",
        "Pong-v5",
        "cpu",
        _R2D2
        | {
            "algorithm.overlap": Value(80, "40 steps of two sequences of 80, and the burn-in"),
            "algorithm.max-grad-norm": Value(40.0, "as Ape-X"),
            "system.actors": Value(256, by_cores="cores - 2, at least 2, at most 256"),
            "system.learner.batch-size": Value(64),
            "system.replay-capacity": Value(100_000, "4 million observations, 40 new ones per sequence"),
            "system.weight-sync-steps": Value(400),
            "system.samples-per-insert": Value(0.0),
            "system.priority.alpha": Value(0.9),
            "system.priority.beta": Value(0.6),
        },
    ),
    "seed-r2d2": Paper(
        "Espeholt et al. 2019, SEED RL (arXiv 1910.06591), R2D2 agent of the authors' code on Atari",
        "Pong-v5",
        "cpu",
        _R2D2
        | {
            "algorithm.overlap": Value(40),
            "algorithm.max-grad-norm": Value(80.0),
            "system.batch-size": Value(64),
            "system.replay.capacity": Value(100_000),
            "system.replay.learning-starts": Value(5_000),
            "system.replay.samples-per-insert": Value(0.75),
            "system.replay.priority.alpha": Value(0.9),
            "system.replay.priority.beta": Value(0.6),
        },
    ),
    "dd-ppo": Paper(
        _DD_PPO_CITATION + "; on Atari games with PPO's settings, Schulman et al. 2017",
        "Pong-v5",
        "cpu",
        _PPO | {"env.envs": Value(8, "", "4 per worker: two workers have PPO's 8 together")},
    ),
    "dd-ppo-paper": Paper(_DD_PPO_CITATION, None, "cpu", _DD_PPO),
    "fasttd3-ddp": Paper(
        _FASTTD3_PAPER + ", MuJoCo Playground column; totals of all workers",
        G1,
        CUDA,
        {flag.replace("system.", "system.replays."): value for flag, value in _FASTTD3.items()},
    ),
    "appo": Paper(
        "Petrenko et al. 2020, Sample Factory (arXiv 2006.11751), preset for Atari of release 2",
        "Pong-v5",
        CUDA,
        {
            "algorithm.rollout-length": Value(128),
            "algorithm.epochs": Value(4),
            "algorithm.minibatches": Value(4),
            "algorithm.lr": Value(2.5e-4),
            "algorithm.eps": Value(1e-5),
            "algorithm.clip": Value(0.1),
            "algorithm.value-clip": Value(1.0),
            "algorithm.entropy-coef": Value(0.01),
            "algorithm.max-grad-norm": Value(0.5),
            "algorithm.max-policy-lag": Value(1000),
            "algorithm.kl-coef": Value(0.0),
            "algorithm.exploration-loss": Value("entropy"),
            "algorithm.desired-kl": Value(0.0, "constant learning rate"),
        },
    ),
    "appo-impact": Paper(
        "Luo et al. 2020, IMPACT (arXiv 1912.00167), with RLlib's values",
        "Pong-v5",
        "cpu",
        {
            "algorithm.rollout-length": Value(50),
            "algorithm.clip": Value(0.4),
            "algorithm.gae-lambda": Value(1.0),
            "algorithm.lr": Value(5e-4),
            "algorithm.entropy-coef": Value(0.01),
            "algorithm.max-grad-norm": Value(40.0),
            "algorithm.kl-coef": Value(1.0, "RLlib, with `use_kl_loss`"),
            "algorithm.kl-target": Value(0.01),
            "algorithm.target-update-period": Value(16, "2 x 4 batches x 2 uses"),
            "algorithm.epochs": Value(1),
            "system.circular-buffer-size": Value(4, "RLlib; N 16 for the paper's continuous control"),
            "system.replay-times": Value(2, "RLlib; K 20 to 32 for the paper's continuous control"),
        },
    ),
    "ddpg-sync": Paper("Li et al. 2023, PQL (arXiv 2307.12983), DDPG(n)", None, CUDA, _DDPG_N),
    "dqn": Paper(f"Mnih et al. 2015, DQN; {_DQN_ZOO}", "Pong-v5", "cpu", _DQN),
    "double-dqn": Paper(f"van Hasselt et al. 2016, tuned variant; {_DQN_ZOO}", "Pong-v5", "cpu", _DOUBLE),
    "dueling-dqn": Paper(f"Wang et al. 2016; {_DQN_ZOO}", "Pong-v5", "cpu", _DUELING),
    "per-dqn": Paper(f"Schaul et al. 2016; {_DQN_ZOO}", "Pong-v5", "cpu", _PER),
    "c51": Paper(f"Bellemare et al. 2017; {_DQN_ZOO}", "Pong-v5", "cpu", _C51),
    "rainbow": Paper(f"Hessel et al. 2018, table 1; {_DQN_ZOO}", "Pong-v5", "cpu", _RAINBOW),
    "apex-dqn": Paper(
        "Horgan et al. 2018, Ape-X (arXiv 1803.00933), section 4.1 and appendix C",
        "Pong-v5",
        "cpu",
        _APEX_DQN,
    ),
    "apex-dpg": Paper(
        "Horgan et al. 2018, Ape-X (arXiv 1803.00933), section 4.2 and appendix D", None, CUDA, _APEX_DPG
    ),
    "gorila-dqn": Paper("Nair et al. 2015, Gorila (arXiv 1507.04296)", "Pong-v5", "cpu", _GORILA),
    "pql": Paper(
        "Li et al. 2023, PQL (arXiv 2307.12983)",
        None,
        CUDA,
        _PQL | _PQL_NOISE | {"algorithm.atoms": Value(0, "scalar critics")},
    ),
    "pql-d": Paper(
        "Li et al. 2023, PQL-D (arXiv 2307.12983)",
        None,
        CUDA,
        _PQL
        | _PQL_NOISE
        | {
            "algorithm.atoms": Value(51),
            "algorithm.v-min": Value(-10.0),
            "algorithm.v-max": Value(10.0),
            "algorithm.categorical-min": Value("elementwise_min"),
        },
    ),
    "pql-sac": Paper(
        "Li et al. 2023, SAC(n) of the PQL paper (arXiv 2307.12983)",
        None,
        CUDA,
        _PQL
        | {
            "algorithm.alpha-lr": Value(5e-3),
            "algorithm.log-std-min": Value(-5.0),
            "algorithm.log-std-max": Value(5.0),
        },
    ),
}

NO_PAPER = {  # recipe: where its values come from
    "pql-flashsac": "the values of `flashsac`, with critics and policy on hosts of their own",
    "fasttd3-cpu": "FastTD3 with values found by measurement on two cores",
    "dqn-cpu": "DQN, Double DQN, dueling nets, three-step returns and prioritized replay, with values found "
    "by measurement on two cores",
}
