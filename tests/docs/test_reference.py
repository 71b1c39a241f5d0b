"""Reference pages: values of papers, meanings of all flags, files, exit codes, and the files of one step."""

import dataclasses
import re

import pytest
from page_blocks import ROOT, blocks
from troop_docs import exit_codes_page, extension, files_page, flags_page, paper_values, recipe_builds
from troop_docs.commands_page import parser_of

from troop.cli.flags import TOP_LEVEL
from troop.cli.main import VERBS
from troop.cli.main import run as troop
from troop.core.errors import TroopError
from troop.experiment import CONFIG_CLASSES
from troop.recipes import RECIPES


@pytest.mark.parametrize("recipe", paper_values.PAPERS)
def test_values_that_differ_from_the_paper_have_a_reason(recipe):
    paper = paper_values.PAPERS[recipe]
    settings = recipe_builds.settings(recipe_builds.build(recipe, paper.env, paper.device))
    for flag, value in paper.values.items():
        assert flag in settings, f"{recipe} has no setting {flag}"
        if value.by_cores:
            continue
        differs = settings[flag] != value.paper
        assert differs == bool(value.reason), f"{flag}: paper {value.paper}, here {settings[flag]}"


def test_every_recipe_names_its_source():
    assert set(RECIPES) == set(paper_values.PAPERS) | set(paper_values.NO_PAPER)


def test_every_flag_has_a_meaning_and_every_config_class_a_table():
    for part, (_, kinds) in flags_page.SECTIONS.items():
        for kind in kinds:
            for name, *_, meaning in flags_page.rows(kind, f"{part}."):
                assert meaning, f"{kind.__name__}: {name} has no meaning"
    shown = {kind for _, kinds in flags_page.SECTIONS.values() for kind in kinds}
    shown |= {type(value) for kind in shown for value in _nested(kind)}
    assert {kind.__name__ for kind in shown} >= set(CONFIG_CLASSES) - {"Until"}


def _nested(kind):
    factories = [field.default_factory for field in dataclasses.fields(kind)]
    return [factory() for factory in factories if factory is not dataclasses.MISSING]


def test_every_verb_is_documented():
    page = extension.generate("commands")
    assert all(f"## troop {verb}" in page for verb in VERBS)
    with pytest.raises(KeyError):
        extension.generate("nothing")


def test_exit_codes_are_those_of_the_errors_and_the_readme():
    page = exit_codes_page.page()
    codes = {kind.exit_code for kind in TroopError.__subclasses__()} | set(exit_codes_page.NORMAL)
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", page, re.M)} == codes
    sentence = re.search(r"Exit codes: (.*)\.\n", (ROOT / "README.md").read_text())[1]
    assert {int(code) for code in re.findall(r"\b(\d)\b", sentence)} == codes - {130}


def test_docstrings_become_valid_text():
    lines = ["`lock`ed |x| and *y* and name_ ", "an unpaired ` mark"]
    extension.plain_docstring(None, "", "", None, None, lines)
    assert lines == [r"\ ``lock``\ ed \|x\| and \*y\* and name\_ ", "an unpaired ' mark"]


def test_files_of_runs_comparisons_and_suites_are_documented(tmp_path):
    budget = ["--env-steps", "40", "--envs", "2", "--evaluation.episodes", "2"]
    assert troop(["train", "dqn", "--env", "CartPole-v1", *budget, "--run", str(tmp_path / "run")]) == 0
    assert files_page.unmatched(tmp_path / "run", files_page.RUN_FILES) == ([], [])
    compare = ["compare", "dqn", "--env", "CartPole-v1", *budget, "--seeds", "1"]
    assert troop([*compare, "--run", str(tmp_path / "compare")]) == 0
    assert files_page.unmatched(tmp_path / "compare", files_page.COMPARE_FILES) == ([], [])
    suite = ["suite", "CartPole-v1", "--recipes", "dqn", *budget, "--seeds", "1"]
    assert troop([*suite, "--run", str(tmp_path / "suite")]) == 0
    assert files_page.unmatched(tmp_path / "suite", files_page.SUITE_FILES) == ([], [])


@pytest.mark.parametrize("algorithm, most", [("FastTD3", 6), ("Ape-X DQN", 8)])
def test_files_of_one_training_step_exist_and_are_the_same_in_readme_and_docs(algorithm, most):
    page = (ROOT / "docs/architecture.md").read_text()
    table = re.search(rf"\*\*{algorithm}\*\*.*?\n\n((?:\|.*\n)+)", page)[1]
    files = re.findall(r"^\| `([\w/]+\.py)`", table, re.M)
    readme = re.search(rf"\*\*{algorithm}\*\*[^:]*:(.*?)\.\n\n", (ROOT / "README.md").read_text(), re.S)[1]
    assert re.findall(r"`([\w/]+\.py)`", readme) == files
    assert 3 < len(files) <= most
    assert all((ROOT / "src/troop" / file).is_file() for file in files)


def test_files_named_in_the_documentation_exist():
    names = re.compile(r"`((?:src/troop|tests|docs|examples|[a-z_]+)/[\w/.-]+\.(?:py|md))`")
    written = {block.file for page in _pages() for block in blocks(page)}
    known = {"src/troop/algorithms/munchausen.py"} | written
    for page in _pages():
        for name in names.findall((ROOT / page).read_text()):
            roots = (ROOT, ROOT / "src/troop", ROOT / "tests")
            assert name in known or any((root / name).exists() for root in roots), f"{page} names {name}"


def test_flags_named_in_the_documentation_exist():
    known = {"--help", "--flag", *(f"--{name}" for name in TOP_LEVEL)}
    known |= {flag for verb in VERBS if verb != "train" for flag in _flags_of(verb)}
    for path in recipe_builds.short_flags():
        words = path.split(".")
        for start in range(len(words)):
            head, last = words[start:-1], words[-1]
            known |= {f"--{'.'.join([*head, last])}", f"--{'.'.join([*head, f'no-{last}'])}"}
    for page in _pages():
        prose = re.sub(r"^ *```.*?^ *```", "", (ROOT / page).read_text(), flags=re.M | re.S)
        for code in re.findall(r"`([^`\n]+)`", prose):
            for flag in re.findall(r"(?:^|\s)(--[a-z][\w.-]*)", code):
                assert flag.replace("_", "-") in known, f"{page} names {flag}"


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "train"])
def test_every_flag_of_a_verb_has_a_sentence(verb):
    for action in parser_of(verb)._actions:
        assert len((action.help or "").split()) > 2, f"troop {verb}: {action.option_strings or action.dest}"


def _flags_of(verb):
    return [flag for action in parser_of(verb)._actions for flag in action.option_strings]


def test_pages_named_in_the_code_exist():
    names = re.compile(r"docs/[\w/-]+\.(?:md|png)")
    for path in [*(ROOT / "src").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]:
        for name in names.findall(path.read_text()):
            assert (ROOT / name).exists(), f"{path.relative_to(ROOT)} names {name}"


def _pages():
    from page_blocks import pages

    return [page for page in pages() if page != "CHANGELOG.md"]
