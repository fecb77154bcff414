-- Nothing holds a first attempt: no hold, a tenant that is served, a database that is not halted and is
-- the one that it was. Volatile, so that each look has a snapshot of its own.
CREATE FUNCTION effect_broker.nothing_holds(
    p_tenant_id uuid, p_tool text, p_contract_name text, p_contract_version text, p_safety text
) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, effect_broker, pg_temp AS $$
BEGIN
    RETURN NOT EXISTS (
        SELECT 1 FROM effect_broker.holds AS h
        WHERE h.lifted_at IS NULL AND (h.tenant_id IS NULL OR h.tenant_id = p_tenant_id)
          AND (h.tool IS NULL OR h.tool = p_tool)
          AND (h.contract_name IS NULL OR (h.contract_name, h.contract_version)
               = (p_contract_name, p_contract_version)))
      AND EXISTS (
        SELECT 1 FROM effect_broker.tenants AS t
        WHERE t.tenant_id = p_tenant_id AND t.disabled_at IS NULL)
      AND (p_safety = 'idempotent' OR EXISTS (
        SELECT 1 FROM effect_broker.database_identity AS d
        WHERE d.singleton AND d.halted_at IS NULL
          AND d.relation_oid = 'effect_broker.effect_intents'::regclass::oid));
END $$;
REVOKE ALL ON FUNCTION effect_broker.nothing_holds FROM PUBLIC;
GRANT EXECUTE ON FUNCTION effect_broker.nothing_holds TO effect_broker_worker;

-- The first permission to send, in one statement: locks, what may have changed since it was planned,
-- and the writes of `start_attempt`. It was planned on the row as the submit has left it, read without
-- a lock; the decision rests on that row, on the holds and on the clock, and all three are looked at
-- again under the locks. False, and nothing written, where anything is no longer as it was: then the
-- attempt is planned under the lock, as every other is.
CREATE FUNCTION effect_broker.start_first_attempt(
    p_tenant_id uuid, p_effect_id uuid, p_version integer, p_generation integer,
    p_attempt_id uuid, p_ordinal integer, p_executor_id text, p_started_at timestamptz,
    p_deadline_at timestamptz, p_target_identity text, p_bound_identity text, p_kind text,
    p_event text, p_from_state text, p_to_state text, p_reason text, p_actor text,
    p_metadata text, p_next_action_at timestamptz, p_key_expires_at timestamptz,
    p_open_until timestamptz, p_sender_lost boolean
) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, effect_broker, pg_temp AS $$
DECLARE
    effect effect_broker.effect_intents;
    at timestamptz;
BEGIN
    -- By the key alone: a condition more may choose another index (0025, 0028).
    SELECT i.* INTO effect FROM effect_broker.effect_intents AS i
    WHERE i.tenant_id = p_tenant_id AND i.effect_id = p_effect_id
    FOR NO KEY UPDATE;
    -- The version rises with every fact; the rest is looked at for what it is.
    IF NOT FOUND OR effect.version <> p_version OR effect.generation <> p_generation
       OR effect.state <> 'prepared' OR effect.parked OR effect.target_identity IS NOT NULL
       OR effect.cancel_requested_at IS NOT NULL OR effect.failed_by_operator_at IS NOT NULL
    THEN
        RETURN false;
    END IF;
    -- Second in the lock order, as in every change; the statements after it see what was placed.
    PERFORM effect_broker.share_holds(p_tenant_id);
    IF NOT effect_broker.nothing_holds(
        p_tenant_id, effect.tool, effect.contract_name, effect.contract_version, effect.safety)
    THEN
        RETURN false;
    END IF;
    -- Last, since the locks may have taken their time.
    at := clock_timestamp();
    IF p_started_at < effect.updated_at OR p_started_at > at
       OR p_started_at < at - interval '1 second' OR effect.send_before <= at
    THEN
        RETURN false;
    END IF;
    PERFORM effect_broker.start_attempt(
        p_tenant_id, p_effect_id, p_version, p_generation, p_attempt_id, p_ordinal, p_executor_id,
        p_started_at, p_deadline_at, p_target_identity, p_bound_identity, p_kind, p_event,
        p_from_state, p_to_state, p_reason, p_actor, p_metadata, p_next_action_at,
        p_key_expires_at, p_open_until, p_sender_lost);
    RETURN true;
END $$;
REVOKE ALL ON FUNCTION effect_broker.start_first_attempt FROM PUBLIC;
GRANT EXECUTE ON FUNCTION effect_broker.start_first_attempt TO effect_broker_worker;
