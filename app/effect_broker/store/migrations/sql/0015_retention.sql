-- How far a settled effect has been removed: 0 nothing, 1 the engine's rows, 2 the payloads and the
-- preview too, 3 all but its identity, its receipt and what persons have said.
ALTER TABLE effect_broker.effect_intents
    ADD COLUMN retention_stage smallint NOT NULL DEFAULT 0
        CHECK (retention_stage BETWEEN 0 AND 3),
    ADD CONSTRAINT only_settled_effects_are_pruned CHECK (
        retention_stage = 0
        OR (state IN ('succeeded', 'failed_final', 'cancelled', 'compensated')
            AND next_action_at IS NULL));
-- What each stage still has to do, the oldest first. Open effects, and those that a person has to
-- look at, are not in it, so that nobody can prune them by a mistake in a query.
CREATE INDEX effects_to_prune ON effect_broker.effect_intents (retention_stage, updated_at)
    WHERE state IN ('succeeded', 'failed_final', 'cancelled', 'compensated')
      AND next_action_at IS NULL AND alert IS NULL AND retention_stage < 3;
GRANT UPDATE (retention_stage, preview) ON effect_broker.effect_intents TO effect_broker_prune;

DROP TRIGGER refuse_delete ON effect_broker.effect_attempts;
CREATE TRIGGER refuse_delete BEFORE DELETE ON effect_broker.effect_attempts
    FOR EACH ROW EXECUTE FUNCTION effect_broker.refuse_delete_but_by_prune();
DROP TRIGGER refuse_change ON effect_broker.effect_evidence;
CREATE TRIGGER refuse_update BEFORE UPDATE ON effect_broker.effect_evidence
    FOR EACH ROW EXECUTE FUNCTION effect_broker.refuse_change();
CREATE TRIGGER refuse_delete BEFORE DELETE ON effect_broker.effect_evidence
    FOR EACH ROW EXECUTE FUNCTION effect_broker.refuse_delete_but_by_prune();

-- The receipt stays with the identity: whoever prunes can no longer remove one.
REVOKE DELETE ON effect_broker.effect_receipts FROM effect_broker_prune;
GRANT SELECT, DELETE ON effect_broker.effect_attempts, effect_broker.effect_evidence
    TO effect_broker_prune;
GRANT SELECT ON effect_broker.effect_resolutions, effect_broker.evidence_inbox
    TO effect_broker_prune;
GRANT DELETE ON effect_broker.effect_payloads TO effect_broker_prune;

-- Pruning is not the way to forget what waits: a row goes only after its effect is settled, whoever
-- holds the right.
CREATE FUNCTION effect_broker.keep_what_is_open() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, effect_broker, pg_temp AS $$
BEGIN
    PERFORM 1 FROM effect_broker.effect_intents AS i
    WHERE i.tenant_id = OLD.tenant_id AND i.effect_id = OLD.effect_id
      AND (i.retention_stage = 0 OR i.alert IS NOT NULL);
    IF FOUND THEN
        RAISE EXCEPTION 'rows of an effect that is not being pruned are kept'
            USING ERRCODE = 'EB001';
    END IF;
    RETURN OLD;
END $$;
REVOKE ALL ON FUNCTION effect_broker.keep_what_is_open FROM PUBLIC;
DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['effect_attempts', 'effect_evidence', 'effect_events',
                                'effect_payloads'] LOOP
        EXECUTE format(
            'CREATE TRIGGER keep_what_is_open BEFORE DELETE ON effect_broker.%I'
            ' FOR EACH ROW EXECUTE FUNCTION effect_broker.keep_what_is_open()', name);
    END LOOP;
END $$;
