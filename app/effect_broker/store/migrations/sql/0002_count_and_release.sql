-- What a person has to know of a final effect: its receipt stands, its target says otherwise.
ALTER TABLE effect_broker.effect_intents ADD COLUMN alert text
    CONSTRAINT alert_on_a_final_effect CHECK (
        alert IS NULL
        OR (alert IN ('late_contradiction', 'duplicate_detected')
            AND state IN ('succeeded', 'failed_final', 'cancelled', 'compensated')));
CREATE INDEX effects_with_an_alert ON effect_broker.effect_intents (tenant_id, updated_at)
    WHERE alert IS NOT NULL;
GRANT UPDATE (alert) ON effect_broker.effect_intents
    TO effect_broker_api, effect_broker_worker;

-- A settled reconcilable effect may have one thing left to do: to be counted at its target.
ALTER TABLE effect_broker.effect_intents DROP CONSTRAINT final_has_nothing_to_do;
ALTER TABLE effect_broker.effect_intents ADD CONSTRAINT final_is_at_most_counted CHECK (
    state NOT IN ('succeeded', 'failed_final', 'cancelled', 'compensated')
    OR (NOT parked AND (next_action_at IS NULL OR safety = 'reconcilable')));

-- What stands still for a hold; every worker looks here for holds that were lifted.
CREATE INDEX held_effects ON effect_broker.effect_intents (reason, next_action_at)
    WHERE reason IN ('paused', 'frozen', 'tenant_disabled', 'database_restored');

-- A run that could not be put into the queue must not use up a generation.
CREATE FUNCTION effect_broker.expect_enqueued(enqueued boolean) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, effect_broker, pg_temp AS $$
BEGIN
    IF NOT enqueued THEN
        RAISE EXCEPTION 'the run could not be put into the queue' USING ERRCODE = 'EB003';
    END IF;
END $$;
REVOKE ALL ON FUNCTION effect_broker.expect_enqueued FROM PUBLIC;
GRANT EXECUTE ON FUNCTION effect_broker.expect_enqueued
    TO effect_broker_api, effect_broker_worker;

-- A logical restore keeps the server and its timeline. It cannot keep the ids of the database and
-- its tables, while the row that remembers them comes along with the dump.
ALTER TABLE effect_broker.database_identity
    ADD COLUMN database_oid oid, ADD COLUMN relation_oid oid;
COMMENT ON COLUMN effect_broker.database_identity.database_oid IS
    'NULL where a copy of the database is meant to be as good as the original';
CREATE VIEW effect_broker.this_database AS
SELECT s.system_identifier, c.timeline_id::bigint AS timeline,
       (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database()) AS database_oid,
       'effect_broker.effect_intents'::regclass::oid AS relation_oid
FROM pg_control_system() AS s, pg_control_checkpoint() AS c;
GRANT SELECT ON effect_broker.this_database
    TO effect_broker_api, effect_broker_worker, effect_broker_admin;
UPDATE effect_broker.database_identity AS d
SET database_oid = t.database_oid, relation_oid = t.relation_oid
FROM effect_broker.this_database AS t;
