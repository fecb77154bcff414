"""What a refusal says beyond its sentence: limit, place, choices, scope, if they are known."""

from __future__ import annotations

import pytest

from effect_contracts.errors import Forbidden, InvalidArguments, InvalidPayload, RequestMalformed
from effect_contracts.reasons import (
    PARAMETER_SENTENCES,
    PAYLOAD_SENTENCES,
    ParameterReason,
    PayloadReason,
)


@pytest.mark.parametrize("reason", PayloadReason)
def test_a_refused_payload_names_its_limit_if_there_is_one(reason: PayloadReason) -> None:
    assert InvalidPayload(reason).detail == PAYLOAD_SENTENCES[reason]
    limited = InvalidPayload(reason, limit=64)
    assert limited.detail == f"{PAYLOAD_SENTENCES[reason]} The limit is 64."
    assert limited.extras == {"reason": reason.value, "limit": 64}


def test_a_place_is_the_value_or_where_there_is_none_yet_the_byte() -> None:
    reason = next(iter(PayloadReason))
    said = f"invalid_payload: {PAYLOAD_SENTENCES[reason]}"
    assert str(InvalidPayload(reason)) == said
    assert str(InvalidPayload(reason, offset_bytes=7)) == f"{said} (at byte 7)"
    assert str(InvalidPayload(reason, field="/a")) == f"{said} (at /a)"
    assert str(InvalidPayload(reason, field="")) == f"{said} (at the root)"
    assert str(InvalidPayload(reason, field="/a", offset_bytes=7)) == f"{said} (at /a)"


def test_a_parameter_is_wrong_for_a_reason_and_by_its_form_where_none_is_given() -> None:
    plain = RequestMalformed()
    assert plain.extras == {}
    form = PARAMETER_SENTENCES[ParameterReason.FORMAT]
    named = RequestMalformed(parameter="limit")
    assert (named.detail, named.extras) == (form, {"parameter": "limit", "reason": "format"})
    for reason in ParameterReason:
        sentence = PARAMETER_SENTENCES[reason]
        known = RequestMalformed(reason, parameter="limit", limit=9, choices="a, b")
        assert known.detail == f"{sentence} The limit is 9. There are a, b."
        assert known.extras == {"parameter": "limit", "reason": reason.value, "limit": 9}
        assert RequestMalformed(reason).detail == sentence
    assert plain.detail not in set(PARAMETER_SENTENCES.values())


def test_arguments_break_a_keyword_that_is_named_with_what_it_asks_for() -> None:
    plain = InvalidArguments(field="/a", keyword="minimum")
    assert plain.detail == "The arguments break the contract's schema by its keyword 'minimum'."
    asked = InvalidArguments(field="/a", keyword="minimum", expected="5")
    assert asked.detail.endswith("by its keyword 'minimum', which asks for 5.")
    assert "lack a member" in InvalidArguments(field="/a", keyword="required").detail
    assert "lack a member" in InvalidArguments(field="/a", keyword="required", expected="x").detail


def test_a_key_lacks_a_scope_that_is_named_if_it_is_known() -> None:
    assert Forbidden().detail == "This API key may not do this."
    lacking = Forbidden(scope="submit")
    assert lacking.detail == "This API key may not do this: it lacks the scope 'submit'."
