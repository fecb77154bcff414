-- A drill: an operator arms a fault for one effect, and watches how its loss is settled. The effect
-- that matches it first runs in a worker of its own, which dies at the fault point.
CREATE TABLE effect_broker.drills (
    drill_id uuid PRIMARY KEY,
    tenant_id uuid NOT NULL REFERENCES effect_broker.tenants,
    -- What it waits for: this key, or the first new effect of this tool.
    operation_key text COLLATE "C" CHECK (operation_key ~ '^[!-~]{1,255}$'),
    tool text COLLATE "C" CHECK (tool <> ''),
    fault_point text NOT NULL CHECK (fault_point ~ '^[a-z_]{1,64}$'),
    -- So long the matched effect is left to the drill's worker.
    takeover_seconds integer NOT NULL CHECK (takeover_seconds BETWEEN 1 AND 600),
    armed_by text NOT NULL CHECK (armed_by <> ''),
    reason text NOT NULL CHECK (reason <> ''),
    armed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at timestamptz NOT NULL,
    cancelled_by text CHECK (cancelled_by <> ''),
    cancelled_at timestamptz,
    effect_id uuid,
    matched_at timestamptz,
    executor_id text,
    worker_ready_at timestamptz,
    died_at timestamptz,
    FOREIGN KEY (tenant_id, effect_id) REFERENCES effect_broker.effect_intents,
    CONSTRAINT one_drill_per_effect UNIQUE (effect_id),
    CONSTRAINT key_or_tool CHECK ((operation_key IS NULL) <> (tool IS NULL)),
    CONSTRAINT expires_later CHECK (expires_at > armed_at),
    CONSTRAINT cancelled_by_somebody CHECK ((cancelled_at IS NULL) = (cancelled_by IS NULL)),
    CONSTRAINT matched_by_an_effect CHECK ((matched_at IS NULL) = (effect_id IS NULL)),
    CONSTRAINT cancelled_before_it_matched CHECK (cancelled_at IS NULL OR matched_at IS NULL),
    CONSTRAINT worker_is_named CHECK ((executor_id IS NULL) = (worker_ready_at IS NULL)),
    CONSTRAINT dies_with_its_effect CHECK (
        died_at IS NULL OR (matched_at IS NOT NULL AND executor_id IS NOT NULL))
);
CREATE INDEX armed_drills ON effect_broker.drills (tenant_id, expires_at)
    WHERE effect_id IS NULL AND cancelled_at IS NULL;
CREATE INDEX matched_drills ON effect_broker.drills (matched_at) WHERE matched_at IS NOT NULL;
CREATE INDEX drills_by_age ON effect_broker.drills (tenant_id, armed_at DESC, drill_id DESC);

-- What is written stays; each moment is written once. Only the worker may be started anew, until
-- one has died of the drill.
CREATE FUNCTION effect_broker.refuse_rewriting() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, effect_broker, pg_temp AS $$
BEGIN
    IF EXISTS (
        SELECT 1 FROM jsonb_each(to_jsonb(OLD)) AS was
        WHERE was.value <> 'null' AND (to_jsonb(NEW) -> was.key) IS DISTINCT FROM was.value
          AND (OLD.died_at IS NOT NULL OR was.key NOT IN ('executor_id', 'worker_ready_at')))
    THEN
        RAISE EXCEPTION 'a drill is never rewritten' USING ERRCODE = 'EB001';
    END IF;
    RETURN NEW;
END $$;
REVOKE ALL ON FUNCTION effect_broker.refuse_rewriting FROM PUBLIC;
CREATE TRIGGER refuse_rewriting BEFORE UPDATE ON effect_broker.drills
    FOR EACH ROW EXECUTE FUNCTION effect_broker.refuse_rewriting();
CREATE TRIGGER refuse_change BEFORE DELETE ON effect_broker.drills
    FOR EACH ROW EXECUTE FUNCTION effect_broker.refuse_change();
CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON effect_broker.drills
    FOR EACH STATEMENT EXECUTE FUNCTION effect_broker.refuse_change();

ALTER TABLE effect_broker.drills ENABLE ROW LEVEL SECURITY;
ALTER TABLE effect_broker.drills FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON effect_broker.drills TO effect_broker_api, effect_broker_owner
    USING (tenant_id =
        (SELECT nullif(current_setting('effect_broker.tenant_id', true), '')::uuid));
CREATE POLICY every_tenant ON effect_broker.drills
    TO effect_broker_worker, effect_broker_prune, effect_broker_admin USING (true);
-- Operators arm and disarm, the submit matches, and a worker says what became of it.
GRANT SELECT,
    INSERT (drill_id, tenant_id, operation_key, tool, fault_point, takeover_seconds, armed_by,
        reason, expires_at),
    UPDATE (cancelled_by, cancelled_at) ON effect_broker.drills TO effect_broker_api;
GRANT SELECT, UPDATE (executor_id, worker_ready_at, died_at) ON effect_broker.drills
    TO effect_broker_worker;

-- The armed drill that a new effect has to take, locked; all NULL where there is none. A drill for
-- a key is waited for: who holds it submits the same key, and that is waited for anyway. A drill
-- for a tool is not: a submit must never wait for a stranger's, so the next one takes it.
CREATE FUNCTION effect_broker.drill_for(
    p_tenant_id uuid, p_operation_key text, p_tool text, p_send_before timestamptz,
    p_at timestamptz
) RETURNS effect_broker.drills
LANGUAGE plpgsql SET search_path = pg_catalog, effect_broker, pg_temp AS $$
DECLARE
    drill effect_broker.drills;
