"""The SQL of the effect store, as constants: reads first, then one constant per legal write.

A write whose guard matters is wrapped in `effect_broker.expect_one`, which raises in the server:
the writes of a transaction travel together with its COMMIT, so nobody on this side could look at
a row count in between.
"""

from __future__ import annotations

from typing import Final

BEGIN: Final = "BEGIN"
BEGIN_READ: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY"
COMMIT: Final = "COMMIT"
ROLLBACK: Final = "ROLLBACK"

# Row-level security shows the API's role the rows of this tenant, for this transaction.
SET_TENANT: Final = "SELECT set_config('effect_broker.tenant_id', %(tenant_id)s::text, true)"

# Reads ---------------------------------------------------------------------------------------

_INTENT: Final = """
SELECT effect_id, tenant_id, operation_key, tool, request_hash, contract_name, contract_version,
       contract_digest, safety, downstream_key, state, version, reason, generation,
       progress_generation, next_action_at, target_identity, wire_digest, created_at, updated_at,
       cancel_requested_at, failed_by_operator_at, send_before, latest_ordinal, parked,
       receipt_digest, alert, reconcile_asked_at, approved_at, key_expires_at, attempt_open_until,
       sender_lost
"""

_OF_EFFECT: Final = """
FROM effect_broker.effect_intents
WHERE tenant_id = %(tenant_id)s AND effect_id = %(effect_id)s
"""
READ_INTENT: Final = _INTENT + _OF_EFFECT

# The tenant's setting, the row's lock, and second in the lock order that of the holds: whoever has
# placed a hold waits there for the changes that may not have seen it (`effect_broker.store.holds`).
# The row's lock is FOR NO KEY UPDATE, what an update of the row takes anyway. It lets the foreign
# keys of other tables pass, which check no more than that the row exists.
LOCK_EFFECT: Final = _INTENT + "FROM effect_broker.lock_effect(%(tenant_id)s, %(effect_id)s)"

READ_ATTEMPTS: Final = """
SELECT attempt_id, ordinal, executor_id, started_at, deadline_at, outcome, recorded_at, code,
       external_id, retry_after_seconds, operation, result_digest
FROM effect_broker.effect_attempts
WHERE tenant_id = %(tenant_id)s AND effect_id = %(effect_id)s
ORDER BY ordinal
"""

# Decisive rows. Of the look-ups that found nothing, or no operation, the newest for each covered
# ordinal says all that the older ones do: it began later, and so is conclusive if any of them is.
READ_EVIDENCE: Final = """
SELECT evidence_id, source, verdict, code, began_at, recorded_at, covers_through, external_ids,
       result_digest
FROM effect_broker.effect_evidence
WHERE tenant_id = %(tenant_id)s AND effect_id = %(effect_id)s
  AND (verdict IN ('committed', 'rejected', 'mismatch')
       OR source IN ('operator', 'transaction'))
UNION ALL
(SELECT DISTINCT ON (covers_through, verdict)
       evidence_id, source, verdict, code, began_at, recorded_at, covers_through, external_ids,
       result_digest
FROM effect_broker.effect_evidence
WHERE tenant_id = %(tenant_id)s AND effect_id = %(effect_id)s
  AND (verdict = 'not_committed' OR (verdict = 'unknown' AND code = 'operation_gone'))
  AND source NOT IN ('operator', 'transaction')
ORDER BY covers_through, verdict, began_at DESC, evidence_id)
ORDER BY recorded_at, evidence_id
"""

