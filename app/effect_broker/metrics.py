"""What one process counts, and how it is written for Prometheus.

Two kinds of numbers, told apart by their names. `effect_broker_*` is what this process has seen
since it began: counters and histograms that Prometheus sums over the instances.
`effect_broker_ledger_*` is what the database knows of all processes together
(`effect_broker.metrics_ledger`): the same from every instance that is asked, so a maximum, no sum.

Cardinality has a bound. The only label whose values come from outside is `tool`, and only tools
with a contract have one, `TOOLS_MAX` of them in a process; the rest is `other`. No tenant, no
operation key, no id and no text of a target is ever a label.

What is counted here is a committed change, seen at the store (`effect_broker.store.observing`), so
that it does not matter whether a step, an operator or a webhook made it. A change whose COMMIT was
left without an answer is counted as a store error of the kind `CommitUnknown`, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import datetime
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import choose_encoder

from effect_broker import __version__
from effect_broker.metrics_ledger import LedgerCollector, LedgerNumbers
from effect_broker.protocol.changes import Grant, GrantKind, ProbeStart
from effect_broker.protocol.ports import (
    AddEvidence,
    AddReceipt,
    Advance,
    AttemptRow,
    Change,
    EffectMissing,
    KeepPace,
    LoseAttempt,
    RecordOutcome,
    Requeue,
    Snapshot,
    StaleWrite,
    StartAttempt,
    StoreError,
    Write,
)
from effect_contracts.facts import Alert, EffectState, EvidenceSource, Outcome, SafetyClass

# Tools that one process tells apart. With some twenty series for each and seven histograms of a
# dozen buckets, this is what a Prometheus takes from one instance without a thought.
TOOLS_MAX: Final = 50
OTHER: Final = "other"

# A commit in Postgres takes some milliseconds; a target that is slow, its deadline.
_SECONDS: Final = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
# What is settled by evidence takes its bounds: seconds to days.
_LONG_SECONDS: Final = (0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 86400.0)
# What is left of a key's life when it is sent again. The lowest bucket is a broken promise.
_REMAINING_SECONDS: Final = (0.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 43200.0, 86400.0, 604800.0)

# What becomes of effects, under the names of the label `event`.
_SUBMIT_EVENTS: Final = ("submitted", "deduplicated", "conflicted")
_STATE_EVENTS: Final = {
    EffectState.SUCCEEDED: "succeeded",
    EffectState.FAILED_FINAL: "failed",
    EffectState.CANCELLED: "cancelled",
    EffectState.COMPENSATED: "compensated",
    EffectState.OUTCOME_UNKNOWN: "unknown",
    EffectState.MANUAL_REVIEW: "review",
}
_IN_DOUBT: Final = frozenset({Outcome.AMBIGUOUS, Outcome.PRESUMED_AMBIGUOUS, Outcome.IN_PROGRESS})
_FENCED: Final = ("grant_stale", "grant_owned", "probe_stale", "late_outcome", "guard")
_EVENT_DELIVERIES: Final = ("accepted", "refused", "dead", "paused")
_EXPIRED: Final = ("attempt", "run", "orphan", "drill")
_STORE_ERRORS: Final = ("StoreUnavailable", "StoreBusy", "CommitUnknown", "StaleWrite", OTHER)


class Metrics:
    """The numbers of one process.

    Args:
        process: `api`, `worker` or `reconciler`.
    """

    def __init__(self, process: str) -> None:
        self._registry = registry = CollectorRegistry()
        self._ledger = LedgerCollector()
        self._tools: set[str] = set()
        with suppress(OSError):
            ProcessCollector(namespace="effect_broker", registry=registry)
        build = _gauge(registry, "build_info", "Always 1.", ("version", "process"))
        build.labels(__version__, process).set(1)
        self._effects = _counter(
            registry,
            "effects",
            "Effects by what became of them: submitted, deduplicated (the same request again), "
            "conflicted (another request under a known key), succeeded, failed, cancelled, "
            "compensated, unknown (the outcome was lost), review (a person has to look).",
            ("tool", "event"),
        )
        self._attempts = _counter(
            registry, "attempts", "Permissions to send that were granted.", ("tool", "safety")
        )
        self._turns = _counter(
            registry,
            "target_busy",
            "Turns given to effects whose target has no room under its contract's limits.",
            ("tool",),
        )
        self._outcomes = _counter(
            registry,
            "attempt_outcomes",
            "What attempts have shown; presumed_ambiguous: the sender was lost.",
            ("tool", "outcome"),
        )
        self._evidence = _counter(
            registry,
            "evidence",
            "Facts about a target that are no answer of an attempt; look-ups have source=probe.",
            ("tool", "source", "verdict"),
        )
        self._correctness(registry)
        self._latencies(registry)

    def _correctness(self, registry: CollectorRegistry) -> None:
        """Make what alerts look at. None has a label from outside, so each is there from the first
        scrape on with 0: the first increase of a series that was not there goes unseen."""
        self._conflicts = _counter(
            registry, "payload_conflicts", "Submits with another request under a known key."
        )
        self._expired_retries = _counter(
            registry, "retries_after_key_expiry", "Sends under a key that the target may forget."
        )
        self._fenced = _counter(
            registry,
            "fenced",
            "Writes and permissions that came too late and changed nothing: grant_stale, "
            "grant_owned, probe_stale; late_outcome (its sender had been given up; the fact was "
            "kept); guard (the database refused a write: a bug, or a hand in it).",
            ("kind",),
            _FENCED,
        )
        self._expirations = _counter(
            registry,
            "lease_expirations",
            "Leases that ran out: of an attempt whose sender is lost, of runs of dead workers, of "
            "runs that a worker had lost sight of, of drills.",
            ("kind",),
            _EXPIRED,
        )
        self._alerts = _counter(
            registry,
            "alerts",
            "Final effects whose target says something else.",
            ("alert",),
            [alert.value for alert in Alert],
        )
        self._requeues = _counter(registry, "requeues", "Runs that the reconcile loop has started.")
        self._store_errors = _counter(
            registry, "store_errors", "Transactions that failed.", ("kind",), _STORE_ERRORS
        )
        self._event_deliveries = _counter(
            registry,
            "event_deliveries",
            "Tries to deliver events to subscriptions: accepted or refused; and events that were "
            "given up (dead), and subscriptions that were paused.",
            ("outcome",),
            _EVENT_DELIVERIES,
        )
        self._refusals = _counter(
            registry, "submits_refused", "Submits that were refused as they are.", ("code",)
        )

    def _latencies(self, registry: CollectorRegistry) -> None:
        tool = ("tool",)
        self._submit = _histogram(
            registry, "submit_seconds", "A submit, until it is durable.", tool, _SECONDS
        )
        self._reservation = _histogram(
            registry,
            "reservation_seconds",
            "From the submit to the first permission to send.",
            tool,
            _SECONDS,
        )
        self._dispatch = _histogram(
            registry,
            "dispatch_seconds",
            "From the permission to send to the recorded outcome.",
            tool,
            _SECONDS,
        )
        self._probe = _histogram(
            registry,
            "probe_seconds",
            "From the begin of a look-up to its recorded finding.",
            tool,
            _SECONDS,
        )
        self._reconciliation = _histogram(
            registry,
            "reconciliation_seconds",
            "From the first lost answer to the settlement.",
            tool,
            _LONG_SECONDS,
        )
        self._settlement = _histogram(
            registry, "settlement_seconds", "From submit to settlement.", tool, _LONG_SECONDS
        )
        self._remaining = _histogram(
            registry,
            "key_remaining_seconds",
            "What was left of the downstream key's life when it was sent again.",
            tool,
            _REMAINING_SECONDS,
        )

    def tool(self, name: str) -> str:
        """Return the label of a tool that has a contract."""
        if name not in self._tools:
            if len(self._tools) >= TOOLS_MAX:
                return OTHER
            self._tools.add(name)
            for event in (*_SUBMIT_EVENTS, *_STATE_EVENTS.values()):
                self._effects.labels(name, event)
        return name

    # Submits ----------------------------------------------------------------------------------

    def submitted(self, tool: str, *, created: bool, seconds: float) -> None:
        """A submit was accepted, as a new effect or as the same request again."""
        label = self.tool(tool)
        self._effects.labels(label, "submitted" if created else "deduplicated").inc()
        self._submit.labels(label).observe(seconds)

    def conflicted(self, tool: str | None) -> None:
        """A submit met another request under its key; `tool` is None without a contract."""
        self._effects.labels(self.tool(tool) if tool else OTHER, "conflicted").inc()
        self._conflicts.inc()

    def refused(self, code: str) -> None:
        """A submit was refused; `code` is the stable code of the problem."""
        self._refusals.labels(code).inc()

    # The store --------------------------------------------------------------------------------

    def loaded(self, snapshot: Snapshot) -> None:
        """Nothing is counted of a read."""

    def changed(self, snapshot: Snapshot, change: Change[Any]) -> None:
        """Count what a committed change has done, or what one without writes was too late for."""
        if not change.writes:
            self._too_late(change.result)
            return
        tool = self.tool(snapshot.intent.tool)
        for write in change.writes:
            self._count(tool, snapshot, write)

    def failed(self, problem: StoreError) -> None:
        """Count a failed transaction."""
        if isinstance(problem, EffectMissing):
            return
        kind = type(problem).__name__
        self._store_errors.labels(kind if kind in _STORE_ERRORS else OTHER).inc()
        if isinstance(problem, StaleWrite):
            self._fenced.labels("guard").inc()

    def _too_late(self, result: object) -> None:
        if isinstance(result, Grant):
            self._fenced.labels(f"grant_{GrantKind(result.kind).value}").inc()
        elif isinstance(result, ProbeStart):
            self._fenced.labels("probe_stale").inc()

    def _count(self, tool: str, snapshot: Snapshot, write: Write) -> None:
        if isinstance(write, Advance):
            self._moved(tool, snapshot, write)
        elif isinstance(write, StartAttempt):
            self._attempted(tool, snapshot, write)
        elif isinstance(write, KeepPace):
            if write.attempt_id is None:
                self._turns.labels(tool).inc()
        elif isinstance(write, RecordOutcome):
            self._recorded(tool, snapshot, write)
        elif isinstance(write, LoseAttempt):
            self._outcomes.labels(tool, Outcome.PRESUMED_AMBIGUOUS.value).inc()
            self._expirations.labels("attempt").inc()
        elif isinstance(write, AddEvidence):
            self._evidence.labels(tool, write.source.value, write.verdict.value).inc()
            if write.source is EvidenceSource.PROBE:
                self._probe.labels(tool).observe(_seconds(write.began_at, snapshot.now))
        elif isinstance(write, AddReceipt):
            self._settled(tool, snapshot)
        elif isinstance(write, Requeue):
            self._requeues.inc()

    def _moved(self, tool: str, snapshot: Snapshot, advance: Advance) -> None:
        event = _STATE_EVENTS.get(advance.state)
        if event is not None and advance.state is not snapshot.intent.state:
            self._effects.labels(tool, event).inc()
        if advance.alert is not None:
            self._alerts.labels(advance.alert.value).inc()

    def _attempted(self, tool: str, snapshot: Snapshot, started: StartAttempt) -> None:
        self._attempts.labels(tool, snapshot.intent.safety.value).inc()
        if not snapshot.attempts:
            waited = _seconds(snapshot.intent.created_at, started.started_at)
            self._reservation.labels(tool).observe(waited)
        expires_at = snapshot.urgency.key_expires_at
        if expires_at is not None:
            left = (expires_at - started.started_at).total_seconds()
            self._remaining.labels(tool).observe(left)
            if left <= 0 and _in_doubt(snapshot):
                self._expired_retries.inc()

    def _recorded(self, tool: str, snapshot: Snapshot, recorded: RecordOutcome) -> None:
        row = _attempt(snapshot, recorded)
        self._outcomes.labels(tool, recorded.outcome.value).inc()
        self._dispatch.labels(tool).observe(_seconds(row.fact.started_at, recorded.recorded_at))
        if row.fact.outcome is Outcome.PRESUMED_AMBIGUOUS:
            self._fenced.labels("late_outcome").inc()

    def _settled(self, tool: str, snapshot: Snapshot) -> None:
        created_at = snapshot.intent.created_at
        self._settlement.labels(tool).observe(_seconds(created_at, snapshot.now))
        lost_at = [
            min(a.fact.recorded_at or a.fact.deadline_at, snapshot.now)
            for a in snapshot.attempts
            if a.fact.outcome in _IN_DOUBT
        ]
        if lost_at:
            self._reconciliation.labels(tool).observe(_seconds(min(lost_at), snapshot.now))

    # Repair and the process -------------------------------------------------------------------

    def expired(self, kind: str, count: int) -> None:
        """Leases have run out: `run` of dead workers, `orphan` of lost sight, `drill`."""
        if count:
            self._expirations.labels(kind).inc(count)

    def event_delivery(self, outcome: str) -> None:
        """A try to deliver an event has ended, an event was given up, a subscription paused."""
        self._event_deliveries.labels(outcome).inc()

    def watch(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Show what the process knows of itself at the moment of a scrape."""
        _gauge(self._registry, name, text).set_function(value)

    # Reading ----------------------------------------------------------------------------------

    def render(self, accept: str, ledger: LedgerNumbers | None = None) -> tuple[bytes, str]:
        """Return the numbers and their media type, for what a scraper accepts.

        `ledger` is left out where a process does not tell of the database.
        """
        encode, media_type = choose_encoder(accept)
        if ledger is None:
            return encode(self._registry), media_type
        self._ledger.numbers = ledger
        return encode(_Both(self._registry, self._ledger)), media_type


