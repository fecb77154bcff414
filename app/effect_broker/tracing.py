"""Traces: one effect through the API, the queue and the workers, as spans of its caller's trace.

A submit may bring a `traceparent` header (W3C Trace Context). The context of the submit's span, or
the caller's own where this process traces nothing, is stored with the intent, and each step of each
run is a span below it, in whatever process and however much later it runs. The queue carries none
of it. Targets are told nothing of it: the bytes of a request are the same on every attempt.

Spans name ids, ordinals, states and codes, the contract, and a digest of the operation key; never
arguments, answers, headers or texts of errors. `tracestate` and `baggage` are dropped for it.

OpenTelemetry's API is all that is needed here. Without the extra `otel`, or with tracing off,
nothing of the SDK is imported, and a step costs what a function call does.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, Protocol
from uuid import UUID

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from effect_broker import __version__
from effect_broker.config import ConfigurationProblem
from effect_broker.log_events import event
from effect_broker.protocol.ports import (
    AddEvidence,
    AddReceipt,
    Advance,
    Change,
    Intent,
    RecordOutcome,
    Snapshot,
    StartAttempt,
    StoreError,
    Write,
)

_log = logging.getLogger(__name__)

_HEADER: Final = "traceparent"
_PROPAGATOR: Final = TraceContextTextMapPropagator()
# A context without a span: whatever surrounds the engine's tasks is no parent of ours.
_NOWHERE: Final = Context()
_KINDS: Final = {"dispatch": SpanKind.CLIENT, "probe": SpanKind.CLIENT}
# The contexts of effects under way in this process; one is some 100 bytes.
_REMEMBERED_MAX: Final = 2000
# What a collector that is away may cost at the end of a process.
_SHUTDOWN_SECONDS: Final = 5.0

Value = str | int | bool | None


def key_digest(operation_key: str) -> str:
    """Return what a span calls an operation key: the first half of its SHA-256 in hex."""
    return hashlib.sha256(operation_key.encode()).hexdigest()[:32]


class TraceparentReads(Protocol):
    """What is asked of the store."""

    async def traceparent(self, tenant_id: UUID, effect_id: UUID) -> str | None:
        """Return what was stored with an intent.

        Raises:
            StoreError.
        """


class Submitting:
    """The span of one submit."""

    def __init__(self, span: Span) -> None:
        self._span = span
        self.traceparent = _written(trace.set_span_in_context(span, _NOWHERE))

    def ended(self, intent: Intent, *, replayed: bool) -> None:
        """Say what has come of it."""
        _set(self._span, _named(intent) | {"replayed": replayed, "state": intent.state.value})

    def refused(self, code: str) -> None:
        """Say by which stable code it was refused."""
        _set(self._span, {"problem": code})


class Spans:
    """The spans of one process; also a `StoreObserver`, which tells them what was committed.

    Args:
        tracer: None to trace nothing. A context that a caller sends is stored all the same.
        reads: where the context of an effect is found; without, each step is a trace of its own.
    """

    def __init__(self, tracer: Tracer | None = None, reads: TraceparentReads | None = None) -> None:
        self._tracer = tracer
        self._reads = reads
        self._known: OrderedDict[UUID, Context] = OrderedDict()

    @property
    def tracing(self) -> bool:
        """Whether spans are made."""
        return self._tracer is not None

    def reading(self, reads: TraceparentReads) -> Spans:
        """Return these spans, for a process that has a store."""
        return Spans(self._tracer, reads)

    @contextmanager
    def submit(self, header: str | None) -> Iterator[Submitting]:
        """Make the span of a submit, below the context that its caller has sent.

        A header that is not valid is ignored, as W3C Trace Context asks for: it is no reason to
        refuse.
        """
        parent = _NOWHERE if header is None else _read(header)
        if self._tracer is None:
            yield Submitting(trace.get_current_span(parent))
            return
        # An exception's text is nothing to export.
        with self._tracer.start_as_current_span(
            "effect.submit",
            parent,
            SpanKind.SERVER,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            yield Submitting(span)

    @asynccontextmanager
    async def step(
        self, name: str, tenant_id: str, effect_id: str
    ) -> AsyncIterator[Callable[[Mapping[str, Any]], None]]:
        """Make the span of a step, below the effect's submit; the result is told at its end."""
        if self._tracer is None:
            yield _nobody
            return
        parent = await self._context(UUID(tenant_id), UUID(effect_id))
        with self._tracer.start_as_current_span(
            f"effect.{name}",
            parent,
            _KINDS.get(name, SpanKind.INTERNAL),
            {"effect_broker.effect_id": effect_id},
            record_exception=False,
            set_status_on_exception=False,
        ) as span:

            def ended(result: Mapping[str, Any]) -> None:
                _set(span, {key: result.get(key) for key in ("next", "state", "reason")})

            yield ended

    async def _context(self, tenant_id: UUID, effect_id: UUID) -> Context:
        if (known := self._known.get(effect_id)) is not None:
            self._known.move_to_end(effect_id)
            return known
        if self._reads is None:
            return _NOWHERE
        try:
            stored = await self._reads.traceparent(tenant_id, effect_id)
        except StoreError:
            return _NOWHERE  # the step meets the same store and says so
        found = _NOWHERE if stored is None else _read(stored)
        self._known[effect_id] = found
        if len(self._known) > _REMEMBERED_MAX:
            self._known.popitem(last=False)
        return found

    # The store's word -------------------------------------------------------------------------

    def loaded(self, snapshot: Snapshot) -> None:
        """Name the effect and its contract in the current span."""
        span = trace.get_current_span()
        if span.is_recording():
            _set(span, _named(snapshot.intent))

    def changed(self, snapshot: Snapshot, change: Change[Any]) -> None:
        """Say in the current span what was committed."""
        span = trace.get_current_span()
        if not span.is_recording():
            return
        _set(span, _named(snapshot.intent))
        for write in change.writes:
            _tell(span, write)

    def failed(self, problem: StoreError) -> None:
        """Name the kind of a failure in the current span."""
        _set(trace.get_current_span(), {"store_error": type(problem).__name__})


