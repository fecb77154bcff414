"""Contracts of today are read by every later release: the form of a document is a promise.

A member that comes is a new line of the golden file. A line that changes or goes is a document that
was good and is refused, or means something else: think of those who have stored one.
"""

from __future__ import annotations

from pathlib import Path

from .document_form import lines

GOLDEN = Path(__file__).parent / "golden" / "form.txt"


def test_every_member_has_its_published_type_bounds_and_default() -> None:
    published = GOLDEN.read_text(encoding="utf-8").splitlines()
    now = list(lines())
    assert [line for line in published if line not in now] == []
    # A new member is written down too, so that it is kept from then on.
    assert [line for line in now if line not in published] == []
    assert len(published) > 200
