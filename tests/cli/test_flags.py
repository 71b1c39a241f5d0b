"""Settings can be typed by any unique end of their dotted path, for every recipe and engine."""

import dataclasses

import pytest

from troop.api import make_experiment
from troop.cli.flags import TOP_LEVEL, SettingFlags, field_docs, with_values
from troop.cli.main import run
from troop.cli.train import CONFIGS, parse_command, warm_up
from troop.core.config import flags
from troop.core.engine import Until
from troop.core.errors import BadInput
from troop.envs import Gymnasium, Toy
from troop.experiment import CONFIG_CLASSES
from troop.recipes import RECIPES


def setting_flags(recipe, engine=None):
    made = make_experiment(recipe, engine=engine)
    configs = {name: getattr(made, name) for name in CONFIGS}
    return SettingFlags(configs, f"troop train {recipe}"), configs


@pytest.mark.parametrize("engine", ["inline", "processes", "ray"])
@pytest.mark.parametrize("recipe", RECIPES)
def test_every_setting_of_every_recipe_has_a_working_shortest_flag(recipe, engine):
    table, configs = setting_flags(recipe, engine)
    spellings = {}
    for path, value in table.values.items():
        shortest = table.shortest(path)
        assert path == shortest or path.endswith(f".{shortest}")
        for spelling in (shortest, path, path.replace("-", "_")):
            assert table.resolve([f"--{spelling}", "x"]) == ([f"--{shortest}", "x"], {path})
            assert table.resolve([f"--{spelling}=x"]) == ([f"--{shortest}=x"], {path})
        names = [shortest]
        if isinstance(value, bool):
            head, dot, last = shortest.rpartition(".")
            names.append(f"{head}{dot}no-{last}")
            expected = f"--{shortest}=False" if path in table.auto_switches else f"--{names[1]}"
            assert table.resolve([f"--{names[1]}"]) == ([expected], {path})
        for name in names:
            assert name not in TOP_LEVEL and name not in spellings, f"{name} names two settings"
            spellings[name] = path
    for name, config in configs.items():  # and tyro's classes hold the same values
        annotated = table.annotate(config, name, with_help=False)
        assert with_values(config, annotated) == config
        assert dict(flags(annotated)) == dict(flags(config))


@pytest.mark.parametrize("kind", [kind for kind in CONFIG_CLASSES.values() if kind is not Until])
def test_every_setting_has_a_sentence(kind):
    docs = field_docs(kind)
    nested = {field.name for field in dataclasses.fields(kind) if dataclasses.is_dataclass(_default(field))}
    for field in dataclasses.fields(kind):
        text = docs.get(field.name, "")
        assert field.name in nested or (len(text.split()) > 1 and text.endswith(".")), (
            f"{field.name}: {text!r}"
        )


def _default(field):
    return field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default


@pytest.mark.parametrize("recipe", ["fasttd3", "apex-dqn", "gorila-dqn", "pql"])
def test_short_and_full_flags_give_the_same_experiment(recipe):
    table, _ = setting_flags(recipe)
    short, full = [], []
    for path, value in table.values.items():
        if isinstance(value, bool):
            head, _, last = path.rpartition(".")
            full.append(f"--{head}.no-{last}")
            head, dot, last = table.shortest(path).rpartition(".")
            short.append(f"--{head}{dot}no-{last}")
        elif isinstance(value, int | float):
            short += [f"--{table.shortest(path)}", str(value + 1)]
            full += [f"--{path}", str(value + 1)]
    by_short, by_full = parse_command([recipe, *short]), parse_command([recipe, *full])
    assert by_short == by_full and by_short.experiment != make_experiment(recipe)
    assert len(by_short.settings) > 30
    for path, value in table.values.items():
        config = by_short.experiment
        for name in path.replace("-", "_").split("."):
            config = getattr(config, name)
        expected = (
            False if isinstance(value, bool) else value + 1 if isinstance(value, int | float) else value
        )
        assert config == expected, path


def test_short_flags_set_the_settings_that_they_end():
    argv = ["--batch-size", "17", "--no-overlap", "--priority.alpha=0.3", "--actors", "3", "--gamma", "0.9"]
    made = parse_command(["apex-dqn", *argv, "--minutes", "2", "--seed", "5"]).experiment
    assert (made.system.learner.batch_size, made.system.overlap, made.system.priority.alpha) == (
        17,
        False,
        0.3,
    )
    assert (made.system.actors, made.algorithm.gamma, made.until.minutes, made.seed) == (3, 0.9, 2, 5)


