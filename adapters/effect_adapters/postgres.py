"""A named SQL function in the broker's own database: the transactional adapter.

The function runs inside the transaction in which the broker writes the receipt, so the effect and
its record are there together or not at all. It is called as

    schema.function(arguments jsonb, downstream_key text) returns jsonb

behind a savepoint. An error that it raises rolls its work back and so proves that nothing was
committed; the contract says by SQLSTATE whether it is final. A function, table or right that is
missing is not final by itself: it is the database that is not ready, not the effect. Deferred
constraints are checked before the savepoint is released, since at COMMIT they would take the
receipt down with them. A lost connection is raised to the caller: the transaction is gone with it,
and only the broker's store can find out whether its COMMIT came through.
"""

from __future__ import annotations

import json
from typing import Any, Final

import psycopg
import rfc8785
from psycopg import sql
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from effect_adapters.answers import BodyInvalid, extract, parse_answer
from effect_adapters.base import Answer, DispatchCall, RenderError, not_sent
from effect_contracts.canonical import JsonValue, canonical_bytes
from effect_contracts.document import ContractDocument, PostgresSettings
from effect_contracts.errors import InvalidPayload
from effect_contracts.facts import Outcome

CALL_VERSION: Final = 1
_CALL_BYTES_MAX: Final = 1024 * 1024
_SAVEPOINT: Final = "effect_mutation"

# Errors of the moment, whatever the function does: a deadlock or a lock that did not come, a
# server without memory or disk, a statement that ran out of time, a standby that was promoted
# away from us. A contract may say otherwise.
_PASSING: Final = ("25006", "40", "53", "55P03", "57014", "58")

# Errors of whoever runs the database: a migration or a grant that is missing says nothing about
# the effect, and must not end every effect that meets it. A contract may say otherwise.
_UNPREPARED: Final = {
    "3F000": "schema_missing",
    "42501": "right_missing",
    "42703": "column_missing",
    "42704": "object_missing",
    "42725": "function_ambiguous",
    "42883": "function_missing",
    "42P01": "table_missing",
}


class _Undone(Exception):
    """Leaves the savepoint so that the mutation is rolled back, with the answer for it."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.code)
        self.answer = answer


class PostgresFunctionAdapter:
    """Implements `effect_adapters.base.TransactionalAdapter` for contracts of kind `postgres`."""

    def identity(self, document: ContractDocument) -> str:
        """Return the function in the broker's own database, and the account."""
        return f"postgres:{_settings(document).function}#{document.account}"

    def render(
        self, document: ContractDocument, arguments: JsonValue, downstream_key: str
    ) -> bytes:
        """Return the call as canonical JSON: function, arguments and key. Pure.

        Raises:
            RenderError: the arguments are too large.
        """
        call: dict[str, JsonValue] = {
            "version": CALL_VERSION,
            "function": _settings(document).function,
            "arguments": arguments,
            "key": downstream_key,
        }
        try:
            return canonical_bytes(call, bytes_max=_CALL_BYTES_MAX)
        except InvalidPayload:
            raise RenderError("request_too_large") from None

    async def mutate(self, connection: psycopg.AsyncConnection[Any], call: DispatchCall) -> Answer:
        """Run the function inside the transaction that is open on `connection`.

        Every outcome but `committed` leaves the transaction as it was before.

        Raises:
            psycopg.Error: the connection is lost, and the transaction with it.
        """
        status = connection.info.transaction_status
        assert status is TransactionStatus.INTRANS, "the broker opens the transaction"
        settings = _settings(call.document)
        stored = json.loads(call.wire)
        if stored["version"] != CALL_VERSION or stored["function"] != settings.function:
            return not_sent("wire_invalid")
        call.reach("before_socket_write")
        remaining_seconds = call.budget.remaining_seconds()
        if remaining_seconds <= 0:
            return not_sent("budget_spent")
        call.reach("after_last_gate")
        try:
            async with connection.transaction(_SAVEPOINT):
                return await _run(connection, settings, stored, remaining_seconds)
        except _Undone as undone:
            return undone.answer
        except psycopg.Error as error:
            if connection.closed:
                raise
            return _answer_of(settings, error.sqlstate)


async def _run(
    connection: psycopg.AsyncConnection[Any],
    settings: PostgresSettings,
    stored: dict[str, Any],
    remaining_seconds: float,
) -> Answer:
    """Call the function within the time that is left; raises `_Undone` if it cannot count."""
    schema, name = settings.function.split(".")
    query = sql.SQL("SELECT {}(%s::jsonb, %s)::text").format(sql.Identifier(schema, name))
    arguments = rfc8785.dumps(stored["arguments"]).decode()
    async with connection.cursor(row_factory=tuple_row) as cursor:
        # Undone with the savepoint when the function fails, and put back below when it does not.
        await cursor.execute(
            "SELECT current_setting('statement_timeout'),"
            " set_config('statement_timeout', %s, true)",
            (str(max(int(remaining_seconds * 1000), 1)),),
        )
        row = await cursor.fetchone()
        assert row is not None
        timeout_before = str(row[0])
        await cursor.execute(query, (arguments, stored["key"]))
        row = await cursor.fetchone()
        text = None if row is None else row[0]
        await cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        await cursor.execute("SELECT set_config('statement_timeout', %s, true)", (timeout_before,))
    return _committed(settings, text)


def _committed(settings: PostgresSettings, text: str | None) -> Answer:
    value: Any = None
    if text is not None:
        try:
            value = parse_answer(text.encode())
        except BodyInvalid:
            raise _Undone(Answer(Outcome.REJECTED, "result_invalid")) from None
    extracted = extract(settings.extraction, value)
    if extracted is None:
        # The contract is wrong about its function. The work is rolled back, so this is a proof.
        raise _Undone(Answer(Outcome.REJECTED, "external_id_missing"))
    return Answer(
        Outcome.COMMITTED,
        "committed",
        external_id=extracted.external_id,
        result=extracted.result,
        receipt_fields=extracted.receipt_fields,
    )


def _answer_of(settings: PostgresSettings, sqlstate: str | None) -> Answer:
    """Return what an error proves: its work is undone; an exact rule goes before a class."""
    if sqlstate is None:
        return Answer(Outcome.RETRYABLE, "adapter_error")
    rules = [(Outcome.REJECTED, rule) for rule in settings.rejected]
    rules += [(Outcome.RETRYABLE, rule) for rule in settings.retryable]
    for wanted in (sqlstate, sqlstate[:2]):
        for outcome, rule in rules:
            if wanted in rule.sqlstates:
                return Answer(outcome, rule.code)
    if sqlstate in _UNPREPARED:
        return Answer(Outcome.RETRYABLE, _UNPREPARED[sqlstate])
    code = f"sqlstate_{sqlstate.lower()}"
    if sqlstate.startswith(_PASSING):
        return Answer(Outcome.RETRYABLE, code)
    return Answer(Outcome(settings.unlisted), code)


def _settings(document: ContractDocument) -> PostgresSettings:
    assert isinstance(document.adapter, PostgresSettings), "the registry picks adapters by kind"
    return document.adapter
