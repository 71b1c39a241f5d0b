"""docs/reference/reliability.md: one line for each fault, generated from the marks of the tests."""

import re

import pytest
from troop_docs import reliability_page
from troop_docs.reliability_cases import FAULTS

IDS = {"K": 11, "R": 9, "F": 7, "N": 6, "S": 8, "P": 8, "T": 6, "C": 5, "X": 14}


def test_page_is_current():
    assert reliability_page.PAGE.read_text() == reliability_page.page(), "run `make reliability`"


def test_page_has_one_line_for_each_fault():
    lines = re.findall(r"^\| ([A-Z]\d+) \|", reliability_page.PAGE.read_text(), re.M)
    assert lines == list(FAULTS) == [f"{letter}{i}" for letter, n in IDS.items() for i in range(1, n + 1)]


def test_every_fault_that_can_happen_is_tested():
    tested = {name for test in reliability_page.marked_tests() for name in test.ids}
    open_faults = {name for name, fault in FAULTS.items() if not fault.not_applicable} - tested
    assert not open_faults
    for name in tested:
        assert not FAULTS[name].not_applicable, f"{name} is tested, so that it is applicable"


def test_marks_are_read_from_the_source(tmp_path, monkeypatch):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_one.py").write_text(
        "@pytest.mark.reliability('K1', 'K2')\n@pytest.mark.long\ndef test_kills(): ...\n"
        "@pytest.mark.reliability('K2')\ndef test_two(): ...\ndef test_none(): ...\n"
    )
    monkeypatch.setattr(reliability_page, "ROOT", tmp_path)
    first, second = reliability_page.marked_tests()
    assert first == reliability_page.MarkedTest("test_one.py", "test_kills", ("K1", "K2"), True)
    assert (second.name, second.ids, second.long) == ("test_two", ("K2",), False)
    page = reliability_page.page()
    assert "| `test_one.py`: *kills*, two |" in page and "**not tested**" in page
    (tmp_path / "tests/test_one.py").write_text("@pytest.mark.reliability('Q7')\ndef test_kills(): ...\n")
    with pytest.raises(ValueError, match="Q7"):
        reliability_page.page()
