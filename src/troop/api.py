"""The Python interface: train, resume, evaluate, load_policy."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from troop import engines
from troop.core.algorithm import Policy
from troop.core.config import suggest
from troop.core.devices import check_device
from troop.core.engine import Until
from troop.core.env import OBS, Continuous, EnvConfig, Obs
from troop.core.errors import BadInput
from troop.core.program import derive_seed
from troop.core.system import Evaluation
from troop.envs.atari_scores import human_normalized
from troop.experiment import Experiment
from troop.recipes import RecipeArgs, find
from troop.roles.evaluator import first_episodes
from troop.runs.checkpoint import load_part
from troop.runs.directory import RunDirectory, default_path
from troop.runs.summary import Summary

ENGINES = {"inline": engines.Inline, "processes": engines.Processes, "ray": engines.Ray}


def experiment(
    recipe: str,
    env: str | None = None,
    envs: int | None = None,
    device: str = "cpu",
    engine: str | None = None,
) -> Experiment[Any]:
    """Return the experiment that a recipe builds for an env, to inspect or change with dataclasses.replace.

    Arguments that are None take the recipe's defaults.
    """
    check_device(device)
    if engine is not None and engine not in ENGINES:
        similar = suggest(engine, ENGINES, 1)
        hint = f"; did you mean {similar[0]!r}?" if similar else "; it must be inline, processes or ray."
        raise BadInput(f"--engine is {engine!r}{hint}")
    default = find(recipe).make(RecipeArgs(env, envs, device))
    if engine is None or isinstance(default.engine, ENGINES[engine]):
        return default
    return dataclasses.replace(default, engine=ENGINES[engine]())


def train(
    recipe: str,
    env: str | None = None,
    *,
    envs: int | None = None,
    device: str = "cpu",
    engine: str | None = None,
    seed: int = 1,
    minutes: float | None = None,
    env_steps: int | None = None,
    target: float | None = None,
    run: str | Path | None = None,
    quiet: bool = False,
    **fields: Any,  # noqa: ANN401
) -> Summary:
    """Train a recipe and return the summary of the run; `fields` change configs: `algorithm__gamma=0.97`.

    The run ends after `minutes` of training, after `env_steps`, or when an evaluation returns at least
    `target`, whichever comes first. `run` is its directory; None for a new one in `runs/`.
    """
    config = experiment(recipe, env, envs, device, engine)
    for name, value in fields.items():
        config = _replace_field(config, name.split("__"), value)
    config = dataclasses.replace(config, seed=seed, until=until(config.until, minutes, env_steps, target))
    path = Path(run) if run is not None else default_path(recipe, config.env.id, seed)
    config.run(path, quiet)
    return Summary.read(path)


def until(default: Until, minutes: float | None, env_steps: int | None, target: float | None) -> Until:
    """Return the end of a new run: the recipe's `default` limits only if neither limit is given."""
    if minutes is None and env_steps is None:
        return dataclasses.replace(default, target=target)
    return Until(env_steps, minutes, target)


def extend_until(old: Until, minutes: float | None, env_steps: int | None, target: float | None) -> Until:
    """Return the end of a resumed run: new limits replace the old ones, the old target stays if not given."""
    limits = (old.env_steps, old.minutes) if minutes is None and env_steps is None else (env_steps, minutes)
    return Until(*limits, old.target if target is None else target)


def _replace_field(config: Any, path: list[str], value: Any) -> Any:  # noqa: ANN401 - any config
    name, *rest = path
    names = {field.name for field in dataclasses.fields(config)}
    if name not in names:
        similar = suggest(name, names, 1)
        raise BadInput(f"Unknown field {name!r}" + (f"; did you mean {similar[0]!r}?" if similar else "."))
    if rest:
        value = _replace_field(getattr(config, name), rest, value)
    return dataclasses.replace(config, **{name: value})


def resume(
    run: str | Path,
    *,
    envs: int | None = None,
    minutes: float | None = None,
    env_steps: int | None = None,
    target: float | None = None,
    device: str | None = None,
    quiet: bool = False,
) -> Summary:
    """Continue a run from its newest valid checkpoint and return its summary.

    `minutes` and `env_steps` are totals, counted from the start of the run.
    """
    with RunDirectory.open(run, lock=True) as directory:
        config = Experiment.from_dict(directory.read_config())
        if envs is not None:
            config = dataclasses.replace(config, env=config.env.with_envs(envs))
        if device is not None:
            config = dataclasses.replace(config, device=device)
        config = dataclasses.replace(config, until=extend_until(config.until, minutes, env_steps, target))
        config.resume(directory, quiet)
        return Summary.read(directory.path)


