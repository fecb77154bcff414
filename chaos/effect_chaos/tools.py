"""The tools of the workload: what each one's contract says, how its target behaves, and what may
legally become of an effect.

The promise that the judgement rests on: every contract here is true of its target, and patient. So
the broker owes more than "no duplicate": an effect whose class can converge has to converge, and
only those may wait for a person whose class leaves them no other end. A contract that is impatient
or a target that lies belongs to the crash matrix, not here.

The documents are those of the catalog with shorter times; `document` gives their text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from effect_chaos.records import Safety
from effect_contracts.catalog import catalog_documents

Json = dict[str, Any]

TABLE_KIND: Final = "entries"
"""The kind of what transactional tools make: rows of the demo's ledger."""

# Seconds. Short, so that a run of half a minute holds many lost answers; longer than what a busy
# machine of two cores loses between two steps.
ATTEMPT_DEADLINE: Final = 2.0
TRANSIT: Final = 0.3
CLOCK_MARGIN: Final = 0.2
SEARCH_LAG: Final = 0.5
SETTLEMENT_BOUND: Final = 4.0  # the lag, the longest delay before a commit, and a busy target
KEY_RETENTION: Final = 9.0  # the schedule of three attempts takes 7.2
KEY_RETENTION_KEPT: Final = 13.0  # a busy target reads a request late, and must know its key
HORIZON: Final = 3600.0  # no run is that long: a look-up is never given up
# Waits double up to these: where a busy machine loses many answers at once, effects that ask again
# every second would keep it so busy that it never answers in time.
BACKOFF_CAP: Final = 8.0
PROBE_CAP: Final = 6.0
ATTEMPTS_PATIENT: Final = 100  # an outage of a minute does not spend them
ATTEMPTS_FEW: Final = 3

SUCCEEDED: Final = ("succeeded",)
REFUSED: Final = ("failed_final",)
EITHER: Final = ("succeeded", "failed_final")

