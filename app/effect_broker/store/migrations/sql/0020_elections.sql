-- Effects that their callers perform. An election is an attempt whose sender is a caller
-- (executor_id 'caller:<credential>'); its lease is the attempt's deadline, and may be extended.

-- Only the sender's word replaces a presumption, and nothing replaces the sender's word. What may
-- move of an open attempt is the deadline of a caller's, and only to later.
CREATE OR REPLACE FUNCTION effect_broker.keep_outcome() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, effect_broker, pg_temp AS $$
BEGIN
    IF (NEW.attempt_id, NEW.tenant_id, NEW.effect_id, NEW.ordinal, NEW.executor_id,
        NEW.started_at, NEW.target_identity)
       IS DISTINCT FROM
       (OLD.attempt_id, OLD.tenant_id, OLD.effect_id, OLD.ordinal, OLD.executor_id,
        OLD.started_at, OLD.target_identity)
    THEN
        RAISE EXCEPTION 'the identity of an attempt never changes' USING ERRCODE = 'EB001';
    END IF;
    IF NEW.deadline_at IS DISTINCT FROM OLD.deadline_at THEN
        IF starts_with(OLD.executor_id, 'caller:') AND NEW.deadline_at > OLD.deadline_at
           AND (to_jsonb(NEW) - 'deadline_at') = (to_jsonb(OLD) - 'deadline_at')
           AND OLD.outcome IS NULL
        THEN
            RETURN NEW;
        END IF;
        RAISE EXCEPTION 'only the open lease of a caller is extended' USING ERRCODE = 'EB001';
    END IF;
    IF NEW.outcome IS NULL OR (OLD.outcome IS NOT NULL AND OLD.outcome <> 'presumed_ambiguous')
       OR (OLD.outcome = 'presumed_ambiguous' AND NEW.outcome = 'presumed_ambiguous')
    THEN
        RAISE EXCEPTION 'the outcome of attempt % is not replaced', OLD.ordinal
            USING ERRCODE = 'EB001';
    END IF;
    RETURN NEW;
END $$;

-- The API grants attempts to callers and records what they say, and nothing of a worker's.
GRANT INSERT (
    attempt_id, tenant_id, effect_id, ordinal, executor_id, started_at, deadline_at,
    target_identity) ON effect_broker.effect_attempts TO effect_broker_api;
GRANT UPDATE (
    deadline_at, code, recorded_at, external_id, retry_after_seconds, operation,
    bytes_may_have_left, response_digest, status, result_digest)
    ON effect_broker.effect_attempts TO effect_broker_api;
CREATE POLICY starts_callers_attempts ON effect_broker.effect_attempts AS RESTRICTIVE
    FOR INSERT TO effect_broker_api
    WITH CHECK (starts_with(executor_id, 'caller:'));
CREATE POLICY records_callers_outcomes ON effect_broker.effect_attempts AS RESTRICTIVE
    FOR UPDATE TO effect_broker_api
    USING (true) WITH CHECK (recorded_at IS NULL OR starts_with(executor_id, 'caller:'));

-- Elect the first who asks: the intent, its payloads, its first attempt and both events, in one
-- statement. What is decided here stands in the protocol too: a new effect has no facts, so that
-- only a hold can stand in the way of its first attempt. An operation key that exists, and an
-- intent that is held, are returned as they stand; then the caller plans under the lock.
CREATE FUNCTION effect_broker.elect_effect(
    p_tenant_id uuid, p_effect_id uuid, p_operation_key text, p_tool text, p_request_hash bytea,
    p_contract_name text, p_contract_version text, p_contract_digest bytea, p_safety text,
    p_downstream_key text, p_hmac_key_id text, p_wire_digest bytea, p_requested_by text,
    p_trace_id text, p_traceparent text, p_preview jsonb,
    p_arguments_key_id text, p_arguments bytea, p_wire_key_id text, p_wire bytea,
    p_attempt_id uuid, p_executor_id text, p_target_identity text, p_lease_seconds float8,
    p_margin_seconds float8, p_key_retention_seconds float8, p_reason text
) RETURNS TABLE (created boolean, granted boolean, intent effect_broker.effect_intents)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, effect_broker, pg_temp AS $$
DECLARE
    now_at timestamptz := clock_timestamp();
    until_at timestamptz := now_at + make_interval(secs => p_lease_seconds);
    acts_at timestamptz := until_at + make_interval(secs => p_margin_seconds);