def test_top_level_flags_and_exact_paths_win_over_ends_of_paths():
    table, _ = setting_flags("dqn")
    assert {"env.envs", "evaluation.env-steps"} <= set(table.values)
    assert table.resolve(["--envs", "8", "--env-steps", "9"]) == (["--envs", "8", "--env-steps", "9"], set())
    assert parse_command(["dqn", "--env-steps", "9"]).experiment.evaluation.env_steps is None

    @dataclasses.dataclass(frozen=True)
    class Inner:
        rate: float = 1.0

    @dataclasses.dataclass(frozen=True)
    class Outer:
        a: Inner = dataclasses.field(default_factory=Inner)
        rate: float = 2.0

    table = SettingFlags({"a": Inner(), "b": Outer()}, "prog")
    assert list(table.values) == ["a.rate", "b.a.rate", "b.rate"]
    assert table.resolve(["--a.rate", "--b.a.rate", "--b.rate"])[1] == {"a.rate", "b.a.rate", "b.rate"}
    assert table.matches("a.rate") == ["a.rate"]


@pytest.mark.parametrize(("flag", "sentence"), [
    ("--threads", "--threads is ambiguous; use --env.threads or --engine.threads."),
    ("--gama", "Unknown flag --gama; did you mean --gamma?"),
    ("--batch_sise", "Unknown flag --batch_sise; did you mean --batch-size?"),
    ("--sytem.replay-capacity", "Unknown flag --sytem.replay-capacity; did you mean --replay-capacity?"),
    ("--no-gamma", "Unknown flag --no-gamma; did you mean --gamma?"),
    ("--priority", "Unknown flag --priority; did you mean"),
    ("--xyzzy", "Unknown flag --xyzzy; see `troop train fasttd3 --help`."),
])  # fmt: skip
def test_ambiguous_and_unknown_flags_are_one_sentence(flag, sentence):
    with pytest.raises(BadInput) as error:
        parse_command(["fasttd3", flag, "1"])
    assert sentence in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("recipe", ["fasttd3", "apex-dqn"])
def test_help_lists_every_setting_by_its_shortest_flag(recipe, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    with pytest.raises(SystemExit) as stop:
        run(["train", recipe, "--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    words = text.replace(",", " ").split()
    table, configs = setting_flags(recipe)
    for path in table.values:
        assert f"--{table.shortest(path)}" in words, path
    for name in TOP_LEVEL:
        assert f"--{name}" in words
    assert "--batch-size INT" in text and "--system.schedule.batch-size" not in text
    for group in ("env options", "algorithm options", "system options", "system.priority options"):
        assert group in text
    one_line = " ".join(text.replace("│", " ").split())
    for config in configs.values():
        for field, doc in field_docs(type(config)).items():
            assert doc in one_line, field


def undocumented(config):
    docs = field_docs(type(config))
    nested = [getattr(config, field.name) for field in dataclasses.fields(config)]
    missing = [
        f"{type(config).__name__}.{field.name}"
        for field, value in zip(dataclasses.fields(config), nested, strict=True)
        if field.name not in docs and not dataclasses.is_dataclass(value)
    ]
    return missing + [
        name for value in nested if dataclasses.is_dataclass(value) for name in undocumented(value)
    ]


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_setting_has_a_help_text(recipe):
    for engine in ("inline", "processes", "ray"):
        made = make_experiment(recipe, engine=engine)
        assert [name for config in CONFIGS for name in undocumented(getattr(made, config))] == []
    assert undocumented(Gymnasium("CartPole-v1")) == undocumented(Toy()) == []


def test_field_docs_include_those_of_base_classes():
    docs = field_docs(type(make_experiment("gorila-dqn").system))
    assert "replay_capacity" in docs and "servers" in docs and "\n" not in "".join(docs.values())


@pytest.mark.parametrize(("argv", "started"), [
    (["--engine", "ray"], [False]),
    (["--engine", "ray", "--insecure"], [True]),
    (["--engine", "ray", "--engine.insecure", "--address", "local"], [True]),
    (["--engine", "ray", "--address", "auto"], []),
    (["--engine", "ray", "--engine.address=auto"], []),
    (["--engine", "inline"], []),
])  # fmt: skip
def test_local_ray_starts_early_only_without_an_address(argv, started, monkeypatch):
    cluster = pytest.importorskip("troop.engines.ray.cluster")
    calls = []
    monkeypatch.setattr(cluster, "BackgroundInit", calls.append)
    warm_up(["apex-dqn", *argv])
    assert calls == started


COMPILE_FLAGS = {
    "": "auto",
    "--compile": True,
    "--algorithm.compile": True,
    "--compile --seed 3": True,
    "--compile true": True,
    "--compile=True": True,
    "--no-compile": False,
    "--algorithm.no-compile --seed 3": False,
    "--algorithm.compile false": False,
    "--compile=false": False,
    "--compile auto": "auto",
    "--no-compile --compile=auto": "auto",
}


@pytest.mark.parametrize("words", COMPILE_FLAGS)
def test_compile_is_on_off_or_auto(words):
    parsed = parse_command(["fasttd3", *words.split(), "--minutes", "2"]).experiment
    assert parsed.algorithm.compile == COMPILE_FLAGS[words] and parsed.until.minutes == 2
    assert type(parsed).from_dict(parsed.to_dict()) == parsed


def test_another_value_of_compile_is_rejected():
    for words in (["--compile", "maybe"], ["--compile=maybe"]):
        with pytest.raises(BadInput, match="'maybe'"):
            parse_command(["fasttd3", *words])
