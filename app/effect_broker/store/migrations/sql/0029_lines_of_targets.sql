-- A row of turns at a limited target is no longer than those who stand in it: who was withdrawn or
-- has expired keeps nobody else waiting. Where there is room, it moves up.

-- Who waits for a turn at a contract's targets, in the order of the turns.
CREATE INDEX effects_waiting_for_a_turn
    ON effect_broker.effect_intents (contract_name, tenant_id, next_action_at)
    WHERE reason = 'target_busy';

-- As `lock_pace`, which stays for processes of the release before, and how many of the tenant have a
-- turn to come. So many that counting would take long are not counted, and their row is as it is.
CREATE FUNCTION effect_broker.lock_target(
    p_contract_name text, p_target_identity text, p_tenant_id uuid
) RETURNS TABLE (
    now timestamptz, open_attempts integer, open_seconds double precision,
    ended_seconds double precision, hold_seconds double precision, granted_at timestamptz,
    rate_at timestamptz, turns_at timestamptz, again_at timestamptz, others integer,
    waiting integer
)
LANGUAGE plpgsql ROWS 1 SET search_path = pg_catalog, effect_broker, pg_temp
-- Who waits is found by the index above, whatever the statistics of an hour ago say: the plan stays
-- in the session, and others wait for the target meanwhile.
SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    pace record;
    waiters_max CONSTANT integer := 500;
BEGIN
    SELECT p.* INTO STRICT pace
    FROM effect_broker.lock_pace(p_contract_name, p_target_identity, p_tenant_id) AS p;
    -- The row of a tenant of whom nobody waits any more slows down nobody else.
    DELETE FROM effect_broker.limited_tenants AS n
    WHERE n.contract_name = p_contract_name AND n.target_identity = p_target_identity
      AND (SELECT i.effect_id FROM effect_broker.effect_intents AS i
           WHERE i.contract_name = p_contract_name AND i.tenant_id = n.tenant_id
             AND i.reason = 'target_busy' AND i.next_action_at > pace.now
           ORDER BY i.next_action_at LIMIT 1) IS NULL;
    RETURN QUERY
        SELECT clock_timestamp(), pace.open_attempts, pace.open_seconds, pace.ended_seconds,
               pace.hold_seconds, pace.granted_at, pace.rate_at, mine.turns_at, mine.again_at,
               (SELECT count(*)::integer FROM effect_broker.limited_tenants AS n
                WHERE n.contract_name = p_contract_name
                  AND n.target_identity = p_target_identity AND n.tenant_id <> p_tenant_id),
               nullif(waiters.counted, waiters_max)
        FROM (SELECT count(*)::integer AS counted FROM (
                  SELECT 1 FROM effect_broker.effect_intents AS i
                  WHERE i.contract_name = p_contract_name AND i.tenant_id = p_tenant_id
                    AND i.reason = 'target_busy' AND i.next_action_at > pace.now
                  ORDER BY i.next_action_at LIMIT waiters_max) AS counting) AS waiters
        LEFT JOIN effect_broker.limited_tenants AS mine
            ON mine.contract_name = p_contract_name
            AND mine.target_identity = p_target_identity AND mine.tenant_id = p_tenant_id;
END $$;

-- As `keep_pace`, which stays for processes of the release before. A grant too may say that the
-- tenant's row begins anew, and where it leaves room, those who would be next are due now: that adds
-- no fact to them, and permits nothing. A row that is locked is just being moved, and is let be.
CREATE FUNCTION effect_broker.keep_target(
    p_contract_name text, p_target_identity text, p_tenant_id uuid, p_effect_id uuid,
    p_hold_seconds double precision, p_granted_at timestamptz, p_rate_at timestamptz,
    p_turns_at timestamptz, p_again_at timestamptz, p_attempt_id uuid, p_now timestamptz,
    p_open_until timestamptz, p_wakes integer, p_wake_seconds double precision
) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, effect_broker, pg_temp
SET enable_seqscan = off AS $$
BEGIN
    PERFORM effect_broker.keep_pace(
        p_contract_name, p_target_identity, p_tenant_id, p_effect_id, p_hold_seconds, p_granted_at,
        p_rate_at, p_turns_at, p_again_at, p_attempt_id, p_now, p_open_until);
    IF p_attempt_id IS NULL THEN
        RETURN;
    END IF;
    UPDATE effect_broker.limited_tenants AS n SET turns_at = p_turns_at
    WHERE n.contract_name = p_contract_name AND n.target_identity = p_target_identity
      AND n.tenant_id = p_tenant_id AND n.turns_at IS DISTINCT FROM p_turns_at;
    IF p_wakes > 0 THEN
        -- Read once: a plan that reads it again for each row would find others behind those that
        -- this statement has moved.
        UPDATE effect_broker.effect_intents AS i
        SET next_action_at = p_now, updated_at = p_now
        WHERE i.tenant_id = p_tenant_id AND i.effect_id = ANY (ARRAY(
            SELECT w.effect_id FROM effect_broker.effect_intents AS w
            WHERE w.contract_name = p_contract_name AND w.tenant_id = p_tenant_id
              AND w.reason = 'target_busy'
              AND w.next_action_at > p_now + make_interval(secs => p_wake_seconds)
            ORDER BY w.next_action_at LIMIT p_wakes
            FOR NO KEY UPDATE SKIP LOCKED));
    END IF;
END $$;
REVOKE ALL ON FUNCTION effect_broker.lock_target, effect_broker.keep_target FROM PUBLIC;
GRANT EXECUTE ON FUNCTION effect_broker.lock_target, effect_broker.keep_target
    TO effect_broker_worker;
