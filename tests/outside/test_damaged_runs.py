"""Damaged and hostile run directories end every command in one sentence with exit code 2 or 5."""

import contextlib
import copy
import hashlib
import io
import json
import math
import os
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import troop
from troop.cli.main import run

DEEP = json.loads("[" * 600 + "]" * 600)
HOSTILE = [
    -1, 0, 10**400, -(10**400), 0.5, math.nan, math.inf, -math.inf, "text", "", "\0", None, True, [], {},
    DEEP, ["a"], [[1, 2, 3]], {"kind": "Toy"}, {"kind": "Until"}, {"kind": 3}, {"kind": "os:system"},
    "os:system",
    {"$tensor": ["x", "float32", [10**12]]}, {"$tuple": 3}, {"$float": "nan"}, "1" * 5000,
]  # fmt: skip
HUGE = [10**12, 10**18, [10**12], [-1], [0]]


def examples(count):
    """Settings of a test with this many examples, the same in every run; TROOP_LONG_TESTS tries more."""
    many = 20 if os.environ.get("TROOP_LONG_TESTS") else 1
    return settings(
        max_examples=count * many, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )


@pytest.fixture(autouse=True)
def no_figure(monkeypatch):
    """Drawing takes longer than the rest of a run."""
    monkeypatch.setattr("troop.runs.curve.plot", lambda run, out: out)


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    path = tmp_path_factory.mktemp("damage") / "run"
    small = {"actor_hidden": (8,), "critic_hidden": (8,), "compile": False}
    fields = {f"algorithm__{name}": value for name, value in small.items()}
    fields |= {"evaluation__max_episode_steps": 6, "evaluation__episodes": 2, "system__learning_starts": 4}
    fields |= {"system__replay_capacity": 400, "system__schedule__batch_size": 4}
    troop.train("sac", "toy:PointMass", envs=2, env_steps=40, run=path, quiet=True, **fields)
    for old in sorted((path / "checkpoints").iterdir())[:-1]:
        shutil.rmtree(old)
    (path / "curve.png").unlink(missing_ok=True)
    return path


def paths(value, here=()):
    """The paths of all values inside nested dicts and lists."""
    yield here
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from paths(item, (*here, key))


def changed(document, choose, hostile):
    """A copy of a JSON document with one value replaced, removed or added."""
    document = copy.deepcopy(document)
    everywhere = [path for path in paths(document) if path]
    *parents, last = everywhere[choose % len(everywhere)]
    holder = document
    for key in parents:
        holder = holder[key]
    action = choose // len(everywhere) % 4
    if action == 3 and isinstance(holder, dict):
        holder["unknown"] = hostile
    elif action == 2 and isinstance(holder, dict):
        del holder[last]
    else:
        holder[last] = hostile
    return document


def reseal(manifest, body):
    """Write a manifest with the hash that covers it."""
    text = json.dumps(body).encode()
    digest = hashlib.sha256(text).hexdigest().encode()
    manifest.write_bytes(b'{"sha256": "' + digest + b'",\n"manifest": ' + text + b"}\n")


def damage(run_path, file, choose, hostile):
    """Change one value of a file and, in a manifest, the hash that covers it, as an attacker would."""
    (manifest,) = run_path.glob("checkpoints/*/manifest.json")
    if file == "manifest":
        reseal(manifest, changed(json.loads(manifest.read_bytes())["manifest"], choose, hostile))
    elif file == "counters":
        body = json.loads(manifest.read_bytes())["manifest"]
        body["info"] = changed(body["info"], choose, hostile)
        reseal(manifest, body)
    elif file == "metrics.jsonl":
        lines = (run_path / file).read_text().splitlines()
        index = choose % len(lines)
        lines[index] = json.dumps(changed(json.loads(lines[index]), choose, hostile))
        (run_path / file).write_text("\n".join([*lines, json.dumps(hostile)]) + "\n")
    else:
        path = run_path / file
        path.write_text(json.dumps(changed(json.loads(path.read_text()), choose, hostile)))


def outcome(argv):
    """Exit code and standard error of a command; an exception other than those of Troop propagates."""
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
        code = run(argv)
    return code, errors.getvalue()


def check(template, change, argv):
    with TemporaryDirectory() as folder:
        path = Path(shutil.copytree(template, Path(folder) / "run"))
        change(path)
        code, error = outcome([argv[0], str(path), *argv[1:]])
        assert code in (0, 2, 5), error
        if code:
            assert error.startswith("troop: ") and len(error.strip().splitlines()) == 1, error
            assert len(error) < 2000


@examples(70)
@given(
    st.sampled_from(["config.json", "config.json", "summary.json", "manifest", "counters"]),
    st.integers(0, 2000),
    st.sampled_from(HOSTILE + HUGE),
)
@pytest.mark.reliability("X3")
def test_eval_of_a_damaged_run(template, file, choose, hostile):
    check(template, lambda path: damage(path, file, choose, hostile), ["eval", "--episodes", "2"])


@examples(25)
@given(
    st.sampled_from(["config.json", "summary.json", "manifest", "counters", "metrics.jsonl"]),
    st.integers(0, 2000),
    st.sampled_from(HOSTILE),
)
@pytest.mark.reliability("X3")
def test_resume_of_a_damaged_run(template, file, choose, hostile):
    check(template, lambda path: damage(path, file, choose, hostile), ["resume", "--env-steps", "44"])


