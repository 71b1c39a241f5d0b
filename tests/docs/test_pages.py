"""Every command and Python block of the documentation works; blocks that cannot run here say why."""

import pytest
from page_blocks import SHELL, blocks, pages
from page_runner import PageRunner

REASONS = (  # why a block may be marked with no-run
    "needs a CUDA device",
    "needs several machines",
    "needs a Slurm cluster",
    "needs root",
    "starts a server",
    "changes the checkout",
    "takes minutes",
    "an excerpt",
)
MAX_NO_RUN = 24


@pytest.mark.parametrize("page", [page for page in pages() if any(blocks(page))])
def test_every_command_of_the_page_runs(page, empty_directory, finished_run):
    PageRunner(page, finished_run).run()


def test_blocks_that_are_not_run_are_few_and_give_a_known_reason():
    marked = [block for page in pages() for block in blocks(page) if block.no_run]
    for block in marked:
        assert block.no_run.startswith(REASONS), f"{block.where}: {block.no_run!r} is not among {REASONS}"
    assert len(marked) <= MAX_NO_RUN


def test_every_command_is_in_a_shell_block():
    for page in pages():
        for block in blocks(page):
            if block.language not in (*SHELL, "python", "diff"):
                assert not block.text.lstrip().startswith(("troop ", "$ troop", "make ")), block.where