class _Both:
    """A registry with one collector more, for an encoder."""

    def __init__(self, registry: CollectorRegistry, ledger: LedgerCollector) -> None:
        self._registry = registry
        self._ledger = ledger

    def collect(self) -> Iterable[Any]:
        yield from self._registry.collect()
        yield from self._ledger.collect()


def _in_doubt(snapshot: Snapshot) -> bool:
    """Whether an idempotent effect is sent again on the strength of its key alone."""
    return snapshot.intent.safety is SafetyClass.IDEMPOTENT and any(
        a.fact.outcome is None or a.fact.outcome in _IN_DOUBT for a in snapshot.attempts
    )


def _attempt(snapshot: Snapshot, recorded: RecordOutcome) -> AttemptRow:
    return next(a for a in snapshot.attempts if a.attempt_id == recorded.attempt_id)


def _seconds(begin: datetime, end: datetime) -> float:
    """Both are of the database clock, which may have been set back between them."""
    return max((end - begin).total_seconds(), 0.0)


def _counter(
    registry: CollectorRegistry,
    name: str,
    text: str,
    labels: tuple[str, ...] = (),
    known: Iterable[str] = (),
) -> Counter:
    made = Counter(f"effect_broker_{name}", text, labels, registry=registry)
    for value in known:
        made.labels(value)
    return made


def _gauge(
    registry: CollectorRegistry, name: str, text: str, labels: tuple[str, ...] = ()
) -> Gauge:
    return Gauge(f"effect_broker_{name}", text, labels, registry=registry)


def _histogram(
    registry: CollectorRegistry,
    name: str,
    text: str,
    labels: tuple[str, ...],
    buckets: tuple[float, ...],
) -> Histogram:
    return Histogram(f"effect_broker_{name}", text, labels, buckets=buckets, registry=registry)
