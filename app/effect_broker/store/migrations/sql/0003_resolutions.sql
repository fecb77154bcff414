-- What a person has concluded of an effect, word for word, once for each decision id.
CREATE TABLE effect_broker.effect_resolutions (
    tenant_id uuid NOT NULL,
    effect_id uuid NOT NULL,
    decision_id text COLLATE "C" NOT NULL CHECK (decision_id ~ '^[!-~]{1,255}$'),
    evidence_id uuid NOT NULL,
    conclusion text NOT NULL CHECK (conclusion IN ('committed', 'not_committed', 'failed')),
    content text NOT NULL CHECK (jsonb_typeof(content::jsonb) = 'object'),
    digest bytea NOT NULL,
    actor text NOT NULL CHECK (actor <> ''),
    recorded_at timestamptz NOT NULL,
    CONSTRAINT one_resolution_per_decision PRIMARY KEY (tenant_id, decision_id),
    FOREIGN KEY (tenant_id, effect_id) REFERENCES effect_broker.effect_intents,
    FOREIGN KEY (evidence_id) REFERENCES effect_broker.effect_evidence,
    CONSTRAINT resolution_digest_fits CHECK (digest = sha256(convert_to(content, 'UTF8')))
);
CREATE INDEX resolutions_of_effect ON effect_broker.effect_resolutions (effect_id, recorded_at);

CREATE TRIGGER refuse_change BEFORE UPDATE OR DELETE ON effect_broker.effect_resolutions
    FOR EACH ROW EXECUTE FUNCTION effect_broker.refuse_change();
CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON effect_broker.effect_resolutions
    FOR EACH STATEMENT EXECUTE FUNCTION effect_broker.refuse_change();

ALTER TABLE effect_broker.effect_resolutions ENABLE ROW LEVEL SECURITY;
ALTER TABLE effect_broker.effect_resolutions FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON effect_broker.effect_resolutions
    TO effect_broker_api, effect_broker_owner
    USING (tenant_id =
        (SELECT nullif(current_setting('effect_broker.tenant_id', true), '')::uuid));
CREATE POLICY every_tenant ON effect_broker.effect_resolutions
    TO effect_broker_worker, effect_broker_prune, effect_broker_admin USING (true);
-- Persons speak through the API; a worker reads what they said and says nothing in their place.
GRANT SELECT, INSERT ON effect_broker.effect_resolutions TO effect_broker_api;
GRANT SELECT ON effect_broker.effect_resolutions TO effect_broker_worker;

-- When somebody last asked for a look now.
ALTER TABLE effect_broker.effect_intents ADD COLUMN reconcile_asked_at timestamptz;
GRANT UPDATE (reconcile_asked_at) ON effect_broker.effect_intents
    TO effect_broker_api, effect_broker_worker;
