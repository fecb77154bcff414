-- What `/metrics` tells of the ledger: numbers over all tenants, and nothing else of any of them.

-- What is in doubt, by tool; the first of each group is the oldest. Settled effects are not in it, so
-- that neither an age nor a count costs more with a longer history. With the tenant, so that the
-- policies below are judged without a look at the table.
CREATE INDEX effects_in_doubt ON effect_broker.effect_intents (tool, safety, state, created_at)
    INCLUDE (tenant_id)
    WHERE state IN ('outcome_unknown', 'reconciling', 'manual_review');

-- Only the function below counts over tenants, and it sets this for itself. The right is the owner's
-- alone, and nobody logs in as the owner.
CREATE POLICY counted ON effect_broker.effect_intents FOR SELECT TO effect_broker_owner
    USING (current_setting('effect_broker.counting', true) = 'on');
CREATE POLICY counted ON effect_broker.holds FOR SELECT TO effect_broker_owner
    USING (current_setting('effect_broker.counting', true) = 'on');

-- One row for each number. Each is read from an index that holds what is open, and counting stops at
-- p_count_max, so that the cost has a bound whatever has piled up. The queue is missing while the
-- engine's schema is away.
CREATE FUNCTION effect_broker.ledger_numbers(p_count_max integer)
RETURNS TABLE (measure text, tool text, safety text, state text, value double precision)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, effect_broker, pg_temp AS $$
DECLARE
    now_at timestamptz := clock_timestamp();
    depth double precision;
BEGIN
    -- Not in the function's header: who owns a schema may not store a setting that no extension
    -- has declared.
    PERFORM set_config('effect_broker.counting', 'on', true);
    RETURN QUERY
        WITH groups AS MATERIALIZED (
            SELECT DISTINCT c.tool, c.safety FROM effect_broker.contracts AS c),
        doubts AS (
            SELECT g.tool, g.safety, s.state, oldest.created_at, counted.n
            FROM groups AS g
            CROSS JOIN (VALUES ('outcome_unknown'), ('reconciling'), ('manual_review'))
                AS s (state)
            CROSS JOIN LATERAL (
                SELECT i.created_at FROM effect_broker.effect_intents AS i
                WHERE i.tool = g.tool AND i.safety = g.safety AND i.state = s.state
                  AND i.state IN ('outcome_unknown', 'reconciling', 'manual_review')
                ORDER BY i.created_at LIMIT 1) AS oldest
            CROSS JOIN LATERAL (
                SELECT count(*) AS n FROM (
                    SELECT 1 FROM effect_broker.effect_intents AS i
                    WHERE i.tool = g.tool AND i.safety = g.safety AND i.state = s.state
                      AND i.state IN ('outcome_unknown', 'reconciling', 'manual_review')
                    LIMIT p_count_max) AS few) AS counted)
        SELECT m.measure, d.tool, d.safety, d.state, m.value
        FROM doubts AS d
        CROSS JOIN LATERAL (VALUES
            ('in_doubt', d.n::float8),
            ('in_doubt_oldest_seconds', extract(epoch FROM now_at - d.created_at)::float8)
            ) AS m (measure, value);
    RETURN QUERY
        SELECT 'alerts', NULL::text, NULL::text, a.alert, count(*)::float8
        FROM (SELECT i.alert FROM effect_broker.effect_intents AS i
              WHERE i.alert IS NOT NULL LIMIT p_count_max) AS a
        GROUP BY a.alert;
    RETURN QUERY
        SELECT 'due', NULL::text, NULL::text, NULL::text, count(*)::float8
        FROM (SELECT 1 FROM effect_broker.effect_intents AS i
              WHERE i.next_action_at <= now_at LIMIT p_count_max) AS due;
    RETURN QUERY
        SELECT 'due_oldest_seconds', NULL::text, NULL::text, NULL::text,
            greatest(extract(epoch FROM now_at - i.next_action_at), 0)::float8
        FROM effect_broker.effect_intents AS i
        WHERE i.next_action_at IS NOT NULL ORDER BY i.next_action_at LIMIT 1;
    RETURN QUERY
        SELECT 'workers', NULL::text, NULL::text, w.standing, count(*)::float8
        FROM (SELECT CASE WHEN k.beat_at <= now_at - make_interval(secs => k.ttl_seconds)
                          THEN 'dead'
                          WHEN k.draining_at IS NOT NULL THEN 'draining'
                          ELSE 'live' END AS standing
              FROM effect_broker.workers AS k WHERE k.stopped_at IS NULL) AS w
        GROUP BY w.standing;
    RETURN QUERY
        SELECT 'heartbeat_age_seconds', NULL::text, NULL::text, NULL::text,
            greatest(extract(epoch FROM now_at - max(k.beat_at)), 0)::float8
        FROM effect_broker.workers AS k WHERE k.stopped_at IS NULL HAVING count(*) > 0;
    RETURN QUERY
        SELECT 'holds', NULL::text, NULL::text, h.kind, count(*)::float8
        FROM effect_broker.holds AS h WHERE h.lifted_at IS NULL GROUP BY h.kind;
    RETURN QUERY
        SELECT 'dispatch_halted', NULL::text, NULL::text, NULL::text,
            (d.halted_at IS NOT NULL)::integer::float8
        FROM effect_broker.database_identity AS d WHERE d.singleton;
    BEGIN
        -- The names are those of effect_broker.hosting; a test compares them.
        SELECT count(*)::float8 INTO depth FROM (
            SELECT 1 FROM dbos.workflow_status AS w
            WHERE w.queue_name = 'effects' AND w.status = 'ENQUEUED'
              AND w.application_name = 'effect-broker' LIMIT p_count_max) AS queued;
        RETURN QUERY
            SELECT 'queue_depth', NULL::text, NULL::text, NULL::text, depth;
    EXCEPTION
        -- Missing, being dropped or recreated at this moment, or not yet granted again.
        WHEN invalid_schema_name OR undefined_table OR undefined_column OR undefined_object
            OR insufficient_privilege OR lock_not_available OR internal_error
        THEN NULL;
    END;
    PERFORM set_config('effect_broker.counting', '', true);
END $$;
REVOKE ALL ON FUNCTION effect_broker.ledger_numbers FROM PUBLIC;
GRANT EXECUTE ON FUNCTION effect_broker.ledger_numbers
    TO effect_broker_api, effect_broker_worker;
