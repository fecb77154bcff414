-- Where a contract asks for it, nothing is sent before somebody has approved it.
ALTER TABLE effect_broker.effect_intents ADD COLUMN approved_at timestamptz;
GRANT UPDATE (approved_at) ON effect_broker.effect_intents
    TO effect_broker_api, effect_broker_worker;

-- Who has approved or denied what, word for word, once for each decision id. The request is named
-- by its hash: an approval is for what was read, and for nothing else.
CREATE TABLE effect_broker.effect_approvals (
    tenant_id uuid NOT NULL,
    effect_id uuid NOT NULL,
    decision_id text COLLATE "C" NOT NULL CHECK (decision_id ~ '^[!-~]{1,255}$'),
    approved boolean NOT NULL,
    content text NOT NULL CHECK (jsonb_typeof(content::jsonb) = 'object'),
    digest bytea NOT NULL,
    actor text NOT NULL CHECK (actor <> ''),
    recorded_at timestamptz NOT NULL,
    CONSTRAINT one_approval_per_decision PRIMARY KEY (tenant_id, decision_id),
    FOREIGN KEY (tenant_id, effect_id) REFERENCES effect_broker.effect_intents,
    CONSTRAINT approval_digest_fits CHECK (digest = sha256(convert_to(content, 'UTF8')))
);
CREATE INDEX approvals_of_effect ON effect_broker.effect_approvals (effect_id, recorded_at);

-- What one person concludes where the contract asks for two. It changes nothing of the effect; the
-- second person's confirmation makes it a resolution of the same decision id.
CREATE TABLE effect_broker.effect_proposals (
    tenant_id uuid NOT NULL,
    effect_id uuid NOT NULL,
    decision_id text COLLATE "C" NOT NULL CHECK (decision_id ~ '^[!-~]{1,255}$'),
    expected_version integer NOT NULL CHECK (expected_version >= 1),
    content text NOT NULL CHECK (jsonb_typeof(content::jsonb) = 'object'),
    digest bytea NOT NULL,
    actor text NOT NULL CHECK (actor <> ''),
    recorded_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT one_proposal_per_decision PRIMARY KEY (tenant_id, decision_id),
    FOREIGN KEY (tenant_id, effect_id) REFERENCES effect_broker.effect_intents,
    CONSTRAINT proposal_digest_fits CHECK (digest = sha256(convert_to(content, 'UTF8')))
);
CREATE INDEX proposals_of_effect ON effect_broker.effect_proposals (effect_id, recorded_at);

DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['effect_approvals', 'effect_proposals'] LOOP
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
        -- Persons speak through the API; a worker reads what they said.
        EXECUTE format('GRANT SELECT, INSERT ON effect_broker.%I TO effect_broker_api', name);
        EXECUTE format('GRANT SELECT ON effect_broker.%I TO effect_broker_worker', name);
    END LOOP;
END $$;