BEGIN
    IF p_tenant_id IS DISTINCT FROM
       nullif(current_setting('effect_broker.tenant_id', true), '')::uuid
    THEN
        RAISE EXCEPTION 'the session serves another tenant' USING ERRCODE = 'EB001';
    END IF;
    IF NOT starts_with(p_executor_id, 'caller:') THEN
        RAISE EXCEPTION 'only callers are elected' USING ERRCODE = 'EB001';
    END IF;
    granted := false;
    INSERT INTO effect_broker.effect_intents AS i (
        tenant_id, effect_id, operation_key, tool, request_hash, contract_name, contract_version,
        contract_digest, safety, downstream_key, hmac_key_id, wire_digest, requested_by, trace_id,
        traceparent, preview, created_at, state, reason, version, generation,
        progress_generation, next_action_at, event_digest, updated_at)
    VALUES (
        p_tenant_id, p_effect_id, p_operation_key, p_tool, p_request_hash, p_contract_name,
        p_contract_version, p_contract_digest, p_safety, p_downstream_key, p_hmac_key_id,
        p_wire_digest, p_requested_by, p_trace_id, p_traceparent, p_preview,
        now_at, 'prepared', 'submitted', 1, 1, 1, now_at, sha256(''::bytea), now_at)
    ON CONFLICT DO NOTHING
    RETURNING i.* INTO intent;
    created := FOUND;
    IF NOT created THEN
        SELECT i.* INTO intent FROM effect_broker.effect_intents i
        WHERE i.tenant_id = p_tenant_id AND i.operation_key = p_operation_key;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'the effect id belongs to another operation key'
                USING ERRCODE = 'EB001';
        END IF;
        RETURN NEXT;
        RETURN;
    END IF;
    -- As in `submit_effect`: the contract that was applied before is the one that binds.
    PERFORM 1 FROM effect_broker.active_contracts a
    WHERE a.tool = p_tool AND a.digest = p_contract_digest;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'not the active contract of its tool' USING ERRCODE = 'EB002';
    END IF;
    INSERT INTO effect_broker.effect_events (
        tenant_id, effect_id, sequence, kind, event, from_state, to_state, reason, actor, at,
        metadata)
    VALUES (p_tenant_id, p_effect_id, 1, 'submitted', 'submitted', NULL, 'prepared', 'submitted',
        p_requested_by, now_at, format('{"contract_digest":"%s","request_hash":"%s"}',
            encode(p_contract_digest, 'hex'), encode(p_request_hash, 'hex')));
    INSERT INTO effect_broker.effect_payloads (
        tenant_id, effect_id, kind, ref, key_id, ciphertext, stored_at)
    SELECT p_tenant_id, p_effect_id, p.kind, '', p.key_id, p.ciphertext, now_at
    FROM (VALUES ('arguments', p_arguments_key_id, p_arguments),
                 ('wire', p_wire_key_id, p_wire)) AS p (kind, key_id, ciphertext)
    WHERE p.ciphertext IS NOT NULL;
    -- Second in the lock order, as in every change; the statements after it see what was placed.
    PERFORM effect_broker.share_holds(p_tenant_id);
    granted := NOT EXISTS (
        SELECT 1 FROM effect_broker.holds AS h
        WHERE h.lifted_at IS NULL AND (h.tenant_id IS NULL OR h.tenant_id = p_tenant_id)
          AND (h.tool IS NULL OR h.tool = p_tool)
          AND (h.contract_name IS NULL OR (h.contract_name, h.contract_version)
               = (p_contract_name, p_contract_version)))
      AND EXISTS (
        SELECT 1 FROM effect_broker.tenants AS t
        WHERE t.tenant_id = p_tenant_id AND t.disabled_at IS NULL)
      AND (p_safety = 'idempotent' OR NOT EXISTS (
        SELECT 1 FROM effect_broker.database_identity AS d
        WHERE d.singleton AND (d.halted_at IS NOT NULL OR d.relation_oid
            IS DISTINCT FROM 'effect_broker.effect_intents'::regclass::oid)));
    IF granted THEN
        INSERT INTO effect_broker.effect_attempts (
            attempt_id, tenant_id, effect_id, ordinal, executor_id, started_at, deadline_at,
            target_identity)
        VALUES (p_attempt_id, p_tenant_id, p_effect_id, 1, p_executor_id, now_at, until_at,
            p_target_identity);
        INSERT INTO effect_broker.effect_events (
            tenant_id, effect_id, sequence, kind, event, from_state, to_state, reason, actor, at,
            metadata)
        VALUES (p_tenant_id, p_effect_id, 2, 'attempt_started', 'attempt_started', 'prepared',
            'dispatching', p_reason, p_executor_id, now_at,
            format('{"attempt_id":"%s","ordinal":1}', p_attempt_id));
    END IF;
    -- One update for both: the head of the chain is known only now.
    UPDATE effect_broker.effect_intents AS i
    SET event_digest = e.digest, version = e.sequence, state = e.to_state, reason = e.reason,
        latest_ordinal = CASE WHEN granted THEN 1 ELSE 0 END,
        next_action_at = CASE WHEN granted THEN acts_at ELSE now_at END,
        target_identity = CASE WHEN granted THEN p_target_identity END,
        attempt_open_until = CASE WHEN granted THEN acts_at END,
        key_expires_at = CASE WHEN granted
            THEN now_at + make_interval(secs => p_key_retention_seconds) END
    FROM (SELECT e.digest, e.sequence, e.to_state, e.reason FROM effect_broker.effect_events AS e
          WHERE e.tenant_id = p_tenant_id AND e.effect_id = p_effect_id
          ORDER BY e.sequence DESC LIMIT 1) AS e
    WHERE i.tenant_id = p_tenant_id AND i.effect_id = p_effect_id
    RETURNING i.* INTO intent;
    RETURN NEXT;
