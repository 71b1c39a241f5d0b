"""The Python interface: make_experiment, train, resume, evaluate, load_policy, export_policy."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from troop import engines, systems
from troop.core.algorithm import AlgorithmConfig
from troop.core.config import check, suggest
from troop.core.config_json import code_names, encode, setting_values
from troop.core.devices import check_device
from troop.core.engine import Until
from troop.core.errors import BadInput, SetupProblem, UnsupportedEnv
from troop.core.program import derive_seed
from troop.envs.atari_scores import human_normalized
from troop.envs.registry import Env, resolve
from troop.experiment import CONFIG_CLASSES, Experiment
from troop.recipes import Recipe, RecipeArgs, find
from troop.recipes.user_recipe import find_algorithm, with_network
from troop.roles.evaluator import OnStep, first_episodes
from troop.runs.checkpoint import load_part
from troop.runs.directory import RunDirectory, default_path
from troop.runs.summary import Summary
from troop.trained_policy import TrainedPolicy

ENGINES = {"inline": engines.Inline, "processes": engines.Processes, "ray": engines.Ray}


def make_experiment(
    recipe: str | Recipe,
    env: Env | None = None,
    envs: int | None = None,
    device: str = "cpu",
    engine: str | None = None,
    algorithm: str | AlgorithmConfig[Any] | None = None,
    network: str | Callable[..., nn.Module] | None = None,
    **fields: Any,  # noqa: ANN401
) -> Experiment[Any]:
    """Return the experiment that a recipe builds for an env, to inspect, change or run.

    `recipe` is a name of `troop recipes`, `module:RECIPE` or a Recipe; `env` an id, a subclass of
    gymnasium.Env, a function that returns an env, or the config of a backend. `algorithm` replaces that of
    the recipe, `network` builds its networks: both are `module:name` or the object itself. `fields` change
    configs: `algorithm__gamma=0.97`, `env__settings=(("limit", 50),)`. Arguments that are None take the
    recipe's defaults. `Experiment.run` trains it.
    """
    check_device(device)
    if engine is not None and engine not in ENGINES:
        similar = suggest(engine, ENGINES, 1)
        hint = f"; did you mean {similar[0]!r}?" if similar else "; it must be inline, processes or ray."
        raise BadInput(f"--engine is {engine!r}{hint}")
    if env is not None and not isinstance(env, str):
        config = resolve(env)
        env, envs = config, envs or (config.envs if config is env else None)
    found = find(recipe) if isinstance(recipe, str) else recipe
    experiment = found.build(RecipeArgs(env, envs, device))
    if engine is not None and not isinstance(experiment.engine, ENGINES[engine]):
        experiment = dataclasses.replace(experiment, engine=ENGINES[engine]())
    if algorithm is not None:
        experiment = dataclasses.replace(experiment, algorithm=find_algorithm(algorithm))
    if network is not None:
        experiment = dataclasses.replace(experiment, algorithm=with_network(experiment.algorithm, network))
    for name, value in fields.items():
        experiment = _replace_field(experiment, name.split("__"), value)
    return experiment


def train(
    recipe: str | Recipe,
    env: Env | None = None,
    *,
    envs: int | None = None,
    device: str = "cpu",
    engine: str | None = None,
    algorithm: str | AlgorithmConfig[Any] | None = None,
    network: str | Callable[..., nn.Module] | None = None,
    seed: int = 1,
    minutes: float | None = None,
    env_steps: int | None = None,
    target: float | None = None,
    run: str | Path | None = None,
    quiet: bool = False,
    **fields: Any,  # noqa: ANN401
) -> Summary:
    """Train a recipe and return the summary of the run; `make_experiment` explains the first arguments.

    The run ends after `minutes` of training, after `env_steps`, or when an evaluation returns at least
    `target`, whichever comes first. `run` is its directory; None for a new one in `runs/`.
    """
    config = make_experiment(recipe, env, envs, device, engine, algorithm, network, **fields)
    config = dataclasses.replace(config, seed=seed, until=until(config.until, minutes, env_steps, target))
    path = Path(run) if run is not None else default_path(config.recipe or "run", config.env.id, seed)
    result = config.run(path, quiet)
    return Summary.read(result.directory or path)


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
    env: Env | None = None,
    workers: int | None = None,
    allow: Sequence[str] = (),
    quiet: bool = False,
) -> Summary:
    """Continue a run from its newest valid checkpoint and return its summary.

    `minutes` and `env_steps` are totals, counted from the start of the run; `workers` is another number of
    data-parallel workers. `env` and `allow` are explained in `load_policy`.
    """
    with RunDirectory.open(run, lock=True) as directory:
        config = stored_experiment(directory, allow, env)
        check_resources_allowed(config, allow)
        if envs is not None:
            config = dataclasses.replace(config, env=config.env.with_envs(envs))
        if workers is not None:
            config = with_workers(config, workers)
        if device is not None:
            config = dataclasses.replace(config, device=device)
        config = dataclasses.replace(config, until=extend_until(config.until, minutes, env_steps, target))
        config.resume(directory, quiet)
        return Summary.read(directory.path)


def with_workers(config: Experiment[Any], workers: int) -> Experiment[Any]:
    """Return the experiment with another number of data-parallel workers; BadInput if it has none."""
    if not isinstance(config.system, systems.DataParallel):
        raise BadInput(
            f"--workers is for data-parallel runs; this one has the system {type(config.system).__name__}."
        )
    system = dataclasses.replace(config.system, workers=workers)
    check(system, "system.")
    return dataclasses.replace(config, system=system)


def stored_experiment(
    directory: RunDirectory, allow: Sequence[str] = (), env: Env | None = None
) -> Experiment[Any]:
    """Return the experiment in config.json; `env` replaces its env, `allow` are modules it may import.

    An `env` that names the stored one allows its code and keeps its settings.
    """
    data = directory.read_config()
    if env is None:
        return Experiment.from_dict(data, allow)
    old = data.get("env")
    count = old.get("envs") if isinstance(old, dict) else None
    given = encode(resolve(env, count if isinstance(count, int) and count > 0 else None))
    named = [name for _, name in code_names(given, CONFIG_CLASSES)]  # by the user, in this call
    is_config = dataclasses.is_dataclass(env) and not isinstance(env, type)
    if not is_config and isinstance(old, dict):
        same = all(old.get(key) == given.get(key) for key in ("kind", "id"))
        given = old if same else given
    return Experiment.from_dict(data | {"env": given}, (*allow, *named))


def check_resources_allowed(config: Experiment[Any], allow: Sequence[str]) -> None:
    """Raise BadInput if config.json names a Ray cluster or a replay folder that the user has not allowed."""
    if isinstance(config.engine, engines.Ray):
        require_cluster_allowed(config.engine.address, allow)
    for folder in setting_values(encode(config.system), "replay_dir"):
        require_folder_allowed(folder, allow)


def require_folder_allowed(folder: str, allow: Sequence[str]) -> None:
    """Raise BadInput unless `allow` has the folder of a replay, in which a run creates files."""
    if folder and Path(folder).resolve() not in (Path(entry).resolve() for entry in allow):
        raise BadInput(
            f"The run keeps its replay in {folder!r}, outside its directory; if that is intended, add "
            f"--allow {folder} (in Python allow=[{folder!r}])."
        )


def require_cluster_allowed(address: str, allow: Sequence[str]) -> None:
    """Raise BadInput unless `allow` has the address of a Ray cluster, whose nodes could run code here."""
    if address not in ("local", "auto", *allow):
        raise BadInput(
            f"The run joins the Ray cluster {address!r}; if you trust it, add --allow {address} "
            f"(in Python allow=[{address!r}])."
        )


def load_policy(
    run: str | Path,
    device: str = "cpu",
    env: Env | None = None,
    allow: Sequence[str] = (),
    *,
    allow_older: bool = False,
) -> TrainedPolicy:
    """Return the policy of the newest checkpoint of a run, on `device`.

    If that checkpoint is damaged, an older one is loaded only with `allow_older`; else SetupProblem. A run
    that needs code outside Troop (env, algorithm, network) is refused with the names of its modules: allow
    those you trust (`allow=["my_package"]`), or pass the env again (`env=MyEnv`), which keeps its settings.
    """
    check_device(device)
    directory = RunDirectory.open(run)
    config = stored_experiment(directory, allow, env)
    loaded = load_part(directory.checkpoints, "policy")
    if loaded is None:
        raise BadInput(f"{directory.path} has no checkpoint yet.")
    if reason := config.algorithm.unsupported_reason(config.env.spec):
        raise UnsupportedEnv(f"{reason}.")
    if loaded.skipped and not allow_older:
        raise SetupProblem(
            f"The newest checkpoint of {directory.path} is damaged ({'; '.join(loaded.skipped)}); restore "
            f"it, or load {loaded} with --allow-older (allow_older=True)."
        )
    config.check_policy(loaded)
    module = config.algorithm.policy(config.env.spec)
    try:
        module.load_state_dict(loaded.state["policy"])
    except (RuntimeError, KeyError, TypeError) as error:
        raise SetupProblem(f"The policy of {directory.path} does not fit its config.json.") from error
    return TrainedPolicy(module.to(device), config.env.for_evaluation(), config.evaluation, str(loaded))


def export_policy(
    run: str | Path,
    out: str | Path,
    env: Env | None = None,
    allow: Sequence[str] = (),
    *,
    allow_older: bool = False,
) -> Path:
    """Write the policy of the newest checkpoint of a run as an ONNX file, and its contract as JSON beside it.

    `out` is a file that ends in `.onnx`, or a directory for `policy.onnx`. The file takes observations as the
    env returns them and returns actions as it takes them, both [rows, ...]; a recurrent state, stacked frames
    and the last action are inputs and outputs. Needs `trooprl[export]`. `env`, `allow` and `allow_older` are
    explained in `load_policy`. Returns the path of the file; BadInput if the policy cannot be exported.
    """
    from troop.export.write import output_path, write_policy

    path = output_path(out)
    write_policy(load_policy(run, "cpu", env, allow, allow_older=allow_older), path)
    return path


def evaluate(
    run: str | Path,
    episodes: int = 16,
    seed: int = 0,
    device: str = "cpu",
    explore: float | None = None,
    env: Env | None = None,
    allow: Sequence[str] = (),
    on_step: OnStep = lambda step, running: None,
    *,
    allow_older: bool = False,
) -> dict[str, float]:
    """Evaluate the newest policy of a run as training does, on the first episode of `episodes` envs.

    `explore` is the exploration value of the policy; None for that of the run's own evaluations (by default
    0, no exploration). Returns the mean, standard deviation, minimum and maximum of the episode returns, the
    mean length in steps, the numbers of episodes and of unfinished ones, and on Atari the human-normalized
    score in percent. `on_step` is called after each vector step with its number and the episodes [envs] that
    still run. `env`, `allow` and `allow_older` are explained in `load_policy`.
    """
    policy = load_policy(run, device, env, allow, allow_older=allow_older)
    return evaluate_policy(policy, episodes, seed, device, explore, on_step)


def evaluate_policy(
    policy: TrainedPolicy,
    episodes: int,
    seed: int,
    device: str,
    explore: float | None,
    on_step: OnStep = lambda step, running: None,
) -> dict[str, float]:
    """Evaluate a loaded policy; see `evaluate`."""
    max_steps = policy.evaluation.step_limit(policy.spec)
    explore = policy.evaluation.explore if explore is None else explore
    env_seed = derive_seed(seed, "evaluate")
    vector = policy.env.with_envs(episodes).make(env_seed, device=device)
    try:
        returns, lengths, finished = first_episodes(
            vector, policy.module, env_seed, max_steps, explore, on_step
        )
    finally:
        vector.close()
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


__all__ = [
    "Experiment",
    "TrainedPolicy",
    "evaluate",
    "export_policy",
    "load_policy",
    "make_experiment",
    "resume",
    "train",
]