# All else that a snapshot shows, and the clock. It runs after the locks were granted, in a
# statement of its own: a statement that waits for a lock goes on with the snapshot from before.
# Workers look for a restore every few seconds, but no attempt may be granted in between: what came
# here in a dump remembers another id than that of its table.
READ_CONTEXT: Final = """
SELECT clock_timestamp() AS now,
       t.disabled_at IS NOT NULL AS tenant_disabled,
       coalesce(h.frozen, false) AS frozen,
       coalesce(h.paused, false) AS paused,
       (d.halted_at IS NOT NULL
        OR d.relation_oid IS DISTINCT FROM 'effect_broker.effect_intents'::regclass::oid)
           AS halted,
       d.bounds_restart_at,
       p.probes_since_attempt, p.probe_began_at,
       w.key_id AS wire_key_id, w.ciphertext AS wire_ciphertext,
       o.key_id AS operation_key_id, o.ciphertext AS operation_ciphertext,
       m.ordinal AS mutation_ordinal
FROM effect_broker.effect_intents AS i
JOIN effect_broker.tenants AS t ON t.tenant_id = i.tenant_id
LEFT JOIN LATERAL (
    SELECT bool_or(h.kind = 'frozen') AS frozen, bool_or(h.kind = 'paused') AS paused
    FROM effect_broker.holds AS h
    WHERE h.lifted_at IS NULL
      AND (h.tenant_id IS NULL OR h.tenant_id = i.tenant_id)
      AND (h.tool IS NULL OR h.tool = i.tool)
      AND (h.contract_name IS NULL OR (h.contract_name, h.contract_version)
           = (i.contract_name, i.contract_version))
    ) AS h ON true
LEFT JOIN effect_broker.database_identity AS d ON d.singleton
LEFT JOIN LATERAL (
    SELECT count(*)::integer AS probes_since_attempt, max(e.began_at) AS probe_began_at
    FROM effect_broker.effect_evidence AS e
    WHERE e.tenant_id = i.tenant_id AND e.effect_id = i.effect_id AND e.source = 'probe'
      AND e.began_at > (SELECT max(a.started_at) FROM effect_broker.effect_attempts AS a
                        WHERE a.tenant_id = i.tenant_id AND a.effect_id = i.effect_id)
    ) AS p ON true
LEFT JOIN effect_broker.effect_payloads AS w
    ON w.tenant_id = i.tenant_id AND w.effect_id = i.effect_id AND w.kind = 'wire' AND w.ref = ''
LEFT JOIN LATERAL (
    SELECT q.key_id, q.ciphertext
    FROM effect_broker.effect_attempts AS a
    JOIN effect_broker.effect_payloads AS q
        ON q.tenant_id = a.tenant_id AND q.effect_id = a.effect_id AND q.kind = 'operation'
        AND q.ref = a.attempt_id::text
    WHERE a.tenant_id = i.tenant_id AND a.effect_id = i.effect_id AND a.operation
    ORDER BY a.ordinal DESC LIMIT 1
    ) AS o ON true
LEFT JOIN effect_broker.mutation_keys AS m
    ON m.tenant_id = i.tenant_id AND m.effect_id = i.effect_id AND m.kind = 'mutation'
WHERE i.tenant_id = %(tenant_id)s AND i.effect_id = %(effect_id)s
"""

# A new effect as its submit has left it, and the clock; no row where it is that no longer. What
# else may stop its first attempt is looked at when that is written (`GRANT_FIRST`).
_NEW: Final = """, clock_timestamp() AS now,
       (SELECT d.bounds_restart_at FROM effect_broker.database_identity AS d WHERE d.singleton)
           AS bounds_restart_at,
       w.key_id AS wire_key_id, w.ciphertext AS wire_ciphertext
FROM effect_broker.effect_intents
LEFT JOIN LATERAL (
    SELECT q.key_id, q.ciphertext FROM effect_broker.effect_payloads AS q
    WHERE q.tenant_id = %(tenant_id)s AND q.effect_id = %(effect_id)s
      AND q.kind = 'wire' AND q.ref = '') AS w ON true
WHERE tenant_id = %(tenant_id)s AND effect_id = %(effect_id)s AND version = 1
  AND state || '' = 'prepared'  -- by the key, not by an index of what is open
"""
READ_NEW: Final = _INTENT.rstrip() + _NEW

READ_CONTRACT: Final = "SELECT document FROM effect_broker.contracts WHERE digest = %(digest)s"

READ_PAYLOAD: Final = """
SELECT key_id AS payload_key_id, ciphertext AS payload_ciphertext
FROM effect_broker.effect_payloads
WHERE tenant_id = %(tenant_id)s AND effect_id = %(effect_id)s AND kind = %(kind)s AND ref = %(ref)s
"""

# Submit ----------------------------------------------------------------------------------------

