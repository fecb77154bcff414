-- The order in which unresolved effects are shown, kept with each effect so that a page is read from
-- an index. `effect_broker.protocol.urgency` says what the columns hold; they decide nothing.
ALTER TABLE effect_broker.effect_intents
    ADD COLUMN key_expires_at timestamptz,
    ADD COLUMN attempt_open_until timestamptz,
    ADD COLUMN sender_lost boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN effect_broker.effect_intents.key_expires_at IS
    'when the target may forget our key; NULL without a retention, before a send, and at the end';
COMMENT ON COLUMN effect_broker.effect_intents.attempt_open_until IS
    'deadline of the open attempt with the clock margin';
COMMENT ON COLUMN effect_broker.effect_intents.sender_lost IS
    'an attempt that is presumed ambiguous is not cleared yet';
GRANT UPDATE (key_expires_at, attempt_open_until, sender_lost) ON effect_broker.effect_intents
    TO effect_broker_api, effect_broker_worker;

-- Effects that are under way already. Row-level security binds the owner too: tenant by tenant.
DO $$
DECLARE
    before text := current_setting('effect_broker.tenant_id', true);
    owning uuid;
BEGIN
    FOR owning IN SELECT t.tenant_id FROM effect_broker.tenants AS t LOOP
        PERFORM set_config('effect_broker.tenant_id', owning::text, true);
        UPDATE effect_broker.effect_intents AS i
        SET key_expires_at = (
                SELECT min(a.started_at) FROM effect_broker.effect_attempts AS a
                WHERE a.tenant_id = i.tenant_id AND a.effect_id = i.effect_id
                  AND a.outcome IS DISTINCT FROM 'not_sent')
                + make_interval(
                    secs => (c.document::jsonb ->> 'key_retention_seconds')::float8),
            attempt_open_until = (
                SELECT a.deadline_at + make_interval(
                    secs => (c.document::jsonb ->> 'clock_margin_seconds')::float8)
                FROM effect_broker.effect_attempts AS a
                WHERE a.tenant_id = i.tenant_id AND a.effect_id = i.effect_id
                  AND a.outcome IS NULL),
            sender_lost = i.state <> 'retryable' AND EXISTS (
                SELECT 1 FROM effect_broker.effect_attempts AS a
                WHERE a.tenant_id = i.tenant_id AND a.effect_id = i.effect_id
                  AND a.outcome = 'presumed_ambiguous')
        FROM effect_broker.contracts AS c
        WHERE i.tenant_id = owning AND c.digest = i.contract_digest AND i.latest_ordinal > 0
          AND i.state NOT IN ('succeeded', 'failed_final', 'cancelled', 'compensated');
    END LOOP;
    PERFORM set_config('effect_broker.tenant_id', coalesce(before, ''), true);
END $$;

-- What is not resolved by its state alone. The order and the conditions are those of
-- `effect_broker.store.unresolved`, word for word; a test holds the two together. CASE and not
-- coalesce(), which row-level security takes for a leak, and then no position in it is looked up.
CREATE INDEX unresolved_effects ON effect_broker.effect_intents (
    tenant_id, (CASE WHEN key_expires_at IS NULL THEN 'infinity' ELSE key_expires_at END),
    created_at, effect_id)
    WHERE alert IS NOT NULL OR parked
       OR state IN ('outcome_unknown', 'reconciling', 'manual_review')
       OR (state = 'dispatching' AND sender_lost)
       OR (state IN ('prepared', 'retryable') AND reason IN (
           'paused', 'frozen', 'tenant_disabled', 'awaiting_approval', 'database_restored'));
-- What is on its way and may turn out to be overdue. The last column is no part of the order: it
-- lets a scan pass over what is not overdue without a look at the table.
CREATE INDEX effects_on_their_way ON effect_broker.effect_intents (
    tenant_id, (CASE WHEN key_expires_at IS NULL THEN 'infinity' ELSE key_expires_at END),
    created_at, effect_id, next_action_at)
    WHERE state IN ('prepared', 'retryable') AND NOT parked AND reason NOT IN (
        'paused', 'frozen', 'tenant_disabled', 'awaiting_approval', 'database_restored');
