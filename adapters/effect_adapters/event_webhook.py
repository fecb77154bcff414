"""Posting an event to a subscriber's URL, which is anybody's.

An address is judged after the name was looked up, where it is connected to, and no other one is
tried (`effect_contracts.webhook_urls` has the rule). There is no redirect, no proxy, no retry and
no connection that is kept (`effect_adapters.http.exchange`), and of the answer only its status and
its Retry-After are looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from effect_adapters.base import Budget
from effect_adapters.http.classify import retry_after_seconds
from effect_adapters.http.connection import verifying_tls
from effect_adapters.http.exchange import Exchange, Origin, OutgoingRequest, Reply
from effect_contracts.webhook_urls import Networks, Receiver, may_be_reached

# A receiver has nothing to tell us but a status.
_ANSWER_BYTES_MAX: Final = 65_536


@dataclass(frozen=True, slots=True)
class Posted:
    """How one try has ended.

    Attributes:
        accepted: a 2xx answer is in.
        code: what it was, for people; stable.
        status: of a complete answer.
        retry_after_seconds: as the receiver asks, unbounded.
    """

    accepted: bool
    code: str
    status: int | None = None
    retry_after_seconds: float | None = None


async def post(
    receiver: Receiver,
    headers: Sequence[tuple[str, str]],
    body: bytes,
    budget: Budget,
    networks: Networks,
) -> Posted:
    """Post once, within the budget, and say how it has ended; raises nothing but cancellation."""
    fields = (("Content-Type", "application/json"), ("User-Agent", "effect-broker"), *headers)
    request = OutgoingRequest(
        method="POST",
        origin=Origin(receiver.scheme, receiver.host, receiver.port),
        target=receiver.target.encode("ascii"),
        headers=tuple((name.encode("ascii"), value.encode("ascii")) for name, value in fields),
        body=body,
    )
    ended = await Exchange(
        request,
        budget,
        lambda _: None,
        _ANSWER_BYTES_MAX,
        verifying_tls(),
        lambda address: may_be_reached(address, networks),
    ).run()
    if not isinstance(ended, Reply):
        return Posted(False, ended.code)
    if 200 <= ended.status < 300:
        return Posted(True, "accepted", ended.status)
    code = "refused"
    if 300 <= ended.status < 400:
        code = "redirected"
    elif ended.status == 410:
        code = "gone"
    elif ended.status >= 500:
        code = "receiver_failed"
    return Posted(False, code, ended.status, retry_after_seconds(ended, "retry-after"))
