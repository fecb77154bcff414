"""FC-27: reordered members look like a new request; a timestamp in the payload really is one."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from effect_contracts.canonical import canonical_bytes, request_hash
from field_cases.amendments import any_value
from field_cases.cases import Case, Offer
from field_cases.raw import post_arguments, refused

# U+1F600 is a pair of surrogates in UTF-16 and sorts before U+FB33 there, after it by code point.
DEEP = '{"a":{"b":{"x":1,"y":[1,2,3],"\\ud83d\\ude00":1,"\\ufb33":2}},"é":3,"z":4}'
REORDERED = '{"z":4,"a":{"b":{"\\ufb33":2,"y":[1,2,3],"\\ud83d\\ude00":1,"x":1}},"é":3}'
HASH_PROGRAM = """
import json, sys
from effect_contracts.canonical import request_hash
tool, name, version, arguments = json.load(sys.stdin)
print(request_hash(tool, arguments, name, version).hex())
"""


def written(value: str) -> str:
    return f'{{"order":"1","amount":5,"currency":"eur","value":{value}}}'


@pytest.fixture
def offer(case: Case) -> Offer:
    """A tool that takes any value."""
    return case.offer("idempotent", amend=any_value)


def test_fc_27_the_order_of_members_does_not_matter_at_any_depth(offer: Offer) -> None:
    new = post_arguments(offer, "1", written(DEEP))
    assert new.status_code == 202, new.text
    effect_id = new.json()["effect_id"]
    again = post_arguments(offer, "1", written(REORDERED))
    assert (again.status_code, again.json()["effect_id"]) == (200, effect_id), again.text
    front_to_back = f'{{"value":{REORDERED},"currency":"eur","amount":5,"order":"1"}}'
    assert post_arguments(offer, "1", front_to_back).status_code == 200
    offer.judge(effect_id, state="succeeded", requests=1, effects=1)


@pytest.mark.parametrize(
    ("first", "second", "place"),
    [
        ("[1,2,3]", "[1,3,2]", "/arguments/value/1"),
        (
            '{"createdAt":"2026-01-01T00:00:00Z"}',
            '{"createdAt":"2026-01-01T00:00:01Z"}',
            "/arguments/value/createdAt",
        ),
        ("[]", "{}", "/arguments/value"),
    ],
)
def test_fc_27_another_order_of_elements_or_another_time_is_another_request(
    offer: Offer, first: str, second: str, place: str
) -> None:
    new = post_arguments(offer, "1", written(first))
    effect_id = new.json()["effect_id"]
    before = offer.judge(effect_id, state="succeeded", requests=1, effects=1)
    problem = refused(post_arguments(offer, "1", written(second)), "payload_conflict", 409)
    assert problem["field"] == place
    assert problem["effect_id"] == effect_id
    assert problem["state"] == "succeeded"
    after = offer.judge(effect_id, state="succeeded", requests=1, effects=1)
    assert after["version"] == before["version"]


def test_fc_27_every_process_and_locale_computes_the_stored_hash(offer: Offer) -> None:
    arguments = json.loads(written(DEEP))
    effect_id = post_arguments(offer, "1", written(REORDERED)).json()["effect_id"]
    intent = offer.case.scene.intent(effect_id)
    named = (offer.tool, intent["contract_name"], intent["contract_version"], arguments)
    stored = bytes(intent["request_hash"])
    assert request_hash(named[0], arguments, named[1], named[2]) == stored
    for language, seed in (("C", "0"), ("tr_TR.UTF-8", "1"), ("sv_SE.UTF-8", "2")):
        environment = {**os.environ, "LC_ALL": language, "LANG": language, "PYTHONHASHSEED": seed}
        said = subprocess.run(
            [sys.executable, "-c", HASH_PROGRAM],
            input=json.dumps(named),
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        assert said.stdout.strip() == stored.hex(), language


def test_fc_27_members_sort_by_code_units_as_the_standard_says() -> None:
    text = canonical_bytes({"\ufb33": 2, "\U0001f600": 1}).decode()
    assert text == '{"\U0001f600":1,"\ufb33":2}'
