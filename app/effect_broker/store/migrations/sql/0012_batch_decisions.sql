-- What a person has decided of many effects at once: one statement with its causes and remedies.
CREATE TABLE effect_broker.batch_decisions (
    tenant_id uuid NOT NULL REFERENCES effect_broker.tenants,
    decision_id text COLLATE "C" NOT NULL CHECK (decision_id ~ '^[!-~]{1,200}$'),
    content text NOT NULL CHECK (jsonb_typeof(content::jsonb) = 'object'),
    digest bytea NOT NULL,
    actor text NOT NULL CHECK (actor <> ''),
    recorded_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT one_batch_per_decision PRIMARY KEY (tenant_id, decision_id),
    CONSTRAINT batch_digest_fits CHECK (digest = sha256(convert_to(content, 'UTF8')))
);
CREATE INDEX batch_decisions_by_age ON effect_broker.batch_decisions
    (tenant_id, recorded_at DESC, decision_id DESC);

-- What became of each effect that it names; the resolution itself has its own row and event.
CREATE TABLE effect_broker.batch_effects (
    tenant_id uuid NOT NULL,
    decision_id text COLLATE "C" NOT NULL,
    effect_id uuid NOT NULL,
    outcome text NOT NULL CHECK (outcome IN ('settled', 'proposed', 'left_out')),
    code text,
    recorded_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (tenant_id, decision_id, effect_id),
    FOREIGN KEY (tenant_id, decision_id) REFERENCES effect_broker.batch_decisions,
    CONSTRAINT left_out_for_a_reason CHECK ((outcome = 'left_out') = (code IS NOT NULL))
);

DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['batch_decisions', 'batch_effects'] LOOP
        EXECUTE format(
            'CREATE TRIGGER refuse_change BEFORE UPDATE OR DELETE ON effect_broker.%I'
            ' FOR EACH ROW EXECUTE FUNCTION effect_broker.refuse_change()', name);
        EXECUTE format(
            'CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON effect_broker.%I'
            ' FOR EACH STATEMENT EXECUTE FUNCTION effect_broker.refuse_change()', name);
        EXECUTE format('ALTER TABLE effect_broker.%I ENABLE ROW LEVEL SECURITY', name);
        EXECUTE format('ALTER TABLE effect_broker.%I FORCE ROW LEVEL SECURITY', name);
        EXECUTE format(
            'CREATE POLICY own_tenant ON effect_broker.%I TO effect_broker_api, effect_broker_owner'
            ' USING (tenant_id ='
            '   (SELECT nullif(current_setting(''effect_broker.tenant_id'', true), '''')::uuid))'
            , name);
        EXECUTE format('CREATE POLICY every_tenant ON effect_broker.%I'
            ' TO effect_broker_worker, effect_broker_prune, effect_broker_admin USING (true)', name);
        EXECUTE format('GRANT SELECT, INSERT ON effect_broker.%I TO effect_broker_api', name);
        EXECUTE format('GRANT SELECT ON effect_broker.%I TO effect_broker_worker', name);
    END LOOP;
END $$;
