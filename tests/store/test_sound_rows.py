"""The functions that judge a row refuse what the constraints before them did, and no more.

The old constraints stand here as they were read from the catalogue before migrations 0030 and 0032.
Every combination of values that they tell apart is judged by both, NULL where a column may be it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

import psycopg
import pytest
from psycopg import Connection
from psycopg.rows import TupleRow

_FINAL = "state IN ('succeeded', 'failed_final', 'cancelled', 'compensated')"
INTENT: Mapping[str, str] = {
    "alert_on_a_final_effect": "alert IS NULL OR (alert IN ('late_contradiction',"
    f" 'duplicate_detected') AND {_FINAL})",
    "attempts_fit_the_state": "CASE WHEN state IN ('prepared', 'cancelled') THEN latest_ordinal = 0"
    " WHEN state = 'dispatching' THEN latest_ordinal >= 1 ELSE true END",
    "effect_intents_check": "progress_generation BETWEEN 1 AND generation",
    "effect_intents_event_digest_check": "octet_length(event_digest) = 32",
    "effect_intents_generation_check": "generation >= 1",
    "effect_intents_latest_ordinal_check": "latest_ordinal >= 0",
    "effect_intents_operation_key_check": "operation_key ~ '^[!-~]{1,255}$'",
    "effect_intents_receipt_digest_check": "octet_length(receipt_digest) = 32",
    "effect_intents_request_hash_check": "octet_length(request_hash) = 32",
    "effect_intents_retention_stage_check": "retention_stage BETWEEN 0 AND 3",
    "effect_intents_safety_check": "safety IN ('transactional', 'idempotent', 'reconcilable',"
    " 'unsafe')",
    "effect_intents_state_check": "state IN ('prepared', 'dispatching', 'retryable',"
    " 'outcome_unknown', 'reconciling', 'manual_review', 'succeeded', 'failed_final', 'cancelled',"
    " 'compensated')",
    "effect_intents_version_check": "version >= 1",
    "effect_intents_wire_digest_check": "octet_length(wire_digest) = 32",
    "final_has_a_receipt": f"({_FINAL}) = (receipt_digest IS NOT NULL)",
    "final_is_at_most_counted": f"NOT ({_FINAL}) OR (NOT parked AND (next_action_at IS NULL"
    " OR safety = 'reconcilable'))",
    "only_settled_effects_are_pruned": f"retention_stage = 0 OR ({_FINAL}"
    " AND next_action_at IS NULL)",
    "open_acts_or_is_parked": f"{_FINAL} OR parked = (next_action_at IS NULL)",
}
ATTEMPT: Mapping[str, str] = {
    "effect_attempts_check": "deadline_at > started_at",
    "effect_attempts_check1": "recorded_at IS NULL OR (code IS NOT NULL"
    " AND bytes_may_have_left IS NOT NULL)",
    "effect_attempts_ordinal_check": "ordinal >= 1",
    "effect_attempts_outcome_check": "outcome IN ('committed', 'rejected', 'not_sent', 'retryable',"
    " 'in_progress', 'key_conflict', 'partial', 'ambiguous', 'presumed_ambiguous')",
    "effect_attempts_result_digest_check": "octet_length(result_digest) = 32",
    "not_sent_is_proved": "outcome <> 'not_sent' OR NOT bytes_may_have_left",
    "presumed_by_a_successor": "outcome IS DISTINCT FROM 'presumed_ambiguous'"
    " OR lost_at IS NOT NULL",
    "recorded_by_the_sender": "(recorded_at IS NOT NULL) = (outcome IS NOT NULL"
    " AND outcome <> 'presumed_ambiguous')",
}
EVENT: Mapping[str, str] = {
    "effect_events_check": "(sequence = 1) = (from_state IS NULL)",
    "effect_events_metadata_check": "jsonb_typeof(metadata::jsonb) = 'object'",
    "effect_events_sequence_check": "sequence >= 1",
}
PAYLOAD: Mapping[str, str] = {
    "effect_payloads_check": "(ciphertext IS NULL) = (erased_at IS NOT NULL)",
    "effect_payloads_kind_check": "kind IN ('arguments', 'wire', 'operation', 'result')",
}
SIGNATURE: Mapping[str, str] = {
    "effect_receipt_signatures_algorithm_check": "algorithm = 'ed25519'",
    "effect_receipt_signatures_key_id_check": "key_id ~ '^[!-~]{1,64}$'",
    "effect_receipt_signatures_receipt_digest_check": "octet_length(receipt_digest) = 32",
    "effect_receipt_signatures_signature_check": "octet_length(signature) = 64",
}

_SHA = "sha256('')"
_TIME = "'2026-01-01'::timestamptz"
# Of each column a good value first, then those that a rule tells apart. NOT NULL columns have none.
INTENT_VALUES: Mapping[str, Sequence[str]] = {
    "state": [
        "'dispatching'", "'prepared'", "'retryable'", "'outcome_unknown'", "'reconciling'",
        "'manual_review'", "'succeeded'", "'failed_final'", "'cancelled'", "'compensated'",
        "'done'", "''",
    ],
    "safety": ["'idempotent'", "'transactional'", "'reconcilable'", "'unsafe'", "'safe'"],
    "operation_key": ["'k'", "''", "'two words'", "repeat('k', 256)", "E'k\\n'", "'ü'", "E'\\x7f'"],
    "request_hash": [_SHA, "''::bytea", "'x'::bytea"],
    "wire_digest": [_SHA, "NULL::bytea", "'x'::bytea"],
    "receipt_digest": ["NULL::bytea", _SHA, "'x'::bytea"],
    "event_digest": [_SHA, "''::bytea"],
    "version": ["1", "0", "-1"],
    "generation": ["1", "0", "2"],
    "progress_generation": ["1", "0", "2", "3"],
    "latest_ordinal": ["1", "0", "-1"],
    "retention_stage": ["0::smallint", "1::smallint", "3::smallint", "4::smallint", "-1::smallint"],
    "parked": ["false", "true"],
    "next_action_at": [_TIME, "NULL::timestamptz"],
    "alert": ["NULL::text", "'late_contradiction'", "'duplicate_detected'", "'other'"],
}  # fmt: skip
ATTEMPT_VALUES: Mapping[str, Sequence[str]] = {
    "ordinal": ["1", "0", "-1"],
    "started_at": [_TIME, "'infinity'::timestamptz", "'-infinity'::timestamptz"],
    "deadline_at": [
        "'2026-01-02'::timestamptz", _TIME, "'infinity'::timestamptz", "'-infinity'::timestamptz",
    ],
    "outcome": [
        "NULL::text", "'committed'", "'not_sent'", "'presumed_ambiguous'", "'maybe'", "'ambiguous'",
    ],
    "code": ["NULL::text", "'c'"],
    "recorded_at": ["NULL::timestamptz", _TIME],
    "lost_at": ["NULL::timestamptz", _TIME],
    "bytes_may_have_left": ["NULL::boolean", "true", "false"],
    "result_digest": ["NULL::bytea", _SHA, "'x'::bytea"],
}  # fmt: skip
EVENT_VALUES: Mapping[str, Sequence[str]] = {
    "sequence": ["1", "2", "0", "-1"],
    "from_state": ["NULL::text", "'prepared'", "''"],
    "metadata": ["'{}'", "'[]'", "'null'", "'1'"],
}
PAYLOAD_VALUES: Mapping[str, Sequence[str]] = {
    "kind": ["'arguments'", "'wire'", "'operation'", "'result'", "'other'", "''"],
    "ciphertext": ["'x'::bytea", "NULL::bytea", "''::bytea"],
    "erased_at": ["NULL::timestamptz", _TIME],
}
SIGNATURE_VALUES: Mapping[str, Sequence[str]] = {
    "receipt_digest": [_SHA, "''::bytea", "'x'::bytea"],
    "key_id": ["'k'", "''", "'two words'", "repeat('k', 65)", "E'k\\n'", "'ü'"],
    "algorithm": ["'ed25519'", "'rsa'", "''"],
    "signature": ["sha512('')", "''::bytea", "'x'::bytea"],
}
# Columns that one rule joins: every combination of all their values. The rest are tried in pairs.
INTENT_JOINED = (
    "state", "safety", "receipt_digest", "parked", "next_action_at", "latest_ordinal",
    "retention_stage", "alert",
)  # fmt: skip
ATTEMPT_JOINED = tuple(name for name in ATTEMPT_VALUES if name != "ordinal")


def _rows(values: Mapping[str, Sequence[str]], varied: Sequence[str]) -> str:
    """All combinations of the varied columns' values; of the others the good one."""
    columns = []
    for name, all_of_it in values.items():
        taken = all_of_it if name in varied else all_of_it[:1]
        columns.append(f"(VALUES {', '.join(f'({one})' for one in taken)}) AS t_{name} ({name})")
    return f"SELECT {', '.join(values)} FROM {' CROSS JOIN '.join(columns)}"


