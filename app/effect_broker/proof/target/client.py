"""Owns the typed face of the control API, for tests, the demo and benchmarks.

Synchronous. In an asyncio test that also runs the sender, wait in a thread
(``await asyncio.to_thread(target.wait_arrivals, 1)``), else the sender cannot run meanwhile.
"""

from __future__ import annotations

import base64
from types import TracebackType
from typing import Any, Self

import httpx
from pydantic import BaseModel, ConfigDict

from effect_broker.proof.target.messages import BodyState
from effect_broker.proof.target.modes import Mode, ModeName

WAIT_SECONDS = 10.0
_MARGIN_SECONDS = 10.0
"""How much longer than the target's own wait the client waits for the answer."""

_READ = ConfigDict(strict=True, frozen=True, extra="forbid")


class TargetRefused(Exception):
    """The control API refused a request; the text is its reason."""


class WaitOver(Exception):
    """The counts were not reached in time; the text holds what they were."""


class Counts(BaseModel):
    """`arrivals` are the mutating requests received, `lookups` the reads, `held` those waiting."""

    model_config = _READ

    arrivals: int
    lookups: int
    effects: int
    held: int


class ArrivalRow(BaseModel):
    """One request as it was received.

    `received_monotonic` is CLOCK_MONOTONIC in seconds, and so is `left_monotonic`: when the target
    saw that the client had gone before it had the whole answer, None where it had not.
    """

    model_config = _READ

    n: int
    kind: str
    method: str
    path: str
    query: str
    mutating: bool
    headers: list[list[str]]
    downstream_key: str | None
    correlation_key: str | None
    body_length: int
    body_digest: str
    body_base64: str
    body_state: BodyState
    plan: str
    received_monotonic: float
    received_at: float
    left_monotonic: float | None

    @property
    def body(self) -> bytes:
        return base64.b64decode(self.body_base64)

    def header(self, name: str) -> str | None:
        return next((value for field, value in self.headers if field == name), None)


class EffectRow(BaseModel):
    """One applied mutation. `committed_at` is the target's wall clock, in seconds."""

    model_config = _READ

    n: int
    kind: str
    object_id: str
    name: str | None
    downstream_key: str | None
    correlation_key: str | None
    arrival_n: int
    item: int | None
    content: dict[str, Any]
    committed_at: float


class LedgerView(Counts):
    """The ledger at one moment. `keys`, `correlation_keys` and `body_digests` are each distinct.

    `broken` counts connections that brought no whole request; they are no arrivals.
    """

    broken: int
    keys: list[str]
    correlation_keys: list[str]
    body_digests: list[str]
    distinct_keys_counted: int
    arrival_rows: list[ArrivalRow] = []
    effect_rows: list[EffectRow] = []


class TargetClient:
    """Controls one target. Safe for several threads."""

    def __init__(self, base_url: str) -> None:
        self.base_url = base_url
        self._http = httpx.Client(
            base_url=f"{base_url}/_control",
            trust_env=False,
            timeout=_MARGIN_SECONDS,
            verify=False,  # noqa: S501 - loopback without TLS; loading a trust store costs 0.1 s
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    # -- what the target does --------------------------------------------------------------------

    def set_mode(self, kind: str, mode: ModeName, **settings: Any) -> None:
        """Set how `kind` treats keys; `settings` are the other fields of `modes.Mode`."""
        checked = Mode.model_validate({"mode": mode, **settings})
        self._ask("POST", "/modes", {"kind": kind, **checked.model_dump(mode="json")})

    def script(
        self,
        *plans: str,
        kind: str | None = None,
        method: str | None = None,
        key: str | None = None,
        repeat_last: bool = False,
    ) -> None:
        """Queue `plans`, one for each matching request. Raises `TargetRefused`.

        `method` of `None` is every mutating request; ``"GET"`` is for look-ups, ``"*"`` for all.
        """
        self._ask(
            "POST",
            "/faults",
            {
                "script": list(plans),
                "kind": kind,
                "method": method,
                "key": key,
                "repeat_last": repeat_last,
            },
        )

    def plans_left(self) -> list[str]:
        """The queued plans that no request has taken."""
        left: list[str] = self._ask("GET", "/faults").json()["left"]
        return left

    def release(self, name: str | None = None) -> int:
        """Let holds, gates and hangs of this name (`None`: all) go; returns how many waited."""
        released: int = self._ask("POST", "/release", {"name": name}).json()["released"]
        return released

    def advance_clock(self, seconds: float) -> None:
        """Move the target's clock forward, for key retention and search lag."""
        self._ask("POST", "/clock", {"advance_seconds": seconds})

    def reset(self) -> None:
        self._ask("POST", "/reset", {})

    # -- what the target knows -------------------------------------------------------------------

    def ledger(
        self, *, kind: str | None = None, key: str | None = None, rows: bool = True
    ) -> LedgerView:
        """Counts and rows of one kind and key (`None`: of all)."""
        asked = _present(kind=kind, key=key, rows="1" if rows else "0")
        answer = self._ask("GET", "/ledger", parameters=asked)
        return LedgerView.model_validate_json(answer.content)

    def wait(
        self,
        *,
        arrivals: int | None = None,
        lookups: int | None = None,
        effects: int | None = None,
        held: int | None = None,
        kind: str | None = None,
        key: str | None = None,
        timeout_seconds: float = WAIT_SECONDS,
    ) -> Counts:
        """Return once every named count is reached. Raises `WaitOver`."""
        asked = _present(
            arrivals=arrivals,
            lookups=lookups,
            effects=effects,
            held=held,
            kind=kind,
            key=key,
            timeout=timeout_seconds,
        )
        answer = self._ask(
            "GET", "/wait", parameters=asked, timeout_seconds=timeout_seconds + _MARGIN_SECONDS
        )
        if answer.status_code == 408:
            raise WaitOver(f"after {timeout_seconds:g} s the target holds {answer.text}")
        return Counts.model_validate_json(answer.content)

    def wait_arrivals(
        self,
        arrivals: int,
        *,
        kind: str | None = None,
        key: str | None = None,
        timeout_seconds: float = WAIT_SECONDS,
    ) -> Counts:
        """Return once so many mutating requests are in the ledger. Raises `WaitOver`."""
        return self.wait(arrivals=arrivals, kind=kind, key=key, timeout_seconds=timeout_seconds)

    def wait_effects(
        self,
        effects: int,
        *,
        kind: str | None = None,
        key: str | None = None,
        timeout_seconds: float = WAIT_SECONDS,
    ) -> Counts:
        """Return once so many effects are committed. Raises `WaitOver`."""
        return self.wait(effects=effects, kind=kind, key=key, timeout_seconds=timeout_seconds)

    def wait_held(self, held: int = 1, *, timeout_seconds: float = WAIT_SECONDS) -> Counts:
        """Return once so many requests wait at a hold, gate or hang. Raises `WaitOver`."""
        return self.wait(held=held, timeout_seconds=timeout_seconds)

    def _ask(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        *,
        parameters: dict[str, str] | None = None,
        timeout_seconds: float = _MARGIN_SECONDS,
    ) -> httpx.Response:
        answer = self._http.request(
            method, path, json=body, params=parameters, timeout=timeout_seconds
        )
        if answer.status_code not in (200, 408):
            raise TargetRefused(f"{method} {path}: {answer.status_code} {answer.text}")
        return answer


def _present(**values: object) -> dict[str, str]:
    return {name: str(value) for name, value in values.items() if value is not None}
