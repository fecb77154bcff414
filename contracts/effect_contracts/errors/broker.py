"""The broker, or what it stands on, is at fault."""

from __future__ import annotations

from effect_contracts.errors.base import EffectError
from effect_contracts.problem_codes import ProblemCode


class BrokerError(EffectError):
    """Nothing is wrong with the request."""


class StorageUnavailable(BrokerError):
    """The database did not answer or may not be written. Repeating a submit is safe."""

    code = ProblemCode.STORAGE_UNAVAILABLE

    def __init__(self, *, retry_after_seconds: int = 1) -> None:
        super().__init__(
            "The database cannot be reached or written; the same request may be sent again.",
            extras={"retry_after_seconds": retry_after_seconds},
        )


class KeyRingMissing(BrokerError):
    """No key ring, or none with the key that a stored row names."""

    code = ProblemCode.KEY_RING_MISSING

    def __init__(self, *, key_id: str | None = None) -> None:
        super().__init__(
            "The key ring is missing or lacks a key that is needed; the broker's operator has to "
            "give it to this process (EFFECT_BROKER_KEY_RING_FILE).",
            extras={"key_id": key_id},
        )


class ConfigurationInvalid(BrokerError):
    """A setting is wrong; `remedy` is a sentence that says what to do, without its value."""

    code = ProblemCode.CONFIGURATION_INVALID

    def __init__(self, *, setting: str, remedy: str) -> None:
        super().__init__(f"{setting}: {remedy}", extras={"setting": setting})


class InternalError(BrokerError):
    """A mistake of the broker's own; the log has the rest under the problem's instance."""

    code = ProblemCode.INTERNAL

    def __init__(self) -> None:
        super().__init__("The broker made a mistake; the same request may be sent again.")