def _nobody(_result: Mapping[str, Any]) -> None:
    """Take the result of a step that nobody traces."""


def _tell(span: Span, write: Write) -> None:
    if isinstance(write, StartAttempt):
        _set(span, {"ordinal": write.ordinal})
    elif isinstance(write, RecordOutcome):
        _set(span, {"outcome": write.outcome.value, "code": write.code, "status": write.status})
    elif isinstance(write, AddEvidence):
        _set(
            span,
            {"source": write.source.value, "verdict": write.verdict.value, "code": write.code},
        )
    elif isinstance(write, AddReceipt):
        _set(span, {"receipt_id": str(write.receipt_id)})
    elif isinstance(write, Advance):
        # By the moment in the span one sees where the time went: to the commit or to the target.
        told = {"effect_broker.state": write.state.value, "effect_broker.reason": write.reason}
        span.add_event(write.kind, told)


def _named(intent: Intent) -> dict[str, Value]:
    return {
        "effect_id": str(intent.effect_id),
        "operation_key_digest": key_digest(intent.operation_key),
        "tool": intent.tool,
        "contract": intent.contract_name,
        "contract_version": intent.contract_version,
        "safety": intent.safety.value,
    }


def _set(span: Span, values: Mapping[str, Value]) -> None:
    span.set_attributes(
        {f"effect_broker.{name}": value for name, value in values.items() if value is not None}
    )


def _read(header: str) -> Context:
    return _PROPAGATOR.extract({_HEADER: header}, _NOWHERE)


def _written(context: Context) -> str | None:
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier, context)
    return carrier.get(_HEADER)


# The SDK ---------------------------------------------------------------------------------------


@asynccontextmanager
async def exported(process: str, instance: str, *, on: bool) -> AsyncIterator[Spans]:
    """Give the spans of a process, which go to the collector that the `OTEL_*` variables name.

    The provider is this program's alone and not the process-wide one, so that no library writes
    spans of its own, with SQL or headers, into it.

    Raises:
        ConfigurationProblem: tracing is on and the extra `otel` is not installed.
    """
    if not on:
        yield Spans()
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise ConfigurationProblem(
            "EFFECT_BROKER_TRACING: OpenTelemetry's SDK is not installed; install "
            "effect-broker[otel], or leave tracing off"
        ) from None
    about = {"effect_broker.process": process, "service.instance.id": instance}
    if not os.environ.get("OTEL_SERVICE_NAME"):
        about["service.name"] = "effect-broker"
    provider = TracerProvider(resource=Resource.create(about), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    try:
        yield Spans(provider.get_tracer("effect_broker", __version__))
    finally:
        try:
            async with asyncio.timeout(_SHUTDOWN_SECONDS):
                await asyncio.to_thread(provider.shutdown)
        except TimeoutError:
            _log.warning("the last spans were not taken in time", extra=event("spans_lost"))