# One statement in autocommit mode: one round trip and nothing between its parts. The tenant's
# setting is an input of the function's call, so that it is in place before the function runs.
_SUBMITTED: Final = """
SELECT s.created, s.enqueued,
       (s.intent).effect_id, (s.intent).tenant_id, (s.intent).operation_key, (s.intent).tool,
       (s.intent).request_hash, (s.intent).contract_name, (s.intent).contract_version,
       (s.intent).contract_digest, (s.intent).safety, (s.intent).downstream_key,
       (s.intent).state, (s.intent).version, (s.intent).reason, (s.intent).generation,
       (s.intent).progress_generation, (s.intent).next_action_at, (s.intent).target_identity,
       (s.intent).wire_digest, (s.intent).created_at, (s.intent).updated_at,
       (s.intent).parked, (s.intent).requested_by, (s.intent).trace_id, (s.intent).preview,
       (s.intent).receipt_digest, (s.intent).alert, clock_timestamp() AS now,
       -- Whether the row is all that there is to show. A new effect has no links; one that stands
       -- may have, and one that this statement cannot see was committed beside it.
       s.created OR (
           EXISTS (SELECT 1 FROM effect_broker.effect_intents AS i
                   WHERE i.tenant_id = t.id AND i.effect_id = (s.intent).effect_id)
           AND NOT EXISTS (SELECT 1 FROM effect_broker.effect_links AS l
                           WHERE l.tenant_id = t.id AND l.effect_id = (s.intent).effect_id)
           AND NOT EXISTS (SELECT 1 FROM effect_broker.effect_links AS l
                           WHERE l.tenant_id = t.id AND l.parent_id = (s.intent).effect_id)
           AND NOT EXISTS (SELECT 1 FROM effect_broker.effect_links AS l
                           WHERE l.tenant_id = t.id AND l.compensates_id = (s.intent).effect_id)
       ) AS alone
FROM (SELECT set_config('effect_broker.tenant_id', %(tenant_id)s::text, true)::uuid AS id
      OFFSET 0) AS t,
LATERAL """
_SUBMISSION: Final = """
    t.id, %(effect_id)s, %(operation_key)s, %(tool)s, %(request_hash)s, %(contract_name)s,
    %(contract_version)s, %(contract_digest)s, %(safety)s, %(downstream_key)s, %(hmac_key_id)s,
    %(wire_digest)s, %(requested_by)s, %(trace_id)s, %(traceparent)s, %(preview)s,
    %(send_before)s, %(arguments_key_id)s, %(arguments)s, %(wire_key_id)s, %(wire)s"""
SUBMIT: Final = f"{_SUBMITTED}effect_broker.submit_effect({_SUBMISSION}) AS s"
# For an effect that belongs to another one; one call more in the database.
SUBMIT_LINKED: Final = (
    f"{_SUBMITTED}effect_broker.submit_linked_effect({_SUBMISSION},"
    " %(parent_id)s, %(compensates_id)s) AS s"
)

# Writes ----------------------------------------------------------------------------------------

START_ATTEMPT: Final = """
WITH written AS (
    INSERT INTO effect_broker.effect_attempts (
        attempt_id, tenant_id, effect_id, ordinal, executor_id, started_at, deadline_at,
        target_identity)
    VALUES (%(attempt_id)s, %(tenant_id)s, %(effect_id)s, %(ordinal)s, %(executor_id)s,
            %(started_at)s, %(deadline_at)s, %(target_identity)s)
    ON CONFLICT (effect_id, ordinal) DO NOTHING
    RETURNING 1)
SELECT effect_broker.expect_one(count(*), 'start_attempt') FROM written
"""

# Names the tenant of a statement in autocommit mode, before anything in it looks at a row.
OF_TENANT: Final = """
FROM (SELECT set_config('effect_broker.tenant_id', %(tenant_id)s::text, true)::uuid AS id
      OFFSET 0) AS t
"""

# A worker's grant that nothing else goes with: attempt, event and the intent's row at once.
_GRANT: Final = """%(effect_id)s, %(expected_version)s, %(expected_generation)s, %(attempt_id)s,
    %(ordinal)s, %(executor_id)s, %(now)s, %(deadline_at)s, %(target_identity)s,
    %(bound_identity)s, %(kind)s, %(event)s, %(from_state)s, %(to_state)s, %(reason)s, %(actor)s,
    %(metadata)s, %(next_action_at)s, %(key_expires_at)s, %(attempt_open_until)s, %(sender_lost)s
"""
GRANT_ATTEMPT: Final = f"SELECT effect_broker.start_attempt(%(tenant_id)s, {_GRANT})"

# The same of a new effect, with the locks and with what they guard: one statement in autocommit
# mode, which is the whole of transaction 1.
GRANT_FIRST: Final = (
    f"SELECT effect_broker.start_first_attempt(t.id, {_GRANT}) AS granted" + OF_TENANT
)

