-- What nearly every effect does, in fewer statements. Nothing here is decided that is not decided
-- in the protocol too: each function writes what a plan has said, under the guards of that plan.
-- All run with the rights of whoever calls them.

-- Both locks of a change in their order, and the locked row. Each statement in here takes a
-- snapshot of its own, so that what is read after it sees what was waited for.
CREATE FUNCTION effect_broker.lock_effect(p_tenant_id uuid, p_effect_id uuid)
RETURNS SETOF effect_broker.effect_intents
LANGUAGE plpgsql ROWS 1 SET search_path = pg_catalog, effect_broker, pg_temp AS $$
BEGIN
    PERFORM set_config('effect_broker.tenant_id', p_tenant_id::text, true);
    RETURN QUERY
        SELECT i.* FROM effect_broker.effect_intents AS i
        WHERE i.tenant_id = p_tenant_id AND i.effect_id = p_effect_id
        FOR NO KEY UPDATE;
    PERFORM effect_broker.share_holds(p_tenant_id);
END $$;
REVOKE ALL ON FUNCTION effect_broker.lock_effect FROM PUBLIC;
GRANT EXECUTE ON FUNCTION effect_broker.lock_effect TO effect_broker_api, effect_broker_worker;

-- A permission to send that follows on nothing that was lost: attempt, event and the intent's row.
-- It has to be this change that makes the attempt, and on the version that it was planned on.
CREATE FUNCTION effect_broker.start_attempt(
    p_tenant_id uuid, p_effect_id uuid, p_version integer, p_generation integer,
    p_attempt_id uuid, p_ordinal integer, p_executor_id text, p_started_at timestamptz,
    p_deadline_at timestamptz, p_target_identity text, p_bound_identity text, p_kind text,
    p_event text, p_from_state text, p_to_state text, p_reason text, p_actor text,
    p_metadata text, p_next_action_at timestamptz, p_key_expires_at timestamptz,
    p_open_until timestamptz, p_sender_lost boolean
) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, effect_broker, pg_temp AS $$
DECLARE
    head bytea;
BEGIN
    INSERT INTO effect_broker.effect_attempts (
        attempt_id, tenant_id, effect_id, ordinal, executor_id, started_at, deadline_at,
        target_identity)
    VALUES (p_attempt_id, p_tenant_id, p_effect_id, p_ordinal, p_executor_id, p_started_at,
        p_deadline_at, p_target_identity)
    ON CONFLICT (effect_id, ordinal) DO NOTHING;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'guarded write start_attempt changed 0 rows' USING ERRCODE = 'EB001';
    END IF;
    INSERT INTO effect_broker.effect_events (
        tenant_id, effect_id, sequence, kind, event, from_state, to_state, reason, actor, at,
        metadata)
    VALUES (p_tenant_id, p_effect_id, p_version + 1, p_kind, p_event, p_from_state, p_to_state,
        p_reason, p_actor, p_started_at, p_metadata)
    RETURNING digest INTO head;
    UPDATE effect_broker.effect_intents AS i
    SET state = p_to_state, reason = p_reason, version = p_version + 1,
        progress_generation = p_generation, latest_ordinal = p_ordinal,
        next_action_at = p_next_action_at, parked = false, target_identity = p_bound_identity,
        key_expires_at = p_key_expires_at, attempt_open_until = p_open_until,
        sender_lost = p_sender_lost, event_digest = head, updated_at = p_started_at
    WHERE i.tenant_id = p_tenant_id AND i.effect_id = p_effect_id AND i.version = p_version
      AND i.generation = p_generation;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'guarded write update_intent changed 0 rows' USING ERRCODE = 'EB001';
    END IF;
END $$;
REVOKE ALL ON FUNCTION effect_broker.start_attempt FROM PUBLIC;
GRANT EXECUTE ON FUNCTION effect_broker.start_attempt TO effect_broker_worker;

