-- Limits of contracts: how hard a target is driven, over all workers and tenants. What a contract
-- without limits does, touches nothing of this.

-- One row for each contract (whatever its version) and target: the lock under which attempts are
-- granted, and the pace so far. Updated at every grant and never indexed but by its key.
CREATE TABLE effect_broker.limited_targets (
    contract_name text NOT NULL CHECK (contract_name <> ''),
    target_identity text NOT NULL CHECK (target_identity <> ''),
    hold_seconds double precision CHECK (hold_seconds >= 0),
    granted_at timestamptz,
    rate_at timestamptz,
    PRIMARY KEY (contract_name, target_identity)
) WITH (fillfactor = 25);

-- The attempts that may be open there. Whether one is, its own row says; these are found by it, and
-- go when it has ended, at the next look.
CREATE TABLE effect_broker.limited_attempts (
    attempt_id uuid PRIMARY KEY,
    tenant_id uuid NOT NULL,
    effect_id uuid NOT NULL,
    contract_name text NOT NULL,
    target_identity text NOT NULL,
    started_at timestamptz NOT NULL,
    open_until timestamptz NOT NULL CHECK (open_until > started_at),
    FOREIGN KEY (contract_name, target_identity) REFERENCES effect_broker.limited_targets
);
CREATE INDEX limited_attempts_of_target
    ON effect_broker.limited_attempts (contract_name, target_identity);

-- The turns of each tenant that has some to come.
CREATE TABLE effect_broker.limited_tenants (
    tenant_id uuid NOT NULL,
    contract_name text NOT NULL,
    target_identity text NOT NULL,
    turns_at timestamptz,
    again_at timestamptz,
    PRIMARY KEY (contract_name, target_identity, tenant_id),
    FOREIGN KEY (contract_name, target_identity) REFERENCES effect_broker.limited_targets
);

DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['limited_attempts', 'limited_tenants'] LOOP
        EXECUTE format('ALTER TABLE effect_broker.%I ENABLE ROW LEVEL SECURITY', name);
        EXECUTE format('ALTER TABLE effect_broker.%I FORCE ROW LEVEL SECURITY', name);
        EXECUTE format(
            'CREATE POLICY own_tenant ON effect_broker.%I TO effect_broker_api, effect_broker_owner'
            ' USING (tenant_id ='
            '   (SELECT nullif(current_setting(''effect_broker.tenant_id'', true), '''')::uuid))'
            , name);
        -- The places of a target are shared by all tenants.
        EXECUTE format('CREATE POLICY every_tenant ON effect_broker.%I'
            ' TO effect_broker_worker, effect_broker_prune, effect_broker_admin USING (true)', name);
    END LOOP;
END $$;
GRANT SELECT, INSERT, UPDATE ON effect_broker.limited_targets TO effect_broker_worker;
GRANT SELECT, INSERT, DELETE ON effect_broker.limited_attempts TO effect_broker_worker;
GRANT SELECT, INSERT, UPDATE, DELETE ON effect_broker.limited_tenants TO effect_broker_worker;

-- Lock a target and say what is known of it. Each statement in here takes a snapshot of its own, so
-- that what is read after the lock sees all that was granted before it; the clock is read last.
CREATE FUNCTION effect_broker.lock_pace(
    p_contract_name text, p_target_identity text, p_tenant_id uuid
) RETURNS TABLE (
    now timestamptz, open_attempts integer, open_seconds double precision,
    ended_seconds double precision, hold_seconds double precision, granted_at timestamptz,
    rate_at timestamptz, turns_at timestamptz, again_at timestamptz, others integer
)
LANGUAGE plpgsql ROWS 1 SET search_path = pg_catalog, effect_broker, pg_temp AS $$
#variable_conflict use_column
DECLARE
    target effect_broker.limited_targets;
    turns effect_broker.limited_tenants;
    ended double precision;
BEGIN
    SELECT t.* INTO target FROM effect_broker.limited_targets AS t
    WHERE t.contract_name = p_contract_name AND t.target_identity = p_target_identity
    FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        INSERT INTO effect_broker.limited_targets (contract_name, target_identity)
        VALUES (p_contract_name, p_target_identity) ON CONFLICT DO NOTHING;
        SELECT t.* INTO STRICT target FROM effect_broker.limited_targets AS t
        WHERE t.contract_name = p_contract_name AND t.target_identity = p_target_identity
        FOR NO KEY UPDATE;
    END IF;
    WITH gone AS (
        DELETE FROM effect_broker.limited_attempts AS l
        WHERE l.contract_name = p_contract_name AND l.target_identity = p_target_identity
          AND (l.open_until <= clock_timestamp() OR NOT EXISTS (
              SELECT 1 FROM effect_broker.effect_attempts AS a
              WHERE a.tenant_id = l.tenant_id AND a.attempt_id = l.attempt_id
                AND a.outcome IS NULL))
        RETURNING l.tenant_id, l.attempt_id, l.started_at, l.open_until)
    SELECT avg(greatest(extract(
        epoch FROM coalesce(a.recorded_at, g.open_until) - g.started_at), 0)) INTO ended
    FROM gone AS g
    LEFT JOIN effect_broker.effect_attempts AS a
        ON a.tenant_id = g.tenant_id AND a.attempt_id = g.attempt_id;
    DELETE FROM effect_broker.limited_tenants AS n
    WHERE n.contract_name = p_contract_name AND n.target_identity = p_target_identity
      AND coalesce(n.turns_at, '-infinity') <= clock_timestamp()
      AND coalesce(n.again_at, '-infinity') <= clock_timestamp();
    SELECT n.* INTO turns FROM effect_broker.limited_tenants AS n
    WHERE n.contract_name = p_contract_name AND n.target_identity = p_target_identity
      AND n.tenant_id = p_tenant_id;
    RETURN QUERY
        SELECT m.at, open.attempts, open.seconds, ended, target.hold_seconds, target.granted_at,
               target.rate_at, turns.turns_at, turns.again_at, waiting.others
        FROM (SELECT clock_timestamp() AS at) AS m,
        LATERAL (
            SELECT count(*)::integer AS attempts,
                   coalesce(avg(extract(epoch FROM m.at - l.started_at)), 0)::double precision
                       AS seconds
            FROM effect_broker.limited_attempts AS l
            WHERE l.contract_name = p_contract_name AND l.target_identity = p_target_identity
            ) AS open,
        LATERAL (
            SELECT count(*)::integer AS others FROM effect_broker.limited_tenants AS n
            WHERE n.contract_name = p_contract_name AND n.target_identity = p_target_identity
              AND n.tenant_id <> p_tenant_id
            ) AS waiting;
END $$;

-- What a grant, or a turn, has left. The target is locked.
CREATE FUNCTION effect_broker.keep_pace(
    p_contract_name text, p_target_identity text, p_tenant_id uuid, p_effect_id uuid,
    p_hold_seconds double precision, p_granted_at timestamptz, p_rate_at timestamptz,
    p_turns_at timestamptz, p_again_at timestamptz, p_attempt_id uuid, p_now timestamptz,
    p_open_until timestamptz
) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, effect_broker, pg_temp AS $$
BEGIN
    UPDATE effect_broker.limited_targets AS t
    SET hold_seconds = p_hold_seconds, granted_at = p_granted_at, rate_at = p_rate_at
    WHERE t.contract_name = p_contract_name AND t.target_identity = p_target_identity;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'guarded write keep_pace changed 0 rows' USING ERRCODE = 'EB001';
    END IF;
    IF p_attempt_id IS NOT NULL THEN
        INSERT INTO effect_broker.limited_attempts (
            attempt_id, tenant_id, effect_id, contract_name, target_identity, started_at,
            open_until)
        VALUES (p_attempt_id, p_tenant_id, p_effect_id, p_contract_name, p_target_identity, p_now,
            p_open_until);
    ELSE
        INSERT INTO effect_broker.limited_tenants (
            tenant_id, contract_name, target_identity, turns_at, again_at)
        VALUES (p_tenant_id, p_contract_name, p_target_identity, p_turns_at, p_again_at)
        ON CONFLICT (contract_name, target_identity, tenant_id)
        DO UPDATE SET turns_at = excluded.turns_at, again_at = excluded.again_at;
    END IF;
END $$;
REVOKE ALL ON FUNCTION effect_broker.lock_pace, effect_broker.keep_pace FROM PUBLIC;
GRANT EXECUTE ON FUNCTION effect_broker.lock_pace, effect_broker.keep_pace
    TO effect_broker_worker;
