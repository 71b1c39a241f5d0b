"""Names of all metrics that a run writes, with units and meanings; the documentation prints this table."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class MetricName:
    """A metric by name; a part in angle brackets, such as `<node>`, stands for any name."""

    pattern: str
    unit: str
    meaning: str
    systems: tuple[str, ...] = ()  # that write it; empty: all
    condition: str = ""  # when it is written, if not in every run of these systems

    def matches(self, name: str) -> bool:
        """Whether this entry describes the metric `name`."""
        literals = re.split(r"<\w+>", self.pattern)
        return re.fullmatch(r"[\w/.-]+".join(map(re.escape, literals)), name) is not None


_SEVERAL_HOSTS = "engines processes and ray"
_MANY = "more than 8 nodes of one kind"
_PQL = ("pql",)
_SERVERS = ("gorila", "a3c")
_ACTORS = ("apex", "pql", "impala")
_LAGGING = (*_ACTORS, "seed")
_QUEUES = ("impala", "seed")
_SEQUENCES = "SEED: algorithms that learn from sequences or transitions"
_APEX_SEQUENCES = "Ape-X: algorithms that learn from sequences"
_SAMPLED = ("sync", "apex", "gorila", "seed")
_RATE_LIMITED = ("apex", "seed")
_STAMPED = ("apex", *_QUEUES)
_REPLAYS = ("sync", "apex", "gorila", "pql", *_QUEUES)

GROUPS: dict[str, tuple[MetricName, ...]] = {
    "Every line": (
        MetricName("wall_s", "s", "Training time; evaluation and checkpoints are not counted."),
        MetricName("env_steps", "steps", "Env steps of all envs since the start of the run."),
        MetricName("updates", "updates", "Updates of the learner since the start; PQL: of the critics."),
    ),
    "Evaluation": (
        MetricName("eval/return_mean", "return", "Mean return without exploration."),
        MetricName("eval/return_std", "return", "Standard deviation over the episodes."),
        MetricName("eval/length", "steps", "Mean length of the episodes."),
        MetricName("eval/episodes", "episodes", "Number of episodes."),
        MetricName("eval/unfinished", "episodes", "Episodes that reached the step limit or an env fault."),
        MetricName(
            "eval/human_normalized",
            "%",
            "Return in percent: 0 random play, 100 a human player.",
            condition="the 57 Atari games with published scores",
        ),
    ),
    "Training": (
        MetricName(
            "train/return",
            "return",
            "Mean return of training episodes that ended; they explore.",
            condition="lines in which an episode ended",
        ),
        MetricName("loss/critic", "", "Loss of the critics or of the Q network."),
        MetricName(
            "loss/policy",
            "",
            "Loss of the policy.",
            condition="TD3, SAC, FlashSAC, PPO, IMPALA, APPO, UNREAL",
        ),
        MetricName(
            "loss/pixel_control",
            "",
            "Loss of pixel control per step, summed over cells; 0 without images.",
            condition="UNREAL",
        ),
        MetricName(
            "loss/reward_prediction", "nat", "Loss of reward prediction per step.", condition="UNREAL"
        ),
        MetricName("loss/value_replay", "", "Loss of value replay per step.", condition="UNREAL"),
        MetricName("value/mean", "return", "Mean of the targets that the critics regress on."),
        MetricName(
            "policy/saturation",
            "",
            "Share of policy outputs beyond 0.95 of the action range; above 0.9 a warning follows.",
            condition="TD3, SAC, FlashSAC",
        ),
        MetricName(
            "<module>/compiled",
            "0 or 1",
            "Whether losses are compiled now; `<module>` is policy, for PQL's other learner critic.",
            condition="algorithms with --compile auto",
        ),
        MetricName("policy/alpha", "return/nat", "SAC's temperature.", condition="SAC, FlashSAC"),
        MetricName(
            "policy/entropy",
            "nat",
            "Entropy of the policy.",
            condition="SAC, FlashSAC, PPO, IMPALA, APPO, UNREAL",
        ),
        MetricName(
            "policy/kl",
            "nat",
            "KL divergence from the policy before the update; APPO: from the target network, or from the "
            "policy that acted if that is part of the loss.",
            condition="PPO, APPO",
        ),
        MetricName(
            "policy/clip_fraction", "", "Share of rows whose ratio is clipped.", condition="PPO, IMPALA, APPO"
        ),
        MetricName(
            "policy/log_ratio",
            "nat",
            "Mean |log pi / mu| of the current policy and the one that acted.",
            condition="IMPALA, APPO",
        ),
        MetricName("policy/stale_rows", "rows", "Rows of a batch beyond max_policy_lag.", condition="APPO"),
        MetricName(
            "train/preempted_steps",
            "steps",
            "Vector steps that a rollout lacks because other workers were finished; mean per rollout.",
            condition="DD-PPO",
        ),
        MetricName("policy/gradient_steps", "steps", "Gradient steps of one rollout.", condition="PPO"),
        MetricName(
            "policy/learning_rate",
            "",
            "Learning rate of the last gradient step.",
            condition="PPO; APPO with `--desired-kl`",
        ),
        MetricName("policy/kl_coef", "", "Weight of the KL divergence.", condition="APPO with `--kl-target`"),
        MetricName(
            "value/explained_variance",
            "",
            "1 - Var(target - value) / Var(target): 1 is a perfect critic, 0 a constant one.",
            condition="PPO",
        ),
    ),
    "Counts and rates": (
        MetricName("count/episodes", "episodes", "Training episodes that ended."),
        MetricName("count/env_faults", "rows", "Rows with NaN or infinite values; they are not stored."),
        MetricName("count/skipped_updates", "updates", "Updates skipped for a non-finite loss or gradient."),
        MetricName("count/restarts", "restarts", "Hosts that were restarted."),
        MetricName("rate/env_steps_per_s", "steps/s", "Env steps per second of training, over recent lines."),
        MetricName("rate/updates_per_s", "updates/s", "Updates per second of training, over recent lines."),
        MetricName("time/evaluation_s", "s", "Time spent on evaluation and checkpoints."),
        MetricName("time/act_s", "s", "Time in which policies choose actions, summed over roles."),
        MetricName("time/env_s", "s", "Time in which roles step envs or wait for them, summed over roles."),
        MetricName("time/learn_s", "s", "Time of sampling batches and of updates, summed over roles."),
        MetricName("process/cpu", "cores", "CPU use of the process that writes this file."),
        MetricName(
            "process/memory_bytes",
            "bytes",
            "Its resident memory without pages of files; engine inline: of the whole run.",
        ),
    ),
    "Replay": (
        MetricName(
            "<replay>/rows",
            "rows",
            "Rows stored; `<replay>` is the name of a replay, or queue: env streams that wait.",
            _REPLAYS,
        ),
        MetricName("<replay>/capacity", "rows", "Rows that fit.", _REPLAYS),
        MetricName(
            "queue/bytes",
            "bytes",
            "Size of the trajectories that wait for the learner.",
            _QUEUES,
            "algorithms that learn from trajectories",
        ),
        MetricName(
            "<replay>/sample_age",
            "rows",
            "Rows added since the rows of the last batches were added, mean; sequences: env steps.",
            _SAMPLED,
            _SEQUENCES,
        ),
        MetricName(
            "replay/sample_age_s",
            "s",
            "The same in seconds, at the present rate of env steps.",
            _SAMPLED,
            _SEQUENCES,
        ),
        MetricName(
            "<replay>/samples_per_insert", "", "Rows sampled per row inserted.", _RATE_LIMITED, _SEQUENCES
        ),
        MetricName(
            "<replay>/samples_per_insert_target",
            "",
            "The ratio that the limiter keeps; 0: no limit.",
            _RATE_LIMITED,
            _SEQUENCES,
        ),
    ),
    "Actors and weights": (
        MetricName("actor/explore", "", "Mean exploration value of an actor's envs.", _ACTORS),
        MetricName(
            "policy/lag",
            "updates",
            "Updates by which an actor's weights were behind when it loaded newer ones.",
            _LAGGING,
        ),
        MetricName("policy/version", "updates", "Updates at the last publication of the policy.", _LAGGING),
        MetricName(
            "policy/data_lag",
            "updates",
            "Updates by which the policies that collected a batch were behind, mean over its steps.",
            _STAMPED,
            _APEX_SEQUENCES,
        ),
        MetricName("policy/data_lag_max", "updates", "The largest of these.", _STAMPED, _APEX_SEQUENCES),
        MetricName("critic/version", "updates", "Updates at the last publication of the critics.", _PQL),
        MetricName(
            "critic/policy_lag",
            "updates",
            "Policy updates by which the critic learner's copy was behind.",
            _PQL,
        ),
        MetricName(
            "policy/critic_lag",
            "updates",
            "Critic updates by which the actor learner's copy was behind.",
            _PQL,
            condition="lines in which newer critics arrived",
        ),
        MetricName(
            "critic/policy_lag_max", "updates", "The largest value of critic/policy_lag so far.", _PQL
        ),
        MetricName(
            "policy/critic_lag_max", "updates", "The largest value of policy/critic_lag so far.", _PQL
        ),
    ),
    "Ratios of PQL": (
        MetricName(
            "critic/updates", "updates", "Updates of the critic learner, counted by its buffer.", _PQL
        ),
        MetricName("critic/steps", "vector steps", "Vector steps that its buffer received.", _PQL),
        MetricName(
            "critic/updates_per_step_target",
            "",
            "Critic updates per vector step that the limiter keeps.",
            _PQL,
        ),
        MetricName("policy/updates", "updates", "Updates of the actor learner, counted by its buffer.", _PQL),
        MetricName("policy/steps", "vector steps", "Vector steps that its buffer received.", _PQL),
        MetricName(
            "policy/updates_per_step_target",
            "",
            "Policy updates per vector step that the limiter keeps.",
            _PQL,
        ),
        MetricName("ratio/beta_av", "", "Critic updates per vector step.", _PQL),
        MetricName("ratio/beta_av_target", "", "Its target.", _PQL),
        MetricName("ratio/beta_pv", "", "Critic updates per policy update.", _PQL),
        MetricName("ratio/beta_pv_target", "", "Its target.", _PQL),
    ),
    "Inference servers of SEED RL": (
        MetricName(
            "<server>/batch_rows", "rows", "Rows for which the policy acted in one call, mean.", ("seed",)
        ),
        MetricName("<server>/version", "updates", "Version of the weights that act.", ("seed",)),
        MetricName(
            "<server>/dropped_steps", "steps", "Steps of unrolls dropped with restarted runners.", ("seed",)
        ),
    ),
    "Parameter servers of Gorila and A3C": (
        MetricName("<server>/applied", "gradients", "Gradients applied.", _SERVERS),
        MetricName(
            "<server>/dropped_stale", "gradients", "Gradients dropped because they were too old.", _SERVERS
        ),
        MetricName(
            "<server>/dropped_outlier",
            "gradients",
            "Gradients dropped because their loss was an outlier.",
            _SERVERS,
        ),
        MetricName("<server>/delay", "updates", "Mean age of applied gradients.", _SERVERS),
    ),
    "Roles": (
        MetricName(
            "role/<node>/busy", "share", "Share of time in which the role works.", condition=_SEVERAL_HOSTS
        ),
        MetricName(
            "role/<node>/waiting",
            "share",
            "Share of time in which it waits for replies.",
            condition=_SEVERAL_HOSTS,
        ),
        MetricName(
            "role/<node>/blocked",
            "share",
            "Share of time in which a full queue blocks it.",
            condition=_SEVERAL_HOSTS,
        ),
        MetricName("role/<node>/idle", "share", "The rest of the time.", condition=_SEVERAL_HOSTS),
        MetricName(
            "role/<node>/steps_per_s", "steps/s", "Steps of the role per second.", condition=_SEVERAL_HOSTS
        ),
        MetricName(
            "role/<node>/queue", "messages", "Messages that wait for the role.", condition=_SEVERAL_HOSTS
        ),
        MetricName("role/<node>/queue_bytes", "bytes", "Their size.", condition=_SEVERAL_HOSTS),
        MetricName("role/<node>/cpu", "cores", "CPU use of the role's process.", condition=_SEVERAL_HOSTS),
        MetricName(
            "role/<node>/memory_bytes",
            "bytes",
            "Resident memory of the role's process without pages of files.",
            condition=_SEVERAL_HOSTS,
        ),
        MetricName("bottleneck", "text", "The role or part of the loop that limits the speed, and why."),
        MetricName(
            "roles/<kind>/<metric>",
            "",
            "Mean over the roles of one kind; also _min and _max.",
            condition=_MANY,
        ),
        MetricName(
            "<kind>s/<metric>", "", "Mean over replays or servers; also _min and _max.", condition=_MANY
        ),
    ),
}

METRICS: tuple[MetricName, ...] = tuple(metric for group in GROUPS.values() for metric in group)


def describe(name: str) -> MetricName | None:
    """Return the entry of a metric; None if it is not in the table."""
    return next((metric for metric in METRICS if metric.matches(name)), None)
