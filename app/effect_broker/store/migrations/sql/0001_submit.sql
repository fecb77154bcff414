-- The functions that cross a boundary of rights. Each runs as the owner, whom row-level security
-- binds as it does everybody: inside, too, only the rows of the session's tenant are seen.

-- Put the run of (effect, generation) into the engine's queue. False where the engine's schema is
-- away or not ours to use: the intent is the authority, and the reconcile loop enqueues it later.
CREATE FUNCTION effect_broker.enqueue_run(
    p_tenant_id uuid, p_effect_id uuid, p_generation integer, p_not_before timestamptz
) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, effect_broker, pg_temp AS $$
DECLARE
    outstanding integer;
    delay_until_ms bigint;
BEGIN
    PERFORM 1 FROM effect_broker.effect_intents i
    WHERE i.tenant_id = p_tenant_id AND i.effect_id = p_effect_id
      AND i.generation = p_generation;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'no such run of this tenant' USING ERRCODE = 'EB001';
    END IF;
    -- One tenant's backlog must not starve another's single effect: who has more outstanding is
    -- served later. Counting stops at 500, where more would no longer change the order much.
    SELECT count(*) INTO outstanding FROM (
        SELECT 1 FROM effect_broker.effect_intents i
        WHERE i.tenant_id = p_tenant_id AND i.next_action_at IS NOT NULL LIMIT 500) AS counted;
    -- A convenience: the engine wakes delayed rows by a worker's clock, ours decides.
    IF p_not_before > clock_timestamp() THEN
        delay_until_ms := ceil(extract(epoch FROM p_not_before) * 1000);
    END IF;
    -- The names are those of effect_broker.hosting; a test compares them.
    PERFORM dbos.enqueue_workflow(
        workflow_name => 'effect_run',
        queue_name => 'effects',
        positional_args => ARRAY[
            to_json(p_tenant_id::text), to_json(p_effect_id::text), to_json(p_generation)],
        workflow_id => p_effect_id::text || '.' || p_generation::text,
        app_version => 'effect-broker-1',
        application_name => 'effect-broker',
        priority => 1 + outstanding,
        delay_until_epoch_ms => delay_until_ms);
    RETURN true;
EXCEPTION
    -- Missing, being dropped or recreated at this moment, or not yet granted again.
    WHEN invalid_schema_name OR undefined_table OR undefined_function OR undefined_column
        OR undefined_object OR insufficient_privilege OR lock_not_available OR internal_error
    THEN
        RETURN false;
END $$;

-- Submit: the intent, its payloads, its first event and its run, in the caller's transaction. An
-- operation key that exists is returned as it stands; whether it is the same request is judged by
-- the caller under the contract that the stored row has pinned.
CREATE FUNCTION effect_broker.submit_effect(
    p_tenant_id uuid, p_effect_id uuid, p_operation_key text, p_tool text, p_request_hash bytea,
    p_contract_name text, p_contract_version text, p_contract_digest bytea, p_safety text,
    p_downstream_key text, p_hmac_key_id text, p_wire_digest bytea, p_requested_by text,
    p_trace_id text, p_traceparent text, p_preview jsonb, p_send_before timestamptz,
    p_arguments_key_id text, p_arguments bytea, p_wire_key_id text, p_wire bytea
) RETURNS TABLE (created boolean, enqueued boolean, intent effect_broker.effect_intents)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, effect_broker, pg_temp AS $$
DECLARE
    now_at timestamptz := clock_timestamp();
    metadata text;
BEGIN
    IF p_tenant_id IS DISTINCT FROM
       nullif(current_setting('effect_broker.tenant_id', true), '')::uuid
    THEN
        RAISE EXCEPTION 'the session serves another tenant' USING ERRCODE = 'EB001';
    END IF;
    metadata := format('{"contract_digest":"%s","request_hash":"%s"}',
        encode(p_contract_digest, 'hex'), encode(p_request_hash, 'hex'));
    -- No conflict target: any unique key that two submits of one operation meet on is the same
    -- conflict, whichever index notices it first.
    INSERT INTO effect_broker.effect_intents AS i (
        tenant_id, effect_id, operation_key, tool, request_hash, contract_name, contract_version,
        contract_digest, safety, downstream_key, hmac_key_id, wire_digest, requested_by, trace_id,
        traceparent, preview, send_before, created_at, state, reason, version, generation,
        progress_generation, next_action_at, event_digest, updated_at)
    VALUES (
        p_tenant_id, p_effect_id, p_operation_key, p_tool, p_request_hash, p_contract_name,
        p_contract_version, p_contract_digest, p_safety, p_downstream_key, p_hmac_key_id,
        p_wire_digest, p_requested_by, p_trace_id, p_traceparent, p_preview, p_send_before,
        now_at, 'prepared', 'submitted', 1, 1, 1, now_at,
        effect_broker.event_digest(''::bytea, p_tenant_id, p_effect_id, 1, 'submitted',
            'submitted', NULL, 'prepared', 'submitted', p_requested_by, now_at, metadata),
        now_at)
    ON CONFLICT DO NOTHING
    RETURNING i.* INTO intent;
    created := FOUND;
    enqueued := false;
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
    -- A caller knows the active contract from a moment ago. Judged here, so that a contract that
    -- was applied before a submit is the one that the submit is bound to.
    PERFORM 1 FROM effect_broker.active_contracts a
    WHERE a.tool = p_tool AND a.digest = p_contract_digest;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'not the active contract of its tool' USING ERRCODE = 'EB002';
    END IF;
    INSERT INTO effect_broker.effect_events (
        tenant_id, effect_id, sequence, kind, event, from_state, to_state, reason, actor, at,
        metadata)
    VALUES (p_tenant_id, p_effect_id, 1, 'submitted', 'submitted', NULL, 'prepared', 'submitted',
        p_requested_by, now_at, metadata);
    INSERT INTO effect_broker.effect_payloads (
        tenant_id, effect_id, kind, ref, key_id, ciphertext, stored_at)
    SELECT p_tenant_id, p_effect_id, p.kind, '', p.key_id, p.ciphertext, now_at
    FROM (VALUES ('arguments', p_arguments_key_id, p_arguments),
                 ('wire', p_wire_key_id, p_wire)) AS p (kind, key_id, ciphertext)
    WHERE p.ciphertext IS NOT NULL;
    enqueued := effect_broker.enqueue_run(p_tenant_id, p_effect_id, 1, now_at);
    RETURN NEXT;
END $$;

-- Authentication comes before a tenant is known, so it alone looks across tenants.
CREATE FUNCTION effect_broker.authenticate(p_key_hash bytea)
RETURNS TABLE (
    tenant_id uuid, key_id uuid, scopes text[], hmac_key_id text, disabled boolean)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, effect_broker, pg_temp AS $$
    SELECT k.tenant_id, k.key_id, k.scopes, t.hmac_key_id, t.disabled_at IS NOT NULL
    FROM effect_broker.api_keys k JOIN effect_broker.tenants t USING (tenant_id)
    WHERE k.key_hash = p_key_hash AND k.revoked_at IS NULL
$$;
