"""Rules of `sqs`, `s3` and `smtp`: what lies on the other side of a bound, and all that is told."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from .documents import document, problems_in
from .test_client_rules import ARCHIVED, MAIL, S3, SQS


@pytest.mark.parametrize("name", ["a", "kex", "K", "key0", "keys", "z"])
@pytest.mark.parametrize(
    ("base", "place", "text"),
    [(SQS, "/adapter/group", "g-{%s}"), (S3, "/adapter/object", "exports/{%s}.json")],
)
def test_a_variable_that_is_no_argument_is_refused_wherever_it_sorts(
    base: dict[str, Any], place: str, text: str, name: str
) -> None:
    message = f"{{{name}}} is no argument of this contract (nor {{key}})"
    assert problems_in(base, (place, text % name)) == {place: message}
    document(base, (place, text % "key"))


@pytest.mark.parametrize("seconds", [299, 299.5, 300])
def test_a_key_may_be_kept_for_less_than_sqs_keeps_it(seconds: float) -> None:
    assert document(SQS, ("/key_retention_seconds", seconds)).key_retention_seconds == seconds


@pytest.mark.parametrize("base", [MAIL, ARCHIVED], ids=lambda base: base["name"])
def test_each_template_of_a_mail_is_looked_at_whatever_another_is(base: dict[str, Any]) -> None:
    names = ("to", "subject", "text")
    for first, second in pairwise(names):
        breaches = [(f"/adapter/{first}", {"$arg": 7}), (f"/adapter/{second}", {"$arg": "/no"})]
        problems = problems_in(base, *breaches)
        assert list(problems) == [place for place, _ in breaches]
        assert problems[f"/adapter/{second}"] == "$arg /no is no argument of this contract"
