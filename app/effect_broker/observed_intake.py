"""The intake of a served process: each submit is counted, timed and traced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

from effect_broker.intake import EffectRequest, Intake, Tenant
from effect_broker.protocol.ports import StoreError
from effect_broker.protocol.submission import Submitted
from effect_broker.tracing import Spans
from effect_contracts.errors import EffectError, PayloadConflict


class SubmitCounts(Protocol):
    """What is told of submits."""

    def submitted(self, tool: str, *, created: bool, seconds: float) -> None:
        """One was accepted."""

    def conflicted(self, tool: str | None) -> None:
        """One met another request under its key; the tool is None where it has no contract."""

    def refused(self, code: str) -> None:
        """One was refused by a stable code."""


class ObservedIntake(Intake):
    """An intake that tells of each submit.

    Args:
        boot_seconds: the process's clock.
    """

    def __init__(
        self, *parts: Any, counts: SubmitCounts, spans: Spans, boot_seconds: Callable[[], float]
    ) -> None:
        super().__init__(*parts)
        self._counts = counts
        self._spans = spans
        self._boot_seconds = boot_seconds

    async def submit(self, tenant: Tenant, request: EffectRequest) -> Submitted:
        """As `Intake.submit`; the stored context is that of the span, or the caller's own."""
        began = self._boot_seconds()
        with self._spans.submit(request.traceparent) as span:
            try:
                submitted = await super().submit(
                    tenant, replace(request, traceparent=span.traceparent)
                )
            except EffectError as refusal:
                span.refused(refusal.code.value)
                if isinstance(refusal, PayloadConflict):
                    self._counts.conflicted(await self._with_contract(request.tool))
                else:
                    self._counts.refused(refusal.code.value)
                raise
            span.ended(submitted.intent, replayed=not submitted.created)
        self._counts.submitted(
            submitted.intent.tool,
            created=submitted.created,
            seconds=self._boot_seconds() - began,
        )
        return submitted

    async def _with_contract(self, tool: str) -> str | None:
        """Return the tool if it has a contract: what a caller makes up is no label."""
        try:
            return None if await self._store.active_contract(tool) is None else tool
        except StoreError:
            return None  # the refusal is what the caller has to hear