LOST: Final = (
    "commit;FIN",
    "commit;RST",
    "commit;hang(2.5)",
    "commit;status(500)",
    "commit;status(503)",
    "commit;status(504)",
    "commit;trunc",
    "commit;trunc(chunked)",
    "commit;trunc(close)",
    "commit;trunc(head)",
    "commit;drip(1, 0.4, 12)",
    "commit;garbage",
    "commit;empty(204)",
    "commit;type(text/html)",
)
"""The target has done it, and its answer does not say so."""
UNDONE: Final = (
    "FIN",
    "RST",
    "hang(2.5)",
    "status(500)",
    "status(503)",
    "trunc",
    "garbage",
    "redirect(307, http://127.0.0.1:1/elsewhere)",
)
"""The target has done nothing, and its answer does not say that either."""
REFUSED_FOR_NOW: Final = ('status(429, {"error": "slow_down"}, {"retry-after": "1"})',)
SLOW: Final = ("delay(0.6)", "delay(1.0)", "commit;delay(1.0);ok")
LATE: Final = ("delay(3.0)",)
"""Done long after the caller has hung up: fair only where a key protects from the second."""
BLIND: Final = (
    "FIN",
    "hang(2.5)",
    "status(500)",
    "status(404)",
    "trunc(close)",
    "garbage",
    "type(text/html)",
    'status(200, {"data": []})',
    'status(200, {"data": [], "has_more": true})',
)
"""What a look-up may meet; none of these is an answer that proves anything."""


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool with its contract and its target.

    Attributes:
        kind: the kind of object at the target; `TABLE_KIND` for the transactional ones.
        catalog: the document of the catalog that the contract is made of.
        mode: how the target treats keys and look-ups of the kind; None for the database.
        members, retry, probe: what the contract says otherwise than the catalog.
        plans: what may happen to a request, beside the honest answer.
        blind: what may happen to a look-up.
        weight: how often the workload uses it, against the others.
        legal_states, effects_most, may_park: see `records.Operation`.
    """

    name: str
    kind: str
    safety: Safety
    catalog: str
    mode: Mapping[str, Any] | None = None
    members: Mapping[str, Any] = field(default_factory=dict)
    retry: Mapping[str, Any] = field(default_factory=dict)
    plans: tuple[str, ...] = ()
    blind: tuple[str, ...] = ()
    weight: int = 1
    legal_states: tuple[str, ...] = SUCCEEDED
    effects_most: int = 1
    may_park: bool = False

    @property
    def transactional(self) -> bool:
        """Whether its effects are rows of the database and never requests."""
        return self.safety is Safety.TRANSACTIONAL

    def arguments(self, marker: str, amount: int) -> Json:
        """Return arguments that its contract takes; `marker` is in them."""
        if self.transactional:
            credit = "a" if self.legal_states == REFUSED else "b"
            entry = {"debit": "a", "credit": credit, "amount": amount, "currency": "eur"}
            return {**entry, "memo": marker}
        charge = {"order": marker, "amount": amount, "currency": "eur"}
        if self.legal_states == REFUSED:
            charge["amount"] = -amount
        return {**charge, "customer_email": self.secret(marker)}

    def secret(self, marker: str) -> str:
        """The part of the arguments that the contract calls sensitive."""
        return marker if self.transactional else f"secret-{marker[4:]}@example.test"

    def document(self, origin: str) -> str:
        """Return its contract as JSON text, for a target at `origin`."""
        document: Json = json.loads(catalog_documents()[self.catalog].canonical())
        document |= {
            "name": self.name.replace(".", "-").replace("_", "-"),
            "tool": self.name,
            "account": "chaos",
            "attempt_deadline_seconds": ATTEMPT_DEADLINE,
            "clock_margin_seconds": CLOCK_MARGIN,
            "transit_seconds": TRANSIT,
            **self.members,
        }
        document["retry"] |= {
            "attempts_max": ATTEMPTS_PATIENT,
            "backoff_initial_seconds": 0.1,
            "backoff_cap_seconds": BACKOFF_CAP,
            **self.retry,
        }
        document["probe"] |= {
            "initial_seconds": 0.3,
            "factor": 2.0,
            "cap_seconds": PROBE_CAP,
            "horizon_seconds": HORIZON,
        }
        if not self.transactional:
            self._address(document, origin)
        return json.dumps(document)

    def _address(self, document: Json, origin: str) -> None:
        adapter = document["adapter"]
        adapter["url"] = f"{origin}/objects/{self.kind}"
        if self.kind == EXISTS.kind:
            with_look_up = json.loads(catalog_documents()["demo-charge-reconcilable"].canonical())
            adapter["probe"] = with_look_up["adapter"]["probe"]
            adapter["answers"]["already_exists"] = with_look_up["adapter"]["answers"][
                "already_exists"
            ]
        if adapter.get("probe"):
            adapter["probe"]["url"] = f"{origin}/objects/{self.kind}{{?key}}"
        if self.legal_states == REFUSED:
            # The contract lets through what the target itself refuses.
            document["arguments"]["properties"]["amount"] = {"type": "integer"}


CHARGE: Final = Tool(
    "chaos.charge",
    "charge",
    Safety.IDEMPOTENT,
    "demo-charge-idempotent",
    mode=MappingProxyType({"mode": "dedupe"}),
    # An answer that is given again and cannot be read looks like a stored error. Two of these are
    # a matter of luck here, and the honest answer comes after them.
    retry=MappingProxyType({"replayed_errors_max": ATTEMPTS_PATIENT}),
    plans=LOST + UNDONE + REFUSED_FOR_NOW + SLOW + LATE,
    weight=5,
)
BUSY: Final = Tool(
    "chaos.busy",
    "busy",
    Safety.IDEMPOTENT,
    "demo-charge-idempotent",
    mode=MappingProxyType({"mode": "dedupe", "in_flight": True, "retry_after_seconds": 1}),
    plans=("commit;hang(4)", "delay(3.0)", "commit;hang(2.5)", "hang(2.5)", "delay(0.6)"),
    weight=3,
)
EXPIRING: Final = Tool(
    "chaos.expiring",
    "expiring",
    Safety.IDEMPOTENT,
    "demo-charge-idempotent",
    mode=MappingProxyType({"mode": "dedupe", "ttl_seconds": KEY_RETENTION_KEPT}),
    members=MappingProxyType({"key_retention_seconds": KEY_RETENTION}),
    retry=MappingProxyType({"attempts_max": ATTEMPTS_FEW}),
    plans=LOST + UNDONE + REFUSED_FOR_NOW + SLOW,
    weight=3,
    legal_states=EITHER,
    may_park=True,
)
EXISTS: Final = Tool(
    "chaos.exists",
    "existing",
    Safety.IDEMPOTENT,
    "demo-charge-idempotent",
    mode=MappingProxyType({"mode": "conflict_existing"}),
    members=MappingProxyType({"settlement_bound_seconds": SETTLEMENT_BOUND}),
    plans=LOST + UNDONE + SLOW,
    blind=BLIND,
    weight=3,
)
STORED: Final = Tool(
    "chaos.stored",
    "stored",
    Safety.IDEMPOTENT,
    "demo-charge-idempotent",
    mode=MappingProxyType({"mode": "store_errors"}),
    plans=(*LOST, *UNDONE, *REFUSED_FOR_NOW),
    weight=2,
    legal_states=EITHER,
    may_park=True,  # the target gives a stored error again for ever
)
REFUSING: Final = Tool(
    "chaos.refused",
    "refused",
    Safety.IDEMPOTENT,
    "demo-charge-idempotent",
    mode=MappingProxyType({"mode": "dedupe"}),
    retry=MappingProxyType({"attempts_max": ATTEMPTS_FEW}),
    plans=UNDONE + SLOW,
    weight=2,
    legal_states=REFUSED,
    effects_most=0,
    may_park=True,  # a refusal says nothing about an earlier attempt whose answer was lost
)
LOOK_UP: Final = Tool(
    "chaos.lookup",
    "lookup",
    Safety.RECONCILABLE,
    "demo-charge-reconcilable",
    mode=MappingProxyType({"mode": "lookup", "search_lag_seconds": SEARCH_LAG}),
    members=MappingProxyType({"settlement_bound_seconds": SETTLEMENT_BOUND}),
    plans=LOST + UNDONE + REFUSED_FOR_NOW + SLOW,
    blind=BLIND,
    weight=5,
)
ONCE: Final = Tool(
    "chaos.once",
    "once",
    Safety.UNSAFE,
    "demo-charge-unsafe",
    mode=MappingProxyType({"mode": "neither"}),
    plans=LOST + UNDONE + REFUSED_FOR_NOW + SLOW + LATE,
    weight=4,
    may_park=True,
)
ENTRY: Final = Tool(
    "chaos.entry", TABLE_KIND, Safety.TRANSACTIONAL, "demo-ledger-transactional", weight=4
)
ENTRY_REFUSED: Final = Tool(
    "chaos.entry_refused",
    TABLE_KIND,
    Safety.TRANSACTIONAL,
    "demo-ledger-transactional",
    legal_states=REFUSED,
    effects_most=0,
)

TOOLS: Final = (
    CHARGE,
    BUSY,
    EXPIRING,
    EXISTS,
    STORED,
    REFUSING,
    LOOK_UP,
    ONCE,
    ENTRY,
    ENTRY_REFUSED,
)