EXTEND_ATTEMPT: Final = """
WITH written AS (
    UPDATE effect_broker.effect_attempts SET deadline_at = %(deadline_at)s
    WHERE tenant_id = %(tenant_id)s AND effect_id = %(effect_id)s AND attempt_id = %(attempt_id)s
      AND outcome IS NULL AND deadline_at < %(deadline_at)s
    RETURNING 1)
SELECT effect_broker.expect_one(count(*), 'extend_attempt') FROM written
"""

LOSE_ATTEMPT: Final = """
WITH written AS (
    UPDATE effect_broker.effect_attempts
    SET outcome = 'presumed_ambiguous', lost_at = %(now)s
    WHERE tenant_id = %(tenant_id)s AND effect_id = %(effect_id)s AND ordinal = %(ordinal)s
      AND outcome IS NULL
    RETURNING 1)
SELECT effect_broker.expect_one(count(*), 'lose_attempt') FROM written
"""

RECORD_OUTCOME: Final = """
WITH written AS (
    UPDATE effect_broker.effect_attempts
    SET outcome = %(outcome)s, code = %(code)s, recorded_at = %(recorded_at)s,
        external_id = %(external_id)s, retry_after_seconds = %(retry_after_seconds)s,
        operation = %(operation)s, bytes_may_have_left = %(bytes_may_have_left)s,
        response_digest = %(response_digest)s, status = %(status)s,
        result_digest = %(result_digest)s
    WHERE tenant_id = %(tenant_id)s AND effect_id = %(effect_id)s AND attempt_id = %(attempt_id)s
      AND (outcome IS NULL OR outcome = 'presumed_ambiguous')
    RETURNING 1)
SELECT effect_broker.expect_one(count(*), 'record_outcome') FROM written
"""

ADD_EVIDENCE: Final = """
INSERT INTO effect_broker.effect_evidence (
    evidence_id, tenant_id, effect_id, source, verdict, code, began_at, recorded_at,
    covers_through, external_ids, target_identity, response_digest, result_digest)
VALUES (%(evidence_id)s, %(tenant_id)s, %(effect_id)s, %(source)s, %(verdict)s, %(code)s,
        %(began_at)s, %(now)s, %(covers_through)s, %(external_ids)s, %(target_identity)s,
        %(response_digest)s, %(result_digest)s)
"""

STORE_PAYLOAD: Final = """
INSERT INTO effect_broker.effect_payloads (
    tenant_id, effect_id, kind, ref, key_id, ciphertext, stored_at)
VALUES (%(tenant_id)s, %(effect_id)s, %(kind)s, %(ref)s, %(key_id)s, %(ciphertext)s, %(now)s)
ON CONFLICT (effect_id, kind, ref) DO NOTHING
"""

# A fence that stands there already is as good as a new one; a mutation's key is not.
FENCE_MUTATION: Final = """
WITH standing AS (
    SELECT 1 FROM effect_broker.mutation_keys
    WHERE tenant_id = %(tenant_id)s AND effect_id = %(effect_id)s AND ordinal = %(ordinal)s
      AND kind = 'fence'),
written AS (
    INSERT INTO effect_broker.mutation_keys (tenant_id, effect_id, ordinal, kind)
    VALUES (%(tenant_id)s, %(effect_id)s, %(ordinal)s, 'fence')
    ON CONFLICT DO NOTHING
    RETURNING 1)
SELECT effect_broker.expect_one(
    (SELECT count(*) FROM standing) + (SELECT count(*) FROM written), 'fence_mutation')
"""

# The key of a mutation comes before the mutation. No row is returned where a fence or another
# mutation of the effect stands in the way.
INSERT_MUTATION: Final = """
INSERT INTO effect_broker.mutation_keys (tenant_id, effect_id, ordinal, kind)
VALUES (%(tenant_id)s, %(effect_id)s, %(ordinal)s, 'mutation')
ON CONFLICT DO NOTHING
RETURNING ordinal
"""
SAVEPOINT: Final = "SAVEPOINT mutation"
ROLLBACK_TO_SAVEPOINT: Final = "ROLLBACK TO SAVEPOINT mutation"
READ_CLOCK: Final = "SELECT clock_timestamp() AS now"

ADD_RECEIPT: Final = """
INSERT INTO effect_broker.effect_receipts (
    receipt_id, tenant_id, effect_id, content, digest, result_ref, recorded_at)
VALUES (%(receipt_id)s, %(tenant_id)s, %(effect_id)s, %(content)s, %(digest)s, %(result_ref)s,
        %(now)s)
"""

