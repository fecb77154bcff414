"""How events are told to a webhook: body, signature, and when a refused one comes again.

Pure. Signatures are those of Standard Webhooks (version v1, HMAC-SHA-256): over the event's id, the
time of the try and the body. The id of an event is the same at every try, so that a receiver can
tell one that it has taken already.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from effect_contracts.backoff import exponential_seconds, jittered_seconds
from effect_contracts.canonical import canonical_bytes
from effect_contracts.event_stream import StreamEvent

SECRET_PREFIX: Final = "whsec_"
# What Standard Webhooks advises: 24 to 64 random bytes.
SECRET_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class SendingPolicy:
    """When a delivery is tried again, and when it is given up; all in seconds.

    Attributes:
        try_seconds: one try, from the look-up of the address to the end of the answer.
        tries_max: after so many an event is a dead letter; also `dead_after_seconds` after its
            first try.
        pause_after_seconds: a subscription of which nothing was accepted for so long is paused.
        look_seconds_max: how long a subscription whose receiver fails is left alone at most.
        retry_after_seconds_max: a receiver can ask for no longer pause.
        lanes: effects of one subscription that are delivered at the same time.
        subscriptions: that one worker delivers for at the same time.
        batch: events of one batch.
        batch_seconds: nothing more is begun so long after a batch was read.
        effects_waiting_max: with so many effects of which something waits, no more is read.
    """

    try_seconds: float = 10.0
    tries_max: int = 12
    dead_after_seconds: float = 86_400.0
    wait_seconds: float = 5.0
    wait_seconds_max: float = 3600.0
    pause_after_seconds: float = 21_600.0
    look_seconds: float = 1.0
    look_seconds_max: float = 60.0
    retry_after_seconds_max: float = 3600.0
    lanes: int = 4
    subscriptions: int = 16
    batch: int = 50
    batch_seconds: float = 30.0
    effects_waiting_max: int = 1000

    @property
    def lease_seconds(self) -> float:
        """Longer than a batch can take; a worker that dies loses its leases with its heartbeat."""
        return self.batch_seconds + 2 * self.try_seconds

    def wait_after(self, tries: int, retry_after: float | None, seed: int) -> float:
        """Return how long an event waits after its `tries`-th refusal."""
        wait = exponential_seconds(tries - 1, self.wait_seconds, 2.0, self.wait_seconds_max)
        wait = jittered_seconds(wait, seed, tries)
        if retry_after is None:
            return wait
        return max(wait, min(retry_after, self.retry_after_seconds_max))

    def look_after(self, failures: int, seed: int) -> float:
        """Return how long a subscription is left alone after so many batches in vain."""
        if not failures:
            return 0.0
        wait = exponential_seconds(failures - 1, self.look_seconds, 2.0, self.look_seconds_max)
        return jittered_seconds(wait, seed, failures)


def webhook_body(event: StreamEvent) -> bytes:
    """Return the body of a delivery, the same bytes at every try."""
    told = event.to_json()
    return canonical_bytes({"type": told["type"], "timestamp": told["at"], "data": told})


def webhook_headers(
    secrets: Sequence[str], event_id: str, timestamp: int, body: bytes
) -> tuple[tuple[str, str], ...]:
    """Return the headers that sign a delivery; `timestamp` is seconds since 1970.

    While a secret is being replaced there are several, and a signature by each: a receiver takes
    the delivery if one of them is good.
    """
    signed = f"{event_id}.{timestamp}.".encode() + body
    signatures = " ".join(f"v1,{_signature(secret, signed)}" for secret in secrets)
    return (
        ("webhook-id", event_id),
        ("webhook-timestamp", str(timestamp)),
        ("webhook-signature", signatures),
    )


def _signature(secret: str, signed: bytes) -> str:
    key = base64.b64decode(secret.removeprefix(SECRET_PREFIX))
    return base64.b64encode(hmac.digest(key, signed, "sha256")).decode()


def secret_of(random_bytes: bytes) -> str:
    """Return a secret as receivers' libraries take it."""
    return SECRET_PREFIX + base64.b64encode(random_bytes).decode()