END $$;
REVOKE ALL ON FUNCTION effect_broker.elect_effect FROM PUBLIC;
GRANT EXECUTE ON FUNCTION effect_broker.elect_effect TO effect_broker_api;

-- Settle an effect by the word of its first caller, in one statement. It was planned on what the
-- election has written, so that the version has to be the one that it left. The moment was measured
-- by the process from the election's own; false, and nothing written, where it is no longer true, or
-- where anything has happened since: then the caller plans under the lock, as for every change.
CREATE FUNCTION effect_broker.settle_election(
    p_tenant_id uuid, p_effect_id uuid, p_version integer, p_generation integer,
    p_attempt_id uuid, p_at timestamptz, p_code text, p_external_id text, p_result_digest bytea,
    p_result_key_id text, p_result bytea, p_receipt_id uuid, p_content text,
    p_receipt_digest bytea, p_result_ref text, p_event text, p_to_state text, p_reason text,
    p_actor text, p_kind text, p_metadata text, p_next_action_at timestamptz,
    p_signing_key_id text, p_algorithm text, p_signature bytea
) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, effect_broker, pg_temp AS $$
DECLARE
    late interval;
BEGIN
    PERFORM 1 FROM effect_broker.effect_intents AS i
    WHERE i.tenant_id = p_tenant_id AND i.effect_id = p_effect_id AND i.version = p_version
      AND i.generation = p_generation AND i.state = 'dispatching' AND i.updated_at <= p_at
    FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    late := clock_timestamp() - p_at;
    IF late < interval '0' OR late > interval '100 milliseconds' THEN
        RETURN false;
    END IF;
    UPDATE effect_broker.effect_attempts AS a
    SET outcome = 'committed', code = p_code, recorded_at = p_at, external_id = p_external_id,
        operation = false, bytes_may_have_left = true, result_digest = p_result_digest
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
        p_reason, p_actor, p_at, p_metadata);
    UPDATE effect_broker.effect_intents AS i
    SET state = p_to_state, reason = p_reason, version = p_version + 1,
        progress_generation = p_generation, next_action_at = p_next_action_at, parked = false,
        receipt_digest = p_receipt_digest, key_expires_at = NULL, attempt_open_until = NULL,
        sender_lost = false, updated_at = p_at,
        event_digest = (SELECT e.digest FROM effect_broker.effect_events AS e
                        WHERE e.effect_id = p_effect_id AND e.sequence = p_version + 1)
    WHERE i.tenant_id = p_tenant_id AND i.effect_id = p_effect_id;
    IF p_signature IS NOT NULL THEN
        INSERT INTO effect_broker.effect_receipt_signatures (
            tenant_id, effect_id, receipt_digest, key_id, algorithm, signature, signed_at)
        VALUES (p_tenant_id, p_effect_id, p_receipt_digest, p_signing_key_id, p_algorithm,
            p_signature, p_at);
    END IF;
    RETURN true;
END $$;
REVOKE ALL ON FUNCTION effect_broker.settle_election FROM PUBLIC;
GRANT EXECUTE ON FUNCTION effect_broker.settle_election TO effect_broker_api;
