-- Who has dealt with which alert of an effect, and how. The alert leaves the effect's row in the same
-- commit; the event that has this sequence tells of it.
CREATE TABLE effect_broker.effect_acknowledgements (
    tenant_id uuid NOT NULL,
    effect_id uuid NOT NULL,
    sequence integer NOT NULL CHECK (sequence >= 1),
    alert text NOT NULL CHECK (alert IN ('late_contradiction', 'duplicate_detected')),
    reason text NOT NULL CHECK (reason <> ''),
    actor text NOT NULL CHECK (actor <> ''),
    recorded_at timestamptz NOT NULL,
    PRIMARY KEY (effect_id, sequence),
    FOREIGN KEY (tenant_id, effect_id) REFERENCES effect_broker.effect_intents
);
CREATE TRIGGER refuse_change BEFORE UPDATE OR DELETE ON effect_broker.effect_acknowledgements
    FOR EACH ROW EXECUTE FUNCTION effect_broker.refuse_change();
CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON effect_broker.effect_acknowledgements
    FOR EACH STATEMENT EXECUTE FUNCTION effect_broker.refuse_change();
ALTER TABLE effect_broker.effect_acknowledgements ENABLE ROW LEVEL SECURITY;
ALTER TABLE effect_broker.effect_acknowledgements FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON effect_broker.effect_acknowledgements
    TO effect_broker_api, effect_broker_owner
    USING (tenant_id =
        (SELECT nullif(current_setting('effect_broker.tenant_id', true), '')::uuid));
CREATE POLICY every_tenant ON effect_broker.effect_acknowledgements
    TO effect_broker_worker, effect_broker_prune, effect_broker_admin USING (true);
GRANT SELECT, INSERT ON effect_broker.effect_acknowledgements TO effect_broker_api;
GRANT SELECT ON effect_broker.effect_acknowledgements TO effect_broker_worker;