# The first reason stays: later ones follow from it. What freezes a contract is a lie of its target,
# so the certificates that say otherwise end in the same commit (`store.certificates`).
FREEZE_CONTRACT: Final = """
WITH revoked AS (
    INSERT INTO effect_broker.certificate_revocations (
        contract_digest, reason, effect_id, actor, revoked_at)
    VALUES (%(contract_digest)s, %(reason)s, %(effect_id)s, 'broker', %(now)s)
    ON CONFLICT DO NOTHING)
INSERT INTO effect_broker.holds (
    hold_id, kind, tenant_id, contract_name, contract_version, reason, placed_by, placed_at)
VALUES (gen_random_uuid(), 'frozen', %(tenant_id)s, %(contract_name)s, %(contract_version)s,
        %(reason)s, 'broker', %(now)s)
ON CONFLICT (kind, tenant_id, tool, contract_name, contract_version) WHERE lifted_at IS NULL
DO NOTHING
"""

APPEND_EVENT: Final = """
INSERT INTO effect_broker.effect_events (
    tenant_id, effect_id, sequence, kind, event, from_state, to_state, reason, actor, at, metadata)
VALUES (%(tenant_id)s, %(effect_id)s, %(sequence)s, %(kind)s, %(event)s, %(from_state)s,
        %(to_state)s, %(reason)s, %(actor)s, %(now)s, %(metadata)s)
"""

ADD_APPROVAL: Final = """
INSERT INTO effect_broker.effect_approvals (
    tenant_id, effect_id, decision_id, approved, content, digest, actor, recorded_at)
VALUES (%(tenant_id)s, %(effect_id)s, %(decision_id)s, %(approved)s, %(content)s, %(digest)s,
        %(actor)s, %(at)s)
"""

ACKNOWLEDGE: Final = """
INSERT INTO effect_broker.effect_acknowledgements (
    tenant_id, effect_id, sequence, alert, reason, actor, recorded_at)
VALUES (%(tenant_id)s, %(effect_id)s, %(sequence)s, %(alert)s, %(reason)s, %(actor)s, %(now)s)
"""

ADD_RESOLUTION: Final = """
INSERT INTO effect_broker.effect_resolutions (
    tenant_id, effect_id, decision_id, evidence_id, conclusion, content, digest, actor,
    recorded_at)
VALUES (%(tenant_id)s, %(effect_id)s, %(decision_id)s, %(evidence_id)s, %(conclusion)s,
        %(content)s, %(digest)s, %(actor)s, %(now)s)
"""

UPDATE_INTENT: Final = """
WITH written AS (
    UPDATE effect_broker.effect_intents AS i
    SET state = %(state)s, reason = %(reason)s, version = %(version)s,
        generation = %(generation)s, progress_generation = %(progress_generation)s,
        latest_ordinal = %(latest_ordinal)s, next_action_at = %(next_action_at)s,
        parked = %(parked)s, target_identity = %(target_identity)s,
        wire_digest = %(wire_digest)s, receipt_digest = %(receipt_digest)s, alert = %(alert)s,
        failed_by_operator_at = %(failed_by_operator_at)s,
        reconcile_asked_at = %(reconcile_asked_at)s,
        cancel_requested_at = %(cancel_requested_at)s, approved_at = %(approved_at)s,
        key_expires_at = %(key_expires_at)s, attempt_open_until = %(attempt_open_until)s,
        sender_lost = %(sender_lost)s,
        event_digest = coalesce(
            (SELECT e.digest FROM effect_broker.effect_events AS e
             WHERE e.tenant_id = i.tenant_id AND e.effect_id = i.effect_id
               AND e.sequence = %(version)s),
            i.event_digest),
        updated_at = %(now)s
    WHERE i.tenant_id = %(tenant_id)s AND i.effect_id = %(effect_id)s
      AND i.version = %(expected_version)s AND i.generation = %(expected_generation)s
    RETURNING 1)
SELECT effect_broker.expect_one(count(*), 'update_intent') FROM written
"""

ENQUEUE_RUN: Final = """
SELECT effect_broker.expect_enqueued(effect_broker.enqueue_run(
    %(tenant_id)s, %(effect_id)s, %(generation)s, %(next_action_at)s))
"""
