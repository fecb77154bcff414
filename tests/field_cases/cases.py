"""What the field cases share: a kind of its own for each test, and one judge of what happened.

Each case is a failure that somebody reported, retold against the running product: an API process,
workers, Postgres, and the scripted target, whose ledger is the truth. `docs/field-cases.md` lists
them all. Counts come from the target, never from the broker's word.

What holds in every case is asserted by `Offer.judge` and, once more when a test ends, by
`Case.close`:

* the target has received as many requests as there are attempts that may have sent;
* every request of an effect carries the stored downstream key, and all are the same bytes, which
  are the stored ones;
* a receipt stands if and only if the effect is final, and never changes;
* the chain of the effect's events fits its digests.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, LiteralString
from uuid import UUID, uuid4

import httpx

from effect_adapters.base import Finding
from effect_broker.keyring import AesVault, parse_key_ring
from effect_broker.proof.broker import ProofBroker, wait_until
from effect_broker.proof.contracts import charge, tuned
from effect_broker.proof.target.client import ArrivalRow, LedgerView
from effect_broker.proof.target.modes import ModeName
from effect_broker.proof.target.process import TargetProcess
from effect_broker.protocol import changes
from effect_broker.protocol.ports import Sealed
from effect_broker.store.pool import make_pool
from effect_broker.store.postgres import PostgresStore
from effect_broker.store.roles import DatabaseRole
from effect_contracts.document import ContractDocument
from effect_contracts.events import Event, verify_events
from effect_contracts.facts import EvidenceSource, Verdict
from hosting.scenes import MODES, Scene

Row = dict[str, Any]
Document = dict[str, Any]

# Longer than the others need, so that a busy machine does not turn waiting into failing.
SETTLE_SECONDS = 90.0
# Of an attempt that ends by an answer or a closed connection, however busy the machine is.
PATIENT_SECONDS = 15.0
# Of an attempt whose worker dies or is stopped, or whose target is silent: somebody has to wait for
# that long. Not longer than a dead worker's heartbeat counts.
LEASE_SECONDS = 1.5
SETTLEMENT_BOUND_SECONDS = 1.0
SEARCH_LAG_SECONDS = 0.2


@dataclass
class Case:
    """One test on a running broker: what it offers, and the receipts that it has seen.

    Attributes:
        deadline_seconds: of an attempt, where an offer does not say.
    """

    scene: Scene
    name: str
    deadline_seconds: float = PATIENT_SECONDS
    offers: list[Offer] = field(default_factory=list)
    receipts: dict[str, tuple[str, bytes]] = field(default_factory=dict)

    @property
    def broker(self) -> ProofBroker:
        """The broker of the scene."""
        return self.scene.broker

    def offer(
        self,
        safety: str = "idempotent",
        *,
        mode: ModeName | None = None,
        settings: Mapping[str, Any] | None = None,
        amend: Callable[[Document], None] | None = None,
        target: TargetProcess | None = None,
        origin: str | None = None,
        **members: Any,
    ) -> Offer:
        """Let the target serve a new kind, and the broker a tool for it.

        Args:
            safety: the class; it picks the document of the catalog and the target's mode.
            mode, settings: of the kind at the target, where they are not those of the class.
            amend: changes the document, given as its JSON, before it is applied.
            target: who counts, where it is not the broker's own target.
            origin: where the contract's URLs lead; to that target without it.
            members: replace members of the document; `retry` members of that section.
        """
        kind = f"{self.name}_{len(self.offers) + 1}"
        target = target or self.broker.target
        members = {"attempt_deadline_seconds": self.deadline_seconds, **members}
        if safety == "reconcilable":
            settings = {"search_lag_seconds": SEARCH_LAG_SECONDS, **(settings or {})}
            members = {"settlement_bound_seconds": SETTLEMENT_BOUND_SECONDS, **members}
        target.client.set_mode(kind, mode or MODES[safety], **(settings or {}))
        made = Offer(self, kind, f"proof.{kind}", safety, target, origin or target.url)
        self.offers.append(made)
        made.apply(amend=amend, **members)
        return made

    def close(self) -> None:
        """Check once more what must never change, for every effect that the test has made."""
        for offer in self.offers:
            stored = self.scene.rows(
                "SELECT effect_id, downstream_key FROM effect_broker.effect_intents"
                " WHERE tool = %s",
                offer.tool,
            )
            received = {row.downstream_key for row in offer.requests()}
            assert received <= {row["downstream_key"] for row in stored}, "a key of nobody"
            for row in stored:
                self.check_receipt(str(row["effect_id"]))
                self.check_events(str(row["effect_id"]))

    def check_receipt(self, effect_id: str) -> bool:
        """Whether a receipt stands; it must be the one that was seen before."""
        rows = self.scene.rows(
            "SELECT content, digest FROM effect_broker.effect_receipts WHERE effect_id = %s",
            effect_id,
        )
        seen = self.receipts.get(effect_id)
        if not rows:
            assert seen is None, "a receipt is gone"
            return False
        found = (str(rows[0]["content"]), bytes(rows[0]["digest"]))
        assert seen in (None, found), "a receipt has changed"
        self.receipts[effect_id] = found
        return True

    def check_events(self, effect_id: str) -> None:
        """The history fits its digests and has no gap."""
        rows = self.scene.events(effect_id)
        assert [row["sequence"] for row in rows] == list(range(1, len(rows) + 1))
        verify_events((_event(row), bytes(row["digest"])) for row in rows)

    # Evidence ------------------------------------------------------------------------------------

    def add_evidence(
        self,
        effect_id: str,
        verdict: Verdict,
        *,
        source: EvidenceSource = EvidenceSource.OPERATOR,
        external_ids: Sequence[str] = (),
        began_at: datetime | None = None,
        covers_through: int | None = None,
    ) -> None:
        """Add a fact to an effect as the protocol does, whoever brings it.

        Without `began_at` the observation began just now; without `covers_through` it speaks of
        all attempts so far.

        Raises:
            EffectMissing: there is no such effect.
        """
        ordinals = [row["ordinal"] for row in self.scene.attempts(effect_id)]

        async def work() -> None:
            url = self.broker.url(DatabaseRole.WORKER)
            async with make_pool(url, None, application_name="field-case", size_max=1) as pool:
                await PostgresStore(pool).change(
                    UUID(self.broker.tenant_id),
                    UUID(effect_id),
                    lambda snapshot: changes.add_evidence(
                        snapshot,
                        evidence_id=uuid4(),
                        source=source,
                        finding=Finding(verdict, "field_case", tuple(external_ids)),
                        began_at=began_at or snapshot.now,
                        covers_through=(
                            max(ordinals, default=0) if covers_through is None else covers_through
                        ),
                        target_identity=snapshot.intent.target_identity,
                        result=None,
                        result_digest=None,
                        receipt_id=uuid4(),
                        actor=f"{source.value}:field-case",
                    ),
                )

        asyncio.run(work())


@dataclass
class Offer:
    """One kind at the target and the tool that leads to it."""

    case: Case
    kind: str
    tool: str
    safety: str
    target: TargetProcess
    origin: str
    document: ContractDocument | None = None

    def apply(self, *, amend: Callable[[Document], None] | None = None, **members: Any) -> None:
        """Apply a version of the tool's contract and make it the active one."""
        if self.document is not None:
            members = {
                "attempt_deadline_seconds": self.document.attempt_deadline_seconds,
                "settlement_bound_seconds": self.document.settlement_bound_seconds,
                **members,
            }
        document = tuned(f"demo-charge-{self.safety}", self.origin, self.kind, **members)
        if amend is not None:
            body: Document = json.loads(document.canonical())
            amend(body)
            document = ContractDocument.parse_yaml(json.dumps(body))
        self.document = document
        self.case.broker.apply(document)

    # The target ----------------------------------------------------------------------------------

    def script(self, *plans: str, method: str | None = None, repeat_last: bool = False) -> None:
        """Queue plans for the next requests of this kind; `GET` for look-ups."""
        self.target.client.script(*plans, kind=self.kind, method=method, repeat_last=repeat_last)

    def ledger(self) -> LedgerView:
        """What the target knows of the kind."""
        return self.target.client.ledger(kind=self.kind)

    def requests(self, key: str | None = None) -> list[ArrivalRow]:
        """The mutating requests that were received, of one key or of all."""
        return [
            row
            for row in self.ledger().arrival_rows
            if row.mutating
            and row.body_state in {"whole", "early"}
            and key in {None, row.downstream_key}
        ]

    # The caller ----------------------------------------------------------------------------------

    def key(self, order: str = "1") -> str:
        """The operation key of an order."""
        return f"{self.tool}:{order}"

    def post(
        self, order: str = "1", *, arguments: Mapping[str, Any] | None = None, **members: Any
    ) -> httpx.Response:
        """Submit and return the answer as it is; `members` are added to the request's body."""
        body = {
            "operation_key": self.key(order),
            "tool": self.tool,
            "arguments": dict(charge(order) if arguments is None else arguments),
            **members,
        }
        return self.case.broker.http.post("/v1/effects", json=body)

    def submit(self, order: str = "1", *, arguments: Mapping[str, Any] | None = None) -> str:
        """Submit a new effect; return its id."""
        given = charge(order) if arguments is None else arguments
        return self.case.broker.submitted(self.key(order), self.tool, given)

    def replayed(self, effect_id: str, order: str = "1") -> None:
        """Submit the same again; it must be the same effect."""
        answer = self.post(order)
        assert (answer.status_code, answer.json()["effect_id"]) == (200, effect_id), answer.text

    def settled(self, effect_id: str) -> Row:
        """The effect once it is final or waits for a person."""
        return self.case.broker.settled(effect_id, SETTLE_SECONDS)

    def reached(self, effect_id: str, state: str) -> Row:
        """The effect once it is in `state`."""

        def seen() -> Row | None:
            effect = self.case.broker.effect(effect_id)
            return effect if effect["state"] == state else None

        return wait_until(seen, f"{effect_id} {state}", SETTLE_SECONDS)

    # The judge -----------------------------------------------------------------------------------

    def judge(
        self,
        effect_id: str,
        *,
        state: str,
        requests: int,
        effects: int,
        reason: str | None = None,
        unread: int = 0,
        redelivered: int = 0,
    ) -> Row:
        """Wait until the effect is at rest, and assert what holds in every case.

        Args:
            state, reason: what the broker says in the end.
            requests, effects: what the target has received and holds under the effect's key.
            unread: attempts that may have sent although the target read nothing of them.
            redelivered: requests that somebody on the way has delivered once more.
        """
        effect = self.settled(effect_id)
        attempts = self.attempts(effect_id)
        shown = f"{effect['state']}/{effect['reason']}: {[a['code'] for a in attempts]}"
        assert effect["state"] == state, shown
        assert reason in {None, effect["reason"]}, shown
        intent = self.case.scene.intent(effect_id)
        received = self.requests(intent["downstream_key"])
        may_have_sent = [a for a in attempts if a["bytes_may_have_left"] is not False]
        assert len(received) == requests, shown
        assert len(received) == len(may_have_sent) - unread + redelivered, shown
        assert len(self.effect_ids(effect_id)) == effects, shown
        self._same_bytes(intent, received)
        assert self.case.check_receipt(effect_id) == effect["final"]
        self.case.check_events(effect_id)
        return effect

    def _same_bytes(self, intent: Row, received: Sequence[ArrivalRow]) -> None:
        wire = json.loads(self.unsealed(str(intent["effect_id"]), "wire"))
        for row in received:
            assert row.header("idempotency-key") == intent["downstream_key"]
            assert row.body.decode() == (wire["body"] or "")
            assert row.method == wire["method"]
            assert wire["url"].endswith(row.path + (f"?{row.query}" if row.query else ""))
            assert row.headers == received[0].headers

    def effect_ids(self, effect_id: str) -> list[str]:
        """The ids of the objects that the target has made under the effect's key."""
        key = self.case.scene.intent(effect_id)["downstream_key"]
        rows = self.ledger().effect_rows
        return [r.object_id for r in rows if key in {r.downstream_key, r.correlation_key}]

    def attempts(self, effect_id: str) -> list[Row]:
        """The attempts as stored, in order."""
        return self.case.scene.attempts(effect_id)

    def codes(self, effect_id: str) -> list[tuple[str, str]]:
        """Outcome and code of each attempt that may have sent.

        An attempt that was not sent is no part of a case, unless it is its point: a busy machine
        may have spent the attempt's budget before the socket was reached.
        """
        attempts = self.attempts(effect_id)
        return [(a["outcome"], a["code"]) for a in attempts if a["outcome"] != "not_sent"]

    def states(self, effect_id: str) -> list[str]:
        """The states that the effect went through, in order, each once in a row."""
        through: list[str] = []
        for event in self.case.scene.events(effect_id):
            if not through or through[-1] != event["to_state"]:
                through.append(event["to_state"])
        return through

    def evidence(self, effect_id: str) -> list[Row]:
        """The evidence as stored, in order."""
        return self.case.scene.rows(
            "SELECT * FROM effect_broker.effect_evidence WHERE effect_id = %s ORDER BY began_at",
            effect_id,
        )

    def receipt(self, effect_id: str) -> Row:
        """The content of the receipt."""
        content: Row = json.loads(
            self.case.scene.value(
                "SELECT content FROM effect_broker.effect_receipts WHERE effect_id = %s", effect_id
            )
        )
        return content

    def unsealed(self, effect_id: str, kind: str, ref: str = "") -> bytes:
        """A stored payload, opened with the broker's own key ring."""
        query: LiteralString = (
            "SELECT key_id, ciphertext FROM effect_broker.effect_payloads"
            " WHERE effect_id = %s AND kind = %s AND ref = %s"
        )
        (row,) = self.case.scene.rows(query, effect_id, kind, ref)
        broker = self.case.broker
        text = (broker.directory / "keyring.json").read_text()
        vault = AesVault(parse_key_ring(text, source="the ring", production=False))
        sealed = Sealed(row["key_id"], bytes(row["ciphertext"]))
        return vault.unseal(UUID(broker.tenant_id), UUID(effect_id), kind, sealed)


def _event(row: Row) -> Event:
    names = ("tenant_id", "effect_id", "sequence", "kind", "event", "from_state", "to_state")
    rest = ("reason", "actor", "at", "metadata")
    return Event(**{name: row[name] for name in (*names, *rest)})
