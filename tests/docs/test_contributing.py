"""The examples of CONTRIBUTING.md, applied to a copy of the source tree, pass the conformance tests."""

import os
import re
import shutil
import subprocess
import sys

import pytest
from page_blocks import ROOT, blocks

PAGE, TUTORIAL = "CONTRIBUTING.md", "docs/tutorials/own-algorithm.md"
EXAMPLES = "munchausen or drift or shuffled or decoupled"
CONFORMANCE = [f"tests/conformance/test_{name}.py" for name in ("algorithm", "env", "engine")]


def apply_diff(tree, diff):
    """Apply each hunk of a unified diff by its text; a hunk must match exactly one place of its file."""
    for part in re.split(r"^--- a/", diff, flags=re.M)[1:]:
        name, _, rest = part.partition("\n")
        path, hunks = tree / name, re.split(r"^@@.*\n", rest.partition("\n")[2], flags=re.M)[1:]
        text = path.read_text()
        for hunk in hunks:
            lines = hunk.splitlines(keepends=True)
            old = "".join(line[1:] or "\n" for line in lines if not line.startswith("+")).rstrip("\n")
            new = "".join(line[1:] or "\n" for line in lines if not line.startswith("-")).rstrip("\n")
            assert text.count(old) == 1, f"{name}: this text occurs {text.count(old)} times:\n{old}"
            text = text.replace(old, new)
        path.write_text(text)


@pytest.fixture(scope="module")
def changed_tree(tmp_path_factory):
    """A copy of src and of the conformance tests with all files and changes of CONTRIBUTING.md."""
    tree = tmp_path_factory.mktemp("tree")
    skip = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "src", tree / "src", ignore=skip)
    shutil.copytree(ROOT / "tests/conformance", tree / "tests/conformance", ignore=skip)
    for name in ("pyproject.toml", "tests/conftest.py", "tests/test_architecture.py"):
        shutil.copy(ROOT / name, tree / name)
    for block in blocks(PAGE):
        if block.file:
            (tree / block.file).parent.mkdir(parents=True, exist_ok=True)
            (tree / block.file).write_text(block.text)
        elif block.language == "diff":
            apply_diff(tree, block.text)
    (algorithm,) = [block for block in blocks(TUTORIAL) if block.file == "munchausen.py"]
    (tree / "src/troop/algorithms/munchausen.py").write_text(algorithm.text)
    return tree


def run_in(tree, *arguments):
    """Run a Python module with the changed source tree; return its output, failing if it fails."""
    variables = os.environ | {"PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", *arguments]
    result = subprocess.run(command, cwd=tree, env=variables, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-2000:]
    return result.stdout


def test_examples_pass_the_conformance_tests(changed_tree):
    files = [*CONFORMANCE, "tests/systems/test_decoupled.py", "tests/test_architecture.py"]
    output = run_in(changed_tree, "pytest", "-n0", "-v", "-k", EXAMPLES, *files)
    assert int(re.search(r"(\d+) passed", output)[1]) > 60, output


def test_examples_run_from_the_command_line(changed_tree):
    run = ["troop", "train", "fasttd3", "--env", "drift:Drift", "--engine", "shuffled", "--env-steps", "200"]
    run_in(
        changed_tree,
        *run,
        "--envs",
        "4",
        "--engine.threads",
        "1",
        "--evaluation.episodes",
        "2",
        "--run",
        "first",
    )
    run_in(changed_tree, "troop", "resume", "first", "--env-steps", "300")


def test_examples_follow_the_rules_of_the_code(changed_tree):
    files = [block.file for block in blocks(PAGE) if block.file] + ["src/troop/algorithms/munchausen.py"]
    run_in(changed_tree, "ruff", "check", *files)
    run_in(changed_tree, "ruff", "format", "--check", *files)