@pytest.mark.parametrize(
    ("function", "rules", "values", "joined"),
    [
        ("sound_intent", INTENT, INTENT_VALUES, INTENT_JOINED),
        ("sound_attempt", ATTEMPT, ATTEMPT_VALUES, ATTEMPT_JOINED),
        ("sound_event", EVENT, EVENT_VALUES, tuple(EVENT_VALUES)),
        ("sound_payload", PAYLOAD, PAYLOAD_VALUES, tuple(PAYLOAD_VALUES)),
        ("sound_signature", SIGNATURE, SIGNATURE_VALUES, tuple(SIGNATURE_VALUES)),
    ],
    ids=["intents", "attempts", "events", "payloads", "signatures"],
)
def test_a_row_is_refused_by_the_rule_that_refused_it_before(
    superuser: Connection[TupleRow],
    function: str,
    rules: Mapping[str, str],
    values: Mapping[str, Sequence[str]],
    joined: Sequence[str],
) -> None:
    row = superuser.execute(
        "SELECT pg_get_function_arguments(oid), proargnames FROM pg_proc WHERE proname = %s"
        " AND pronamespace = 'effect_broker'::regnamespace",
        [function],
    ).fetchone()
    assert row is not None
    declared, names = row
    # Each argument is a column, so that none was forgotten.
    assert sorted(name.removeprefix("p_") for name in names) == sorted(values)
    superuser.execute(
        f"""CREATE FUNCTION pg_temp.{function}_says({declared}) RETURNS text LANGUAGE plpgsql AS $$
            DECLARE said text;
            BEGIN
                PERFORM effect_broker.{function}({", ".join(names)});
                RETURN NULL;
            EXCEPTION WHEN check_violation THEN
                GET STACKED DIAGNOSTICS said = CONSTRAINT_NAME;
                RETURN said;
            END $$""".encode()
    )
    broken = " ".join(f"WHEN NOT ({rule}) THEN '{name}'" for name, rule in sorted(rules.items()))
    asked = ", ".join(name.removeprefix("p_") for name in names)
    named: set[str] = set()
    for varied in (joined, *combinations(values, 2)):
        judged = superuser.execute(
            f"""SELECT before, says, count(*), min(row::text)
                FROM (SELECT CASE {broken} END AS before,
                             pg_temp.{function}_says({asked}) AS says, row({asked})
                      FROM ({_rows(values, varied)}) AS r) AS judged
                GROUP BY before, says""".encode()
        ).fetchall()
        assert [one for one in judged if one[0] != one[1]] == []
        named |= {one[0] for one in judged if one[0] is not None}
    # Every rule has refused something, so that each was compared; one is implied by another one.
    assert named == set(rules) - {"effect_intents_generation_check"}


