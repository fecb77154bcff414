"""What is no certificate is refused without a word of it."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from effect_contracts.certificates import Certificate

from .test_certificates import with_content


@pytest.mark.parametrize(
    "content", [b'{"hush": "secret"}', with_content(certificate_id=["secret"])]
)
def test_a_refusal_repeats_nothing_of_the_content(content: bytes) -> None:
    with pytest.raises(ValidationError) as problem:
        Certificate.model_validate_json(content)
    assert "secret" not in str(problem.value)


def test_trials_are_read_in_their_order() -> None:
    read = Certificate.model_validate_json(with_content())
    assert [one.trial for one in read.trials] == ["ten_at_once", "key_is_kept", "drift_is_refused"]
