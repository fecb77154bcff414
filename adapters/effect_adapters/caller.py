"""The target of an effect that its caller performs: what a worker can do about it all the same.

A worker looks and sends by the contract's `http` section, with the same downstream key, or looks by
a probe that was registered under the name that the contract gives. Without either it can do
neither, and says so: nothing was sent, nothing is known.

A registered probe is a function of one `ProbeCall` that returns a `Finding`, a coroutine function
or a plain one, which then runs in a thread. It asks and never changes anything.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Final, TypeAlias

from effect_adapters.base import Adapter, Answer, DispatchCall, Finding, ProbeCall, not_sent
from effect_contracts.canonical import JsonValue
from effect_contracts.document import CallerSettings, ContractDocument
from effect_contracts.facts import Verdict

__all__ = ["CallerAdapter", "Finding", "Probe", "ProbeCall", "Verdict"]

Probe: TypeAlias = Callable[[ProbeCall], Finding | Awaitable[Finding]]
"""A look-up at the target, in code of one's own."""

# A registered probe may say these. That an operation failed for good is the target's own word on
# an accepted operation, of which a caller's call has none.
_VERDICTS: Final = frozenset(
    {Verdict.COMMITTED, Verdict.NOT_COMMITTED, Verdict.MISMATCH, Verdict.UNKNOWN}
)
_CODE: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")


class CallerAdapter:
    """Implements `effect_adapters.base.Adapter` for contracts of the kind `caller`.

    Args:
        http: serves the `http` section of such contracts.
        probes: registered probes by name.
    """

    def __init__(self, http: Adapter, probes: Mapping[str, Probe] | None = None) -> None:
        self._http = http
        self._probes = dict(probes or {})
        # Documents are immutable by digest.
        self._by_http: dict[bytes, ContractDocument] = {}

    def identity(self, document: ContractDocument) -> str:
        """Return target and account, for example `caller:api.example.com#acct_1`."""
        return f"caller:{_settings(document).target}#{document.account}"

    def render(
        self, document: ContractDocument, arguments: JsonValue, downstream_key: str
    ) -> bytes:
        """Return the request that a worker may send; empty where it cannot."""
        by_http = self._over_http(document)
        return b"" if by_http is None else self._http.render(by_http, arguments, downstream_key)

    async def dispatch(self, call: DispatchCall) -> Answer:
        """Send as the contract's `http` section says."""
        by_http = self._over_http(call.document)
        if by_http is None:
            return not_sent("caller_performs")
        return await self._http.dispatch(replace(call, document=by_http))

    async def probe(self, call: ProbeCall) -> Finding:
        """Look by the registered probe, or as the `http` section says."""
        name = _settings(call.document).probe
        if name is None:
            by_http = self._over_http(call.document)
            if by_http is None:
                return Finding(Verdict.UNKNOWN, "no_probe")
            return await self._http.probe(replace(call, document=by_http))
        probe = self._probes.get(name)
        if probe is None:
            return Finding(Verdict.UNKNOWN, "probe_not_registered")
        try:
            async with asyncio.timeout(max(call.budget.remaining_seconds(), 0.0)):
                return _checked(await _asked(probe, call))
        except TimeoutError:
            return Finding(Verdict.UNKNOWN, "deadline")
        except Exception:
            # Whatever went wrong in it: nothing is known. Its text may hold anything.
            return Finding(Verdict.UNKNOWN, "probe_failed")

    def _over_http(self, document: ContractDocument) -> ContractDocument | None:
        """The document as a contract of the kind `http`, for the adapter that serves those."""
        http = _settings(document).http
        if http is None:
            return None
        digest = document.digest()
        if digest not in self._by_http:
            self._by_http[digest] = document.model_copy(update={"adapter": http})
        return self._by_http[digest]


async def _asked(probe: Probe, call: ProbeCall) -> object:
    if inspect.iscoroutinefunction(probe):
        return await probe(call)
    found = await asyncio.to_thread(probe, call)
    return await found if inspect.isawaitable(found) else found


def _checked(found: object) -> Finding:
    """What code of others says is read as strictly as what a target says."""
    if not isinstance(found, Finding) or found.verdict not in _VERDICTS:
        return Finding(Verdict.UNKNOWN, "probe_invalid")
    if not _CODE.fullmatch(found.code) or not all(isinstance(i, str) for i in found.external_ids):
        return Finding(Verdict.UNKNOWN, "probe_invalid")
    if found.verdict is Verdict.COMMITTED and len(found.external_ids) > 1:
        return replace(found, verdict=Verdict.MISMATCH)
    return found


def _settings(document: ContractDocument) -> CallerSettings:
    assert isinstance(document.adapter, CallerSettings), "the registry picks adapters by kind"
    return document.adapter