-- Settle an effect by the word of the process that was granted its open attempt, in one statement.
-- It was planned on what the grant has left, so that the version has to be the one of the grant:
-- every fact bumps it. The moment was measured by the process from the grant's own; false, and
-- nothing written, where it is no longer true, or where anything has happened since: then the
-- outcome is planned under the lock, as every change is. `settle_election` did the same for callers
-- alone; it stays for processes of the release before.
CREATE FUNCTION effect_broker.settle_success(
    p_tenant_id uuid, p_effect_id uuid, p_version integer, p_generation integer,
    p_attempt_id uuid, p_at timestamptz, p_code text, p_external_id text, p_status integer,
    p_response_digest text, p_result_digest bytea, p_result_key_id text, p_result bytea,
    p_receipt_id uuid, p_content text, p_receipt_digest bytea, p_result_ref text, p_event text,
    p_to_state text, p_reason text, p_actor text, p_kind text, p_metadata text,
    p_next_action_at timestamptz, p_signing_key_id text, p_algorithm text, p_signature bytea
) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, effect_broker, pg_temp AS $$
DECLARE
    late interval;
    head bytea;
BEGIN
    PERFORM 1 FROM effect_broker.effect_intents AS i
    WHERE i.tenant_id = p_tenant_id AND i.effect_id = p_effect_id AND i.version = p_version
      AND i.generation = p_generation AND i.updated_at <= p_at
      AND i.state || '' = 'dispatching'  -- by the key, not by the index of what is open (0025)
    FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    late := clock_timestamp() - p_at;
    IF late < interval '0' OR late > interval '1 second' THEN
        RETURN false;
    END IF;
    UPDATE effect_broker.effect_attempts AS a
    SET outcome = 'committed', code = p_code, recorded_at = p_at, external_id = p_external_id,
        operation = false, bytes_may_have_left = true, response_digest = p_response_digest,
        status = p_status, result_digest = p_result_digest
    WHERE a.tenant_id = p_tenant_id AND a.effect_id = p_effect_id
      AND a.attempt_id = p_attempt_id AND a.outcome IS NULL;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    INSERT INTO effect_broker.effect_payloads (
        tenant_id, effect_id, kind, ref, key_id, ciphertext, stored_at)
    VALUES (p_tenant_id, p_effect_id, 'result', p_attempt_id::text, p_result_key_id, p_result,
        p_at);
    INSERT INTO effect_broker.effect_receipts (
        receipt_id, tenant_id, effect_id, content, digest, result_ref, recorded_at)
    VALUES (p_receipt_id, p_tenant_id, p_effect_id, p_content, p_receipt_digest, p_result_ref,
        p_at);
    INSERT INTO effect_broker.effect_events (
        tenant_id, effect_id, sequence, kind, event, from_state, to_state, reason, actor, at,
        metadata)
    VALUES (p_tenant_id, p_effect_id, p_version + 1, p_kind, p_event, 'dispatching', p_to_state,
        p_reason, p_actor, p_at, p_metadata)
    RETURNING digest INTO head;
    UPDATE effect_broker.effect_intents AS i
    SET state = p_to_state, reason = p_reason, version = p_version + 1,
        progress_generation = p_generation, next_action_at = p_next_action_at, parked = false,
        receipt_digest = p_receipt_digest, key_expires_at = NULL, attempt_open_until = NULL,
        sender_lost = false, event_digest = head, updated_at = p_at
    WHERE i.tenant_id = p_tenant_id AND i.effect_id = p_effect_id;
    IF p_signature IS NOT NULL THEN
        INSERT INTO effect_broker.effect_receipt_signatures (
            tenant_id, effect_id, receipt_digest, key_id, algorithm, signature, signed_at)
        VALUES (p_tenant_id, p_effect_id, p_receipt_digest, p_signing_key_id, p_algorithm,
            p_signature, p_at);
    END IF;
    RETURN true;
END $$;
REVOKE ALL ON FUNCTION effect_broker.settle_success FROM PUBLIC;
GRANT EXECUTE ON FUNCTION effect_broker.settle_success
    TO effect_broker_api, effect_broker_worker;

-- The same text as before, in the language that keeps the plan of an expression: the digest of an
-- event calls it a dozen times, and takes half of its time now.
CREATE OR REPLACE FUNCTION effect_broker.canonical_field(field text) RETURNS text
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    RETURN CASE WHEN field IS NULL THEN '-;'
                ELSE octet_length(convert_to(field, 'UTF8')) || ':' || field || ';' END;
END $$;
