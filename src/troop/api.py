"""Troop from Python: train, resume, evaluate, load_policy."""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from troop import engines
from troop.core.config import suggest
from troop.core.devices import check_device
from troop.core.engine import Until
from troop.core.env import OBS, Continuous, EnvConfig
from troop.core.errors import BadInput
from troop.core.program import derive_seed
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
) -> Experiment:
    """The experiment a recipe makes of an env, to look at or to change with dataclasses.replace."""
    check_device(device)
    if engine is not None and engine not in ENGINES:
        near = suggest(engine, ENGINES, 1)
        hint = f"; did you mean {near[0]!r}?" if near else "; it must be inline, processes or ray."
        raise BadInput(f"--engine is {engine!r}{hint}")
    made = find(recipe).make(RecipeArgs(env, envs, device))
    if engine is None or isinstance(made.engine, ENGINES[engine]):
        return made
    return dataclasses.replace(made, engine=ENGINES[engine]())


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
    """Train a recipe and return its summary; fields of configs as `algorithm__gamma=0.97`.

    A run ends at the first of `minutes` of training, `env_steps`, or an evaluation of at least `target`.
    """
    made = experiment(recipe, env, envs, device, engine)
    for name, value in fields.items():
        made = _with(made, name.split("__"), value)
    made = dataclasses.replace(made, seed=seed, until=until(made.until, minutes, env_steps, target))
    path = Path(run) if run is not None else default_path(recipe, made.env.id, seed)
    made.run(path, quiet)
    return Summary.read(path)


def until(default: Until, minutes: float | None, env_steps: int | None, target: float | None) -> Until:
    """What was asked for; the recipe's own end only if no end was given."""
    if minutes is None and env_steps is None:
        return dataclasses.replace(default, target=target)
    return Until(env_steps, minutes, target)


def extend_until(old: Until, minutes: float | None, env_steps: int | None, target: float | None) -> Until:
    """The end of a resumed run: new limits in place of the old ones, the target kept unless given anew."""
    limits = (old.env_steps, old.minutes) if minutes is None and env_steps is None else (env_steps, minutes)
    return Until(*limits, old.target if target is None else target)


def _with(config: Any, names: list[str], value: Any) -> Any:  # noqa: ANN401 - any config
    known = {field.name for field in dataclasses.fields(config)}
    if names[0] not in known:
        near = suggest(names[0], known, 1)
        raise BadInput(f"Unknown field {names[0]!r}" + (f"; did you mean {near[0]!r}?" if near else "."))
    inner = value if len(names) == 1 else _with(getattr(config, names[0]), names[1:], value)
    return dataclasses.replace(config, **{names[0]: inner})


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
    """Go on with a run from its newest valid checkpoint; ends are totals, counted from the run's start."""
    with RunDirectory.open(run, lock=True) as directory:
        made = Experiment.from_dict(directory.read_config())
        if envs is not None:
            made = dataclasses.replace(made, env=made.env.with_envs(envs))
        if device is not None:
            made = dataclasses.replace(made, device=device)
        made = dataclasses.replace(made, until=extend_until(made.until, minutes, env_steps, target))
        made.resume(directory, quiet)
        return Summary.read(directory.path)


class Policy:
    """A trained policy, with the env in which it is judged; call it on observations, NumPy or torch."""

    def __init__(self, module: torch.nn.Module, env: EnvConfig) -> None:
        self.module, self.env, self.spec = module.eval(), env, env.spec
        action = self.spec.action
        self._bounds = None
        if isinstance(action, Continuous) and action.low is not None and action.high is not None:
            self._bounds = torch.tensor(action.low), torch.tensor(action.high)

    def act(self, obs: dict[str, Tensor]) -> Tensor:
        """Deterministic actions in [-1, 1] for rows of named observations, as envs of ours take them."""
        rows = len(obs[OBS])
        action: Tensor = self.module.act(obs, None, torch.zeros(rows)).action  # type: ignore[operator]
        return action

    def __call__(self, obs: Any, scaled: bool = True) -> Any:  # noqa: ANN401 - as it came
        """Deterministic action in the env's own units, or in [-1, 1] with scaled=False; typed as `obs`."""
        shape = self.spec.obs[OBS].shape
        x = torch.as_tensor(np.asarray(obs) if not isinstance(obs, Tensor) else obs)
        if tuple(x.shape[-len(shape) :]) != shape:
            raise BadInput(
                f"The policy of {self.spec.id} takes observations {shape}; this one is {tuple(x.shape)}."
            )
        single = x.dim() == len(shape)
        rows = x.unsqueeze(0) if single else x
        device = next(self.module.parameters()).device
        acted = self.module.act(  # type: ignore[operator]
            {OBS: rows.to(device, self.spec.obs[OBS].dtype)}, None, torch.zeros(len(rows), device=device)
        )
        action = acted.action.cpu()
        if isinstance(self.spec.action, Continuous):
            action = action.clamp(-1, 1)
            if scaled and self._bounds is not None:
                low, high = self._bounds
                action = low + (action + 1) / 2 * (high - low)
        action = action[0] if single else action
        return action if isinstance(obs, Tensor) else action.numpy()


def load_policy(run: str | Path, device: str = "cpu") -> Policy:
    """The policy of the newest valid checkpoint of a run, on any device."""
    check_device(device)
    directory = RunDirectory.open(run)
    made = Experiment.from_dict(directory.read_config())
    loaded = load_part(directory.checkpoints, "policy")
    if loaded is None:
        raise BadInput(f"{directory.path} has no checkpoint yet.")
    module = made.algorithm.policy(made.env.spec)
    try:
        module.load_state_dict(loaded.state["policy"])
    except (RuntimeError, KeyError) as error:
        raise BadInput(f"The policy of {directory.path} does not fit its config.json.") from error
    return Policy(module.to(device), made.env.for_evaluation())


def evaluate(run: str | Path, episodes: int = 16, seed: int = 0, device: str = "cpu") -> dict[str, float]:
    """Mean return of the newest policy over the first episodes of `episodes` envs, without exploration."""
    policy = load_policy(run, device)
    longest = policy.spec.episode_limit
    make = partial(policy.env.with_envs(episodes).make, device=device)
    chosen = derive_seed(seed, "evaluate")
    env = make(chosen)
    try:
        returns, lengths, finished = first_episodes(env, policy.module, chosen, (longest or 10_000) + 1)  # type: ignore[arg-type]
    finally:
        env.close()
    found = {
        "return_mean": float(returns.mean()),
        "return_std": float(returns.std(correction=0)),
        "return_min": float(returns.min()),
        "return_max": float(returns.max()),
        "length_mean": float(lengths.mean()),
        "episodes": len(returns),
        "unfinished": int((~finished).sum()),
    }
    normalized = human_normalized(policy.env.id, found["return_mean"])
    return found if normalized is None else found | {"human_normalized": normalized}


__all__ = ["Experiment", "Policy", "evaluate", "experiment", "load_policy", "resume", "train"]