def test_optimizer_state_of_another_type_is_reported_before_training(template):
    def change(path):
        (manifest,) = path.glob("checkpoints/*/manifest.json")
        body = json.loads(manifest.read_bytes())["manifest"]
        moments = body["parts"]["trainer.algorithm"]["tree"]["critic_optimizer"]["moments"]
        entries = moments["$dict"][0][1] if "$dict" in moments else moments["0"]
        entries[next(iter(entries))] = -1
        reseal(manifest, body)

    with TemporaryDirectory() as folder:
        path = Path(shutil.copytree(template, Path(folder) / "run"))
        change(path)
        code, error = outcome(["resume", str(path), "--env-steps", "44"])
        assert code == 2 and "of the optimizer does not fit" in error


@pytest.mark.parametrize("name", ["actor_hidden", "critic_hidden"])
@pytest.mark.parametrize("value", [[-1], [0], [10**12], [10**12, 10**12], [10**400], "8", [[8]], DEEP])
def test_sizes_of_networks_are_checked_before_memory_is_taken(template, name, value):
    def change(path):
        config = json.loads((path / "config.json").read_text())
        config["algorithm"][name] = value
        (path / "config.json").write_text(json.dumps(config))

    with TemporaryDirectory() as folder:
        path = Path(shutil.copytree(template, Path(folder) / "run"))
        change(path)
        code, error = outcome(["eval", str(path), "--episodes", "2"])
        # The critics are not part of the policy that is evaluated.
        assert code in (2, 5) or (name == "critic_hidden" and code == 0), error


def edit_config(path, place, value):
    """Replace one value of config.json; `place` are the keys that lead to it."""
    document = json.loads((path / "config.json").read_text())
    holder = document
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = value
    (path / "config.json").write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("env", "discrete"), True),  # an algorithm for continuous actions
        (("env", "id"), "\x1b[31m\nname"),
        (("evaluation", "explore"), 1e308),
    ],
)
def test_value_of_the_right_type_that_does_not_fit_the_rest(template, place, value, tmp_path):
    path = Path(shutil.copytree(template, tmp_path / "run"))
    edit_config(path, place, value)
    code, error = outcome(["eval", str(path), "--episodes", "2"])
    assert code == 2 and error.startswith("troop: ")
    assert len(error.strip().splitlines()) == 1 and error.strip().isprintable()


@pytest.mark.parametrize("steps", [10**400, "\x1b[31m\n", "\ud800", None, {}])
@pytest.mark.parametrize("value", [10**400, "high", True])
def test_hostile_description_of_a_checkpoint(template, steps, value, tmp_path, capsys):
    path = Path(shutil.copytree(template, tmp_path / "run"))
    (manifest,) = path.glob("checkpoints/*/manifest.json")
    body = json.loads(manifest.read_bytes())["manifest"]
    body["info"] |= {"env_steps": steps, "return_mean": value}
    reseal(manifest, body)
    assert "(unknown env steps, written " in troop.load_policy(path).checkpoint
    assert troop.load_policy(path).checkpoint.isprintable()


def test_returns_too_large_for_a_figure_end_no_run(template, tmp_path, monkeypatch):
    monkeypatch.undo()  # draws the figure
    path = Path(shutil.copytree(template, tmp_path / "run"))
    row = {"wall_s": 0.1, "env_steps": 1, "updates": 0, "eval/return_mean": 1e308, "eval/return_std": 1e308}
    lines = [json.dumps(row | {"eval/return_mean": sign * 1e308}) for sign in (1, -1)]
    (path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    edit_config(path, ("recipe",), "\ud800")
    assert outcome(["resume", str(path), "--env-steps", "44"]) == (0, "")


@examples(15)
@given(
    st.sampled_from(["config.json", "summary.json", "metrics.jsonl", "run.lock"]),
    st.binary(max_size=60)
    | st.sampled_from([b"[" * 100_000, b"NaN", b"1" * 100_000, b'{"a": 1e999}', b"\xff"]),
    st.sampled_from([["eval", "--episodes", "2"], ["resume", "--env-steps", "44"]]),
)
@pytest.mark.reliability("X3")
def test_arbitrary_bytes(template, file, content, argv):
    check(template, lambda path: (path / file).write_bytes(content), argv)


@examples(40)
@given(st.integers(0, 2000), st.sampled_from(HOSTILE + HUGE))
def test_damaged_comparisons(template, choose, hostile):
    """A comparison that is continued reads compare.json, summaries and metrics of its runs."""
    from troop.compare.plan import Attempt, ComparisonPlan

    config = json.loads((template / "config.json").read_text())
    plan = ComparisonPlan(
        "toy:PointMass",
        None,
        40,
        1,
        (),
        (),
        {},
        {"sac": config},
        history=(Attempt("sac", 1, "now", 0.0, "done"),),
    )
    with TemporaryDirectory() as folder:
        path = Path(folder) / "both"
        shutil.copytree(template, path / "sac" / "seed1")
        plan.write(path)
        stored = json.loads((path / "compare.json").read_text())
        (path / "compare.json").write_text(json.dumps(changed(stored, choose, hostile)))
        from troop.compare import session

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(session.Session, "_run_child", lambda *_: 2)
            code, error = outcome(["compare", "--run", str(path)])
        assert code in (0, 2, 3, 4, 5), error
        assert "Traceback" not in error
