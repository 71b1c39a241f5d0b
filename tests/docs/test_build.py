"""The documentation builds without warnings: every link between pages and to headings works."""

import os
import re
import subprocess
import sys

import pytest
from page_blocks import ROOT

pytest.importorskip("sphinx", reason="Sphinx is not installed: pip install 'trooprl[docs]'")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site; the options are those of `make docs`."""
    out = tmp_path_factory.mktemp("site")
    options = re.search(r"-m sphinx (.*) -b html docs", (ROOT / "Makefile").read_text())[1].split()
    command = [sys.executable, "-m", "sphinx", *options, "-q", "-d", out / "doctrees", "-b", "html"]
    result = subprocess.run(
        [*command, ROOT / "docs", out / "html"],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "-W" in options and result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]
    return out / "html"


def test_four_sections_have_their_pages(site):
    expected = {
        "tutorials": {"first-policy", "own-environment", "own-algorithm", "cluster"},
        "how-to": {"resume", "choose-a-system", "tune", "video", "panel", "gpus", "slurm-and-ray", "recipe"}
        | {"debug"},
        "reference": {"commands", "flags", "recipes", "metrics", "files", "exit-codes", "api"},
        "explanation": {"environments", "replay", "statistics"},
        ".": {"architecture", "contributing", "changelog"},
    }
    for section, pages in expected.items():
        assert pages <= {path.stem for path in (site / section).glob("*.html")}


def test_generated_pages_have_no_mark_left(site):
    for path in (site / "reference").glob("*.html"):
        assert "generated:" not in path.read_text()


def test_api_page_has_signatures_and_docstrings(site):
    text = (site / "reference/api.html").read_text()
    for name in (
        "troop.api.train",
        "troop.api.load_policy",
        "troop.core.env.VectorEnv",
        "troop.core.algorithm",
    ):
        assert f'id="{name}' in text or f'id="module-{name}' in text, name


def test_links_of_the_readme_lead_to_files():
    for page in ("README.md", "CONTRIBUTING.md"):
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", (ROOT / page).read_text()):
            assert (ROOT / target).exists(), f"{page} links to {target}"