BEGIN
    PERFORM 1 FROM effect_broker.effect_intents AS i
    WHERE i.tenant_id = p_tenant_id AND i.operation_key = p_operation_key;
    IF FOUND THEN
        RETURN NULL; -- a replay is no new effect
    END IF;
    SELECT d.* INTO drill FROM effect_broker.drills AS d
    WHERE d.tenant_id = p_tenant_id AND d.operation_key = p_operation_key
      AND d.effect_id IS NULL AND d.cancelled_at IS NULL AND d.expires_at > p_at
      AND effect_broker.drill_does_no_harm(d, p_send_before, p_at)
    ORDER BY d.armed_at, d.drill_id LIMIT 1 FOR NO KEY UPDATE;
    IF FOUND THEN
        RETURN drill;
    END IF;
    SELECT d.* INTO drill FROM effect_broker.drills AS d
    WHERE d.tenant_id = p_tenant_id AND d.tool = p_tool
      AND d.effect_id IS NULL AND d.cancelled_at IS NULL AND d.expires_at > p_at
      AND effect_broker.drill_does_no_harm(d, p_send_before, p_at)
    ORDER BY d.armed_at, d.drill_id LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED;
    RETURN drill;
END $$;

-- An effect is not put off for a drill's worker that has died meanwhile, nor beyond the moment
-- before which its caller wants it sent.
CREATE FUNCTION effect_broker.drill_does_no_harm(
    d effect_broker.drills, p_send_before timestamptz, p_at timestamptz
) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, effect_broker, pg_temp AS $$
    SELECT (p_send_before IS NULL
            OR p_send_before > p_at + make_interval(secs => 2 * d.takeover_seconds))
       AND (d.executor_id IS NULL OR EXISTS (
            SELECT 1 FROM effect_broker.workers AS k
            WHERE k.executor_id = d.executor_id AND k.stopped_at IS NULL
              AND k.beat_at > p_at - make_interval(secs => k.ttl_seconds)))
$$;

-- Put the first run of a drilled effect into the queue of the drill's own worker. It is in its
-- tenant's part there too, so that it fits the ordinary queue when it is handed over.
CREATE FUNCTION effect_broker.enqueue_drilled_run(
    p_tenant_id uuid, p_effect_id uuid, p_drill_id uuid
) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, effect_broker, pg_temp AS $$
BEGIN
    -- The names are those of effect_broker.hosting; a test compares them.
    PERFORM dbos.enqueue_workflow(
        workflow_name => 'effect_run',
        queue_name => 'effects-drill-' || p_drill_id::text,
        positional_args => ARRAY[
            to_json(p_tenant_id::text), to_json(p_effect_id::text), to_json(1)],
        workflow_id => p_effect_id::text || '.1',
        app_version => 'effect-broker-1',
        application_name => 'effect-broker',
        queue_partition_key => p_tenant_id::text);
    RETURN true;
EXCEPTION
    -- As in enqueue_run.
    WHEN invalid_schema_name OR undefined_table OR undefined_function OR undefined_column
        OR undefined_object OR insufficient_privilege OR lock_not_available OR internal_error
    THEN
        RETURN false;
END $$;
REVOKE ALL ON FUNCTION effect_broker.drill_for, effect_broker.drill_does_no_harm,
    effect_broker.enqueue_drilled_run FROM PUBLIC;

-- Submit as before, but for the drill that a new effect takes: its id is in the first event, and
-- the first run goes to the drill's worker.
CREATE OR REPLACE FUNCTION effect_broker.submit_effect(
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
    drill effect_broker.drills;
BEGIN
    IF p_tenant_id IS DISTINCT FROM
       nullif(current_setting('effect_broker.tenant_id', true), '')::uuid
    THEN
        RAISE EXCEPTION 'the session serves another tenant' USING ERRCODE = 'EB001';
    END IF;
    -- One look at an index that is empty while nothing is armed; the rest is for drills alone.
    IF EXISTS (SELECT 1 FROM effect_broker.drills AS d
               WHERE d.tenant_id = p_tenant_id AND d.expires_at > now_at
                 AND d.effect_id IS NULL AND d.cancelled_at IS NULL)
    THEN
        drill := effect_broker.drill_for(
            p_tenant_id, p_operation_key, p_tool, p_send_before, now_at);
    END IF;
    metadata := format('{"contract_digest":"%s",%s"request_hash":"%s"}',
        encode(p_contract_digest, 'hex'),
        CASE WHEN drill.drill_id IS NULL THEN ''
             ELSE format('"drill_id":"%s",', drill.drill_id) END,
        encode(p_request_hash, 'hex'));
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
        now_at, 'prepared', 'submitted', 1, 1, 1,
        -- If the drill's worker does not come, the ordinary ones take over at this moment.
        now_at + make_interval(secs => coalesce(drill.takeover_seconds, 0)),
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
    IF drill.drill_id IS NULL THEN
        enqueued := effect_broker.enqueue_run(p_tenant_id, p_effect_id, 1, now_at);
    ELSE
        UPDATE effect_broker.drills AS d SET effect_id = p_effect_id, matched_at = now_at
        WHERE d.tenant_id = p_tenant_id AND d.drill_id = drill.drill_id;
        enqueued := effect_broker.enqueue_drilled_run(p_tenant_id, p_effect_id, drill.drill_id);
    END IF;
    RETURN NEXT;
END $$;
