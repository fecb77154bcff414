"""The broker inside a caller's own transaction: the store of `effect_broker.intake` there.

All of it goes through one function of the database, `effect_broker.join_effect`, which is all that
the role of a caller may call. What the function refuses is a value, so that the caller's
transaction goes on as if it had not asked.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import psycopg

from effect_broker.protocol.ports import (
    ContractMoved,
    EffectMissing,
    Intent,
    LinkRefused,
    Sealed,
)
from effect_broker.protocol.submission import Submission, Submitted
from effect_broker.store.caller_connections import (
    OVERTAKEN,
    JoinRefused,
    Link,
    Overtaken,
)
from effect_broker.store.errors import CONTRACT_MOVED_SQLSTATE, LINK_REFUSED, store_errors
from effect_broker.store.pool import session_conninfo
from effect_broker.store.roles import HEARTBEAT_TTL_SECONDS, DatabaseRole
from effect_broker.store.rows import intent_of
from effect_contracts.document import ContractDocument

# As bytes, which every encoding and every setting of the caller's session leaves alone.
_ASK: Final = """
SELECT pg_catalog.convert_to(
    effect_broker.join_effect(%(ask)s::text, %(told)s::jsonb)::text, 'UTF8')
"""
_DATABASE: Final = """
SELECT system_identifier::text, database_oid::text, relation_oid::text
FROM effect_broker.this_database
"""

# The function's own; each names what it is about, where that is told.
_REFUSED: Final = {
    "EB007": "approval_needed",
    "EB008": "not_transactional",
    "EB009": "held",
    "not_a_caller": "not_a_caller",
    "read_only": "read_only",
    "tenant_disabled": "tenant_disabled",
}
_TOLD: Final = frozenset({"EB008", "EB009"})


@dataclass(frozen=True, slots=True)
class Look:
    """Who submits here, and what stands under the operation key.

    Attributes:
        database: system identifier, database and table: no other database has all three.
        contract: digest and text of the tool's active document.
        arguments: those of the intent that stands, None where it was erased.
    """

    tenant_id: UUID
    hmac_key_id: str
    role: str
    database: tuple[str, ...]
    contract: tuple[str, str] | None
    standing: Intent | None
    arguments: Sealed | None


@dataclass(frozen=True, slots=True)
class Carried:
    """The caller carries the effect out itself, in this transaction.

    Attributes:
        external_id: how the caller's own tables name what is made, if they do.
    """

    external_id: str | None


class JoinedStore:
    """One operation key inside one transaction of a caller.

    Args:
        parsed: gives a contract document from its digest and its stored text.
        carried: for an effect that the caller carries out itself.
    """

    def __init__(
        self,
        link: Link,
        tool: str,
        operation_key: str,
        parsed: Callable[[str, str], ContractDocument],
        carried: Carried | None = None,
    ) -> None:
        self._link = link
        self._asked = {"tool": tool, "operation_key": operation_key}
        self._parsed = parsed
        self._carried = carried
        self._seen: Look | None = None

    async def look(self) -> Look:
        """Return what stands here; asked once, and again after it may have moved.

        Raises:
            JoinRefused, Overtaken.
        """
        if self._seen is None:
            self._seen = _look_of(await self._ask("look", self._asked))
        return self._seen

    async def active_contract(self, tool: str) -> ContractDocument | None:
        """Return the active contract of the tool, None without one.

        Raises:
            JoinRefused, Overtaken.
        """
        contract = (await self.look()).contract
        return None if contract is None else self._parsed(*contract)

    def forget_contract(self, tool: str) -> None:
        """Look again the next time."""
        self._seen = None

    async def submit(self, submission: Submission) -> Submitted:
        """Store the intent in the caller's transaction, or return the one that holds the key.

        Raises:
            ContractMoved, LinkRefused, JoinRefused, Overtaken.
        """
        told = _told(submission)
        if self._carried is not None:
            wire = submission.wire_digest
            told["wire_digest"] = None if wire is None else wire.hex()
            told["external_id"] = self._carried.external_id
        answer = await self._ask("submit" if self._carried is None else "perform", told)
        if not answer["created"]:
            self._seen = None  # it may have come after the look
        return Submitted(answer["created"], _intent(answer["intent"]))

    async def intent(self, tenant_id: UUID, effect_id: UUID) -> Intent:
        """Return an intent of the caller's tenant: that of the key, or one that a link names.

        Raises:
            EffectMissing, JoinRefused, Overtaken.
        """
        standing = (await self.look()).standing
        if standing is None or standing.effect_id != effect_id:
            asked = self._asked | {"effect_id": str(effect_id)}
            standing = _look_of(await self._ask("look", asked)).standing
            self._seen = None  # it may have come after the look
        if standing is None or standing.tenant_id != tenant_id:
            raise EffectMissing("no such effect of this tenant")
        return standing

    async def payload(
        self, tenant_id: UUID, effect_id: UUID, kind: str, ref: str = ""
    ) -> Sealed | None:
        """Return the sealed arguments of the intent that holds the key; nothing else is shown.

        Raises:
            JoinRefused, Overtaken.
        """
        assert (kind, ref) == ("arguments", ""), "a caller is shown nothing else"
        return (await self.look()).arguments

    async def _ask(self, ask: str, told: Mapping[str, object]) -> dict[str, Any]:
        row = await self._link.row(_ASK, {"ask": ask, "told": json.dumps(told)})
        answer: dict[str, Any] = json.loads(bytes(row[0]))
        refused = answer.get("refused")
        if refused is None:
            return answer
        if refused == CONTRACT_MOVED_SQLSTATE:
            raise ContractMoved("another active contract")
        if refused in LINK_REFUSED:
            raise LinkRefused(LINK_REFUSED[refused])
        if refused in OVERTAKEN:
            raise Overtaken(OVERTAKEN[refused])
        # A newer database may know further ones.
        code = _REFUSED.get(refused, refused)
        raise JoinRefused(code, answer["why"] if refused in _TOLD else "")


def database_at(url: str) -> tuple[str, ...]:
    """Return which database this is, as `Look.database`; `url` logs in for the API.

    Raises:
        StoreError.
    """
    conninfo = session_conninfo(
        url,
        DatabaseRole.API,
        application_name="effect-broker-sdk",
        ttl_seconds=HEARTBEAT_TTL_SECONDS,
    )
    with store_errors(), psycopg.connect(conninfo, autocommit=True) as connection:
        row = connection.execute(_DATABASE).fetchone()
    assert row is not None, "a server knows itself"
    return tuple(map(str, row))


def _told(submission: Submission) -> dict[str, object]:
    """What the function is told; it looks the rest up by itself."""
    send_before = submission.send_before
    parent, undone = submission.parent_id, submission.compensates_id
    return {
        "operation_key": submission.operation_key,
        "tool": submission.tool,
        "request_hash": submission.request_hash.hex(),
        "contract_digest": submission.contract_digest.hex(),
        "downstream_key": submission.downstream_key,
        "hmac_key_id": submission.hmac_key_id,
        "arguments_key_id": submission.arguments.key_id,
        "arguments": submission.arguments.ciphertext.hex(),
        "preview": None if submission.preview is None else dict(submission.preview),
        "trace_id": submission.trace_id,
        "traceparent": submission.traceparent,
        "send_before": None if send_before is None else send_before.isoformat(),
        "parent_id": None if parent is None else str(parent),
        "compensates_id": None if undone is None else str(undone),
    }


def _look_of(answer: Mapping[str, Any]) -> Look:
    contract, standing = answer["contract"], answer["standing"]
    sealed = None
    if standing is not None and standing["arguments"] is not None:
        sealed = Sealed(standing["arguments_key_id"], bytes.fromhex(standing["arguments"]))
    return Look(
        tenant_id=UUID(answer["tenant_id"]),
        hmac_key_id=answer["hmac_key_id"],
        role=answer["role"],
        database=tuple(answer["database"]),
        contract=None if contract is None else (contract["digest"], contract["document"]),
        standing=None if standing is None else _intent(standing["intent"]),
        arguments=sealed,
    )


def _intent(told: Mapping[str, Any]) -> Intent:
    row = dict(told)
    for name in ("effect_id", "tenant_id"):
        row[name] = UUID(row[name])
    for name in ("request_hash", "contract_digest", "wire_digest"):
        row[name] = None if row[name] is None else bytes.fromhex(row[name])
    for name in ("created_at", "updated_at", "next_action_at"):
        row[name] = None if row[name] is None else datetime.fromisoformat(row[name])
    return intent_of(row)
