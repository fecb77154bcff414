"""The page of the field cases has a row for every case with tests, and tests for every row."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "field-cases.md"


def test_every_case_of_the_page_has_its_tests_and_every_test_its_row() -> None:
    rows = dict(
        re.findall(
            r"^\| FC-(\d\d) .*\]\(\.\./tests/field_cases/(test_fc_\d\d\.py)\)",
            PAGE.read_text("utf-8"),
            re.MULTILINE,
        )
    )
    assert rows == {number: f"test_fc_{number}.py" for number in rows}
    files = {path.name for path in HERE.glob("test_fc_*.py")}
    assert set(rows.values()) == files
    for number, name in rows.items():
        tests = re.findall(r"^def (test_\w+)", (HERE / name).read_text("utf-8"), re.MULTILINE)
        assert tests, name
        assert all(test.startswith(f"test_fc_{number}_") for test in tests), name
