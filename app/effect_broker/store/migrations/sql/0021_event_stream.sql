-- The events of a tenant as one stream, and subscriptions to it.
--
-- An event's place in the stream is (era, place, effect_id, sequence). Transactions commit in another
-- order than they begin, so that whoever reads by a sequence or a time passes over what commits late.
-- `place` is the id of the writing transaction, and a reader reads below the oldest transaction that
-- still runs (pg_snapshot_xmin): whatever may still appear has a place that is not below it.

-- Which database the places belong to. Transaction ids begin anew where a dump is put into another
-- cluster, and `era` keeps the places of before and after apart: an epoch in the upper half, the
-- timeline of the server in the lower half. A restore to a point in time and a failover make a new
-- timeline, and so a new era, at the very moment from which transaction ids may be used again.
CREATE TABLE effect_broker.event_epochs (
    epoch integer PRIMARY KEY CHECK (epoch >= 1),
    -- Cursors are sealed with it, so that those of another copy of this database are known as such.
    epoch_id uuid NOT NULL DEFAULT gen_random_uuid(),
    system_identifier bigint NOT NULL,
    -- The latest that was seen; a smaller one is that of another cluster.
    timeline bigint NOT NULL,
    -- Of effect_events: a table that came in a dump has another one than its row remembers.
    relation_oid oid NOT NULL,
    began_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
GRANT SELECT ON effect_broker.event_epochs TO effect_broker_api, effect_broker_worker;

CREATE FUNCTION effect_broker.stream_timeline() RETURNS bigint
LANGUAGE sql STABLE AS $$
    SELECT ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::bigint
$$;

INSERT INTO effect_broker.event_epochs (epoch, system_identifier, timeline, relation_oid)
SELECT 1, s.system_identifier, effect_broker.stream_timeline(),
       'effect_broker.effect_events'::regclass::oid
FROM pg_control_system() AS s;

-- The era of what is written now. It is right from the first write after a restore, before anybody
-- has noticed that: what differs from the row of the latest epoch belongs to the next one. A standby
-- writes nothing; for its readers all timelines of the epoch are in the past.
CREATE FUNCTION effect_broker.stream_era() RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
DECLARE
    known record;
    timeline bigint := 4294967295;
BEGIN
    SELECT k.epoch, k.timeline, k.relation_oid INTO known
    FROM effect_broker.event_epochs AS k ORDER BY k.epoch DESC LIMIT 1;
    IF NOT pg_is_in_recovery() THEN
        timeline := effect_broker.stream_timeline();
    END IF;
    IF known.relation_oid <> 'effect_broker.effect_events'::regclass::oid
       OR timeline < known.timeline
    THEN
        known.epoch := known.epoch + 1;
    END IF;
    RETURN (known.epoch::bigint << 32) | timeline;
END $$;

-- Write down a new epoch, or a new timeline of the present one; return the epoch. Another server
-- under the same table id is noticed here alone.
CREATE FUNCTION effect_broker.follow_event_stream() RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, effect_broker, pg_temp AS $$
DECLARE
    known effect_broker.event_epochs;
    here_system bigint := (SELECT s.system_identifier FROM pg_control_system() AS s);
    here_timeline bigint := effect_broker.stream_timeline();
    here_oid oid := 'effect_broker.effect_events'::regclass::oid;
BEGIN
    SELECT k.* INTO known FROM effect_broker.event_epochs AS k ORDER BY k.epoch DESC LIMIT 1;
    IF (known.system_identifier, known.relation_oid) IS DISTINCT FROM (here_system, here_oid)
       OR here_timeline < known.timeline
    THEN
        INSERT INTO effect_broker.event_epochs (epoch, system_identifier, timeline, relation_oid)
        VALUES (known.epoch + 1, here_system, here_timeline, here_oid) ON CONFLICT DO NOTHING;
        RETURN known.epoch + 1;
    END IF;
    IF here_timeline > known.timeline THEN
        UPDATE effect_broker.event_epochs SET timeline = greatest(timeline, here_timeline)
        WHERE epoch = known.epoch;
    END IF;
    RETURN known.epoch;
END $$;
REVOKE ALL ON FUNCTION effect_broker.stream_timeline, effect_broker.stream_era,
    effect_broker.follow_event_stream FROM PUBLIC;
GRANT EXECUTE ON FUNCTION effect_broker.stream_timeline, effect_broker.stream_era,
    effect_broker.follow_event_stream TO effect_broker_api, effect_broker_worker;

-- What stands already is before everything else, effect by effect; no row is rewritten for it.
ALTER TABLE effect_broker.effect_events
    ADD COLUMN era bigint NOT NULL DEFAULT 0,
    ADD COLUMN place xid8 NOT NULL DEFAULT '0';
ALTER TABLE effect_broker.effect_events
    ALTER COLUMN era SET DEFAULT effect_broker.stream_era(),
    ALTER COLUMN place SET DEFAULT pg_current_xact_id();
CREATE INDEX events_in_order
    ON effect_broker.effect_events (tenant_id, era, place, effect_id, sequence);

-- As before, and an event is never placed before its predecessor. A transaction may have got its id
-- before it waited for an effect that a younger transaction had locked; the event that it then writes
-- takes the place of the event before it. Its own id is smaller than that place, so it has ended too
-- before a reader comes there.
CREATE OR REPLACE FUNCTION effect_broker.chain_event() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, effect_broker, pg_temp AS $$
DECLARE
    previous bytea;
    before_era bigint;
    before_place xid8;
BEGIN
    IF NEW.sequence = 1 THEN
        previous := ''::bytea;
    ELSE
        SELECT e.digest, e.era, e.place INTO previous, before_era, before_place
        FROM effect_broker.effect_events e
        WHERE e.effect_id = NEW.effect_id AND e.sequence = NEW.sequence - 1;
        IF NOT FOUND THEN
            -- The events before may have been pruned; the intent keeps the head of the chain.
            SELECT i.event_digest INTO previous FROM effect_broker.effect_intents i
            WHERE i.tenant_id = NEW.tenant_id AND i.effect_id = NEW.effect_id
              AND i.version = NEW.sequence - 1;
            IF NOT FOUND THEN
                RAISE EXCEPTION 'event % of the effect has no predecessor', NEW.sequence
                    USING ERRCODE = 'EB001';
            END IF;
        ELSIF (before_era, before_place) > (NEW.era, NEW.place) THEN
            NEW.era := before_era;
            NEW.place := before_place;
        END IF;
    END IF;
    NEW.previous_digest := previous;
    NEW.digest := effect_broker.event_digest(
        previous, NEW.tenant_id, NEW.effect_id, NEW.sequence, NEW.kind, NEW.event, NEW.from_state,
        NEW.to_state, NEW.reason, NEW.actor, NEW.at, NEW.metadata);
    RETURN NEW;
END $$;

-- How far pruning has come into the stream of a tenant: a reader before this place may miss events.
CREATE TABLE effect_broker.event_prunes (
    tenant_id uuid PRIMARY KEY REFERENCES effect_broker.tenants,
    era bigint NOT NULL,
    place xid8 NOT NULL,
    pruned_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
GRANT SELECT, INSERT, UPDATE ON effect_broker.event_prunes TO effect_broker_prune;
GRANT SELECT ON effect_broker.event_prunes TO effect_broker_api, effect_broker_worker;

-- Who wants to be told of events. The stream is read for each by its own place in it; nothing is
-- written for a subscription when an event is.
CREATE TABLE effect_broker.event_subscriptions (
    subscription_id uuid PRIMARY KEY,
    tenant_id uuid NOT NULL REFERENCES effect_broker.tenants,
    url text NOT NULL CHECK (length(url) BETWEEN 8 AND 2048),
    -- Empty for all.
    types text[] NOT NULL,
    states text[] NOT NULL,
    description text NOT NULL CHECK (length(description) <= 500),
    -- The secret, sealed.
    key_id text NOT NULL,
    ciphertext bytea NOT NULL,
    created_by text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Everything up to here was read: delivered, passed over, or noted in event_deliveries.
    era bigint NOT NULL,
    place xid8 NOT NULL,
    effect_id uuid NOT NULL,
    sequence integer NOT NULL,
    -- Whoever delivers holds the lease. It ends with its time, and with the worker's heartbeat.
    look_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    lease_id uuid,
    lease_executor_id text,
    lease_until timestamptz,
    failing_since timestamptz,
    failures integer NOT NULL DEFAULT 0,
    last_code text,
    delivered_at timestamptz,
    paused_at timestamptz,
    pause_code text CHECK (pause_code ~ '^[a-z][a-z0-9_]{0,63}$'),
    UNIQUE (tenant_id, subscription_id),
    CHECK ((lease_id IS NULL) = (lease_until IS NULL)
           AND (lease_id IS NULL) = (lease_executor_id IS NULL)),
    CHECK ((paused_at IS NULL) = (pause_code IS NULL))
);
CREATE INDEX subscriptions_of_tenant
    ON effect_broker.event_subscriptions (tenant_id, created_at, subscription_id);
CREATE INDEX subscriptions_to_look_at ON effect_broker.event_subscriptions (look_at)
    WHERE paused_at IS NULL;

-- The events of a subscription that were not accepted at the first try: those that wait, and those
-- that were given up (dead letters). The earliest of an effect that waits holds up the later ones.
CREATE TABLE effect_broker.event_deliveries (
    subscription_id uuid NOT NULL,
    tenant_id uuid NOT NULL,
    effect_id uuid NOT NULL,
    sequence integer NOT NULL CHECK (sequence >= 1),
    noted_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    tries integer NOT NULL CHECK (tries >= 0),
    first_tried_at timestamptz,
    -- None once it was given up.
    next_try_at timestamptz,
    dead_at timestamptz,
    code text NOT NULL CHECK (code ~ '^[a-z][a-z0-9_]{0,63}$'),
    status integer,
    PRIMARY KEY (subscription_id, effect_id, sequence),
    FOREIGN KEY (tenant_id, subscription_id)
        REFERENCES effect_broker.event_subscriptions (tenant_id, subscription_id)
        ON DELETE CASCADE,
    CHECK ((next_try_at IS NULL) = (dead_at IS NOT NULL))
);
CREATE INDEX deliveries_that_wait ON effect_broker.event_deliveries (subscription_id, next_try_at)
    WHERE next_try_at IS NOT NULL;
CREATE INDEX dead_letters
    ON effect_broker.event_deliveries (subscription_id, dead_at, effect_id, sequence)
    WHERE dead_at IS NOT NULL;

DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['event_prunes', 'event_subscriptions', 'event_deliveries'] LOOP
        EXECUTE format('ALTER TABLE effect_broker.%I ENABLE ROW LEVEL SECURITY', name);
        EXECUTE format('ALTER TABLE effect_broker.%I FORCE ROW LEVEL SECURITY', name);
        EXECUTE format(
            'CREATE POLICY own_tenant ON effect_broker.%I TO effect_broker_api, effect_broker_owner'
            ' USING (tenant_id ='
            '   (SELECT nullif(current_setting(''effect_broker.tenant_id'', true), '''')::uuid))'
            , name);
        EXECUTE format('CREATE POLICY every_tenant ON effect_broker.%I'
            ' TO effect_broker_worker, effect_broker_prune, effect_broker_admin USING (true)', name);
    END LOOP;
    FOREACH name IN ARRAY ARRAY['effect_events', 'event_subscriptions', 'event_deliveries'] LOOP
        EXECUTE format(
            'CREATE POLICY counted ON effect_broker.%I FOR SELECT TO effect_broker_owner'
            ' USING (current_setting(''effect_broker.counting'', true) = ''on'')', name);
    END LOOP;
END $$;
GRANT SELECT, INSERT, DELETE ON effect_broker.event_subscriptions TO effect_broker_api;
GRANT UPDATE (look_at, failing_since, failures, paused_at, pause_code)
    ON effect_broker.event_subscriptions TO effect_broker_api;
GRANT SELECT ON effect_broker.event_subscriptions TO effect_broker_worker;
GRANT UPDATE (era, place, effect_id, sequence, look_at, lease_id,
              lease_executor_id, lease_until, failing_since, failures, last_code, delivered_at,
              paused_at, pause_code)
    ON effect_broker.event_subscriptions TO effect_broker_worker;
-- Keys are rotated by the role that prunes.
GRANT SELECT, UPDATE (key_id, ciphertext) ON effect_broker.event_subscriptions
    TO effect_broker_prune;
GRANT SELECT ON effect_broker.event_deliveries TO effect_broker_api;
GRANT UPDATE (tries, first_tried_at, next_try_at, dead_at)
    ON effect_broker.event_deliveries TO effect_broker_api;
GRANT SELECT, INSERT, UPDATE, DELETE ON effect_broker.event_deliveries TO effect_broker_worker;

-- What `/metrics` tells of the subscriptions: numbers over all tenants, and nothing else of any of
-- them. Counting stops at p_count_max, and of one subscription at a thousand events.
CREATE FUNCTION effect_broker.subscription_numbers(p_count_max integer)
RETURNS TABLE (measure text, tool text, safety text, state text, value double precision)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, effect_broker, pg_temp AS $$
DECLARE
    now_at timestamptz := clock_timestamp();
BEGIN
    PERFORM set_config('effect_broker.counting', 'on', true);
    RETURN QUERY
        SELECT 'subscriptions', NULL::text, NULL::text, s.standing, count(*)::float8
        FROM (SELECT CASE WHEN n.paused_at IS NOT NULL THEN 'paused'
                          WHEN n.failing_since IS NOT NULL THEN 'failing'
                          ELSE 'active' END AS standing
              FROM effect_broker.event_subscriptions AS n LIMIT p_count_max) AS s
        GROUP BY s.standing;
    RETURN QUERY
        SELECT 'event_deliveries', NULL::text, NULL::text, d.standing, count(*)::float8
        FROM (SELECT CASE WHEN n.dead_at IS NULL THEN 'waiting' ELSE 'dead' END AS standing
              FROM effect_broker.event_deliveries AS n LIMIT p_count_max) AS d
        GROUP BY d.standing;
    RETURN QUERY
        SELECT 'event_backlog', NULL::text, NULL::text, NULL::text, count(*)::float8
        FROM (SELECT 1 FROM effect_broker.event_subscriptions AS s
              CROSS JOIN LATERAL (
                  SELECT 1 FROM effect_broker.effect_events AS e
                  WHERE e.tenant_id = s.tenant_id
                    AND (e.era, e.place, e.effect_id, e.sequence)
                        > (s.era, s.place, s.effect_id, s.sequence) LIMIT 1000) AS later
              WHERE s.paused_at IS NULL LIMIT p_count_max) AS counted;
    RETURN QUERY
        SELECT 'event_oldest_seconds', NULL::text, NULL::text, NULL::text,
            greatest(extract(epoch FROM now_at - min(o.at)), 0)::float8
        FROM effect_broker.event_subscriptions AS s
        CROSS JOIN LATERAL (
            (SELECT e.at FROM effect_broker.effect_events AS e
             WHERE e.tenant_id = s.tenant_id
               AND (e.era, e.place, e.effect_id, e.sequence)
                   > (s.era, s.place, s.effect_id, s.sequence)
             ORDER BY e.era, e.place, e.effect_id, e.sequence LIMIT 1)
            UNION ALL
            (SELECT min(d.noted_at) FROM effect_broker.event_deliveries AS d
             WHERE d.subscription_id = s.subscription_id AND d.next_try_at IS NOT NULL)) AS o
        WHERE s.paused_at IS NULL HAVING min(o.at) IS NOT NULL;
    PERFORM set_config('effect_broker.counting', '', true);
END $$;
REVOKE ALL ON FUNCTION effect_broker.subscription_numbers FROM PUBLIC;
GRANT EXECUTE ON FUNCTION effect_broker.subscription_numbers
    TO effect_broker_api, effect_broker_worker;