@pytest.mark.parametrize("role", ["api", "worker", "prune"])
def test_no_role_judges_rows_by_a_function_of_its_own(
    superuser: Connection[TupleRow], role: str
) -> None:
    """Neither by replacing it, nor by one of the same name that is found first."""
    for statement in (
        "CREATE OR REPLACE FUNCTION effect_broker.refuse_row(p_table text, p_constraint text)"
        " RETURNS void LANGUAGE sql AS ''",
        "ALTER FUNCTION effect_broker.sound_intent RENAME TO other",
        "ALTER TABLE effect_broker.effect_intents DROP CONSTRAINT sound_intent",
    ):
        with superuser.transaction(force_rollback=True):
            superuser.execute(f"SET LOCAL ROLE effect_broker_{role}".encode())
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                superuser.execute(statement.encode())
    with superuser.transaction(force_rollback=True):
        grant = f"GRANT TEMPORARY ON DATABASE {superuser.info.dbname} TO effect_broker_{role}"
        superuser.execute(grant.encode())
        superuser.execute(f"SET LOCAL ROLE effect_broker_{role}".encode())
        superuser.execute(
            "CREATE FUNCTION pg_temp.refuse_row(p_table text, p_constraint text) RETURNS void"
            " LANGUAGE sql AS ''"
        )
        superuser.execute("SET LOCAL search_path = pg_temp, effect_broker")
        with pytest.raises(psycopg.errors.CheckViolation):
            superuser.execute(
                "SELECT effect_broker.sound_attempt(0, now(), now(), NULL, NULL, NULL, NULL, NULL,"
                " NULL)"
            )