class TrainedPolicy:
    """A trained policy and the env in which it is evaluated; call it with observations to get actions."""

    def __init__(self, module: Policy, env: EnvConfig, evaluation: Evaluation | None = None) -> None:
        self.module, self.env, self.spec = module, env, env.spec
        self.evaluation = evaluation or Evaluation()
        module.eval()
        action = self.spec.action
        self._bounds = None
        if isinstance(action, Continuous) and action.low is not None and action.high is not None:
            self._bounds = torch.tensor(action.low), torch.tensor(action.high)

    def act(self, obs: Obs) -> Tensor:
        """Return deterministic actions for named observations [rows, ...], as `VectorEnv.step` takes them."""
        return self.module.act(obs, None, torch.zeros(len(obs[OBS]))).action

    def __call__(self, obs: Any, scaled: bool = True) -> Any:  # noqa: ANN401 - NumPy or torch, as `obs`
        """Return the deterministic action for one observation, or actions for a batch of them.

        Continuous actions are in the units of the env, or in [-1, 1] with scaled=False. The result is a torch
        tensor if `obs` is one, else a NumPy array.
        """
        field = self.spec.obs[OBS]
        shape = field.shape
        x = torch.as_tensor(np.asarray(obs) if not isinstance(obs, Tensor) else obs)
        if tuple(x.shape[-len(shape) :]) != shape:
            raise BadInput(
                f"The policy of {self.spec.id} takes observations of shape {shape}, not {tuple(x.shape)}."
            )
        single = x.dim() == len(shape)
        rows = x.unsqueeze(0) if single else x
        device = next(self.module.parameters()).device
        explore = torch.zeros(len(rows), device=device)
        action = self.module.act({OBS: rows.to(device, field.dtype)}, None, explore).action.cpu()
        if isinstance(self.spec.action, Continuous):
            action = action.clamp(-1, 1)
            if scaled and self._bounds is not None:
                low, high = self._bounds
                action = low + (action + 1) / 2 * (high - low)
        action = action[0] if single else action
        return action if isinstance(obs, Tensor) else action.numpy()


def load_policy(run: str | Path, device: str = "cpu") -> TrainedPolicy:
    """Return the policy of the newest valid checkpoint of a run, on `device`."""
    check_device(device)
    directory = RunDirectory.open(run)
    config = Experiment.from_dict(directory.read_config())
    loaded = load_part(directory.checkpoints, "policy")
    if loaded is None:
        raise BadInput(f"{directory.path} has no checkpoint yet.")
    module = config.algorithm.policy(config.env.spec)
    try:
        module.load_state_dict(loaded.state["policy"])
    except (RuntimeError, KeyError) as error:
        raise BadInput(f"The policy of {directory.path} does not fit its config.json.") from error
    return TrainedPolicy(module.to(device), config.env.for_evaluation(), config.evaluation)


def evaluate(
    run: str | Path, episodes: int = 16, seed: int = 0, device: str = "cpu", explore: float | None = None
) -> dict[str, float]:
    """Evaluate the newest policy of a run as training does, on the first episode of `episodes` envs.

    `explore` is the exploration value of the policy; None for that of the run's own evaluations (by default
    0, no exploration). Returns the mean, standard deviation, minimum and maximum of the episode returns, the
    mean length in steps, the numbers of episodes and of unfinished ones, and on Atari the human-normalized
    score in percent.
    """
    policy = load_policy(run, device)
    max_steps = policy.evaluation.step_limit(policy.spec)
    explore = policy.evaluation.explore if explore is None else explore
    env_seed = derive_seed(seed, "evaluate")
    env = policy.env.with_envs(episodes).make(env_seed, device=device)
    try:
        returns, lengths, finished = first_episodes(env, policy.module, env_seed, max_steps, explore)
    finally:
        env.close()
    result = {
        "return_mean": float(returns.mean()),
        "return_std": float(returns.std(correction=0)),
        "return_min": float(returns.min()),
        "return_max": float(returns.max()),
        "length_mean": float(lengths.mean()),
        "episodes": len(returns),
        "unfinished": int((~finished).sum()),
    }
    normalized = human_normalized(policy.env.id, result["return_mean"])
    return result if normalized is None else result | {"human_normalized": normalized}


__all__ = ["Experiment", "TrainedPolicy", "evaluate", "experiment", "load_policy", "resume", "train"]
