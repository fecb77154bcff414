-- The deliveries of signed provider webhooks, one row for each. A row is stored before the sender is
-- answered, and decided once. Until then it holds the sealed body; afterwards the digest alone, since
-- the payload of somebody else's event is nothing that the broker has a use for.
CREATE TABLE effect_broker.evidence_inbox (
    -- Also the id of the evidence that it becomes: stored twice, it would meet itself there.
    delivery_id uuid PRIMARY KEY,
    tenant_id uuid NOT NULL REFERENCES effect_broker.tenants,
    contract_name text COLLATE "C" NOT NULL,
    contract_version text COLLATE "C" NOT NULL,
    -- The document by which it was believed.
    contract_digest bytea NOT NULL REFERENCES effect_broker.contracts,
    senders_id text COLLATE "C" NOT NULL CHECK (length(senders_id) BETWEEN 1 AND 255),
    body_digest bytea NOT NULL CHECK (octet_length(body_digest) = 32),
    received_at timestamptz NOT NULL,
    status text NOT NULL CHECK (status IN (
        'received', 'waiting', 'unmatched', 'ignored', 'rejected', 'recorded', 'settled',
        'contradicts')),
    code text NOT NULL CHECK (code ~ '^[a-z][a-z0-9_]{0,63}$'),
    effect_id uuid,
    decided_at timestamptz,
    next_match_at timestamptz,
    key_id text,
    ciphertext bytea,
    FOREIGN KEY (tenant_id, effect_id) REFERENCES effect_broker.effect_intents,
    CONSTRAINT one_delivery_per_senders_id UNIQUE (tenant_id, contract_name, senders_id),
    CONSTRAINT open_until_decided CHECK (
        (decided_at IS NULL) = (next_match_at IS NOT NULL)
        AND (decided_at IS NULL) = (ciphertext IS NOT NULL)
        AND (ciphertext IS NULL) = (key_id IS NULL)),
    CONSTRAINT status_fits_the_decision CHECK (
        CASE WHEN status IN ('received', 'waiting') THEN decided_at IS NULL
             WHEN status = 'unmatched' THEN true
             ELSE decided_at IS NOT NULL END),
    CONSTRAINT a_fact_has_its_effect CHECK (
        status NOT IN ('waiting', 'recorded', 'settled', 'contradicts') OR effect_id IS NOT NULL)
);
CREATE INDEX deliveries_by_age
    ON effect_broker.evidence_inbox (tenant_id, received_at DESC, delivery_id DESC);
CREATE INDEX deliveries_to_match ON effect_broker.evidence_inbox (next_match_at)
    WHERE next_match_at IS NOT NULL;
CREATE INDEX deliveries_of_effect ON effect_broker.evidence_inbox (effect_id)
    WHERE effect_id IS NOT NULL;

-- How a delivery finds its effect: by our key, or by the target's id of the object. The first id of a
-- list is looked up; a commit that was seen has one.
CREATE INDEX effects_by_downstream_key
    ON effect_broker.effect_intents (tenant_id, downstream_key);
CREATE INDEX attempts_by_external_id ON effect_broker.effect_attempts (tenant_id, external_id)
    WHERE external_id IS NOT NULL;
CREATE INDEX evidence_by_external_id
    ON effect_broker.effect_evidence (tenant_id, (external_ids[1])) WHERE verdict = 'committed';

-- What has come stays as it came; what was decided stays decided.
CREATE FUNCTION effect_broker.keep_delivery() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, effect_broker, pg_temp AS $$
BEGIN
    IF OLD.decided_at IS NOT NULL THEN
        RAISE EXCEPTION 'a delivery is decided once' USING ERRCODE = 'EB001';
    END IF;
    RETURN NEW;
END $$;
REVOKE ALL ON FUNCTION effect_broker.keep_delivery FROM PUBLIC;
CREATE TRIGGER keep_delivery BEFORE UPDATE ON effect_broker.evidence_inbox
    FOR EACH ROW EXECUTE FUNCTION effect_broker.keep_delivery();
CREATE TRIGGER refuse_change BEFORE DELETE ON effect_broker.evidence_inbox
    FOR EACH ROW EXECUTE FUNCTION effect_broker.refuse_change();
CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON effect_broker.evidence_inbox
    FOR EACH STATEMENT EXECUTE FUNCTION effect_broker.refuse_change();

ALTER TABLE effect_broker.evidence_inbox ENABLE ROW LEVEL SECURITY;
ALTER TABLE effect_broker.evidence_inbox FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON effect_broker.evidence_inbox TO effect_broker_api, effect_broker_owner
    USING (tenant_id =
        (SELECT nullif(current_setting('effect_broker.tenant_id', true), '')::uuid));
CREATE POLICY every_tenant ON effect_broker.evidence_inbox
    TO effect_broker_worker, effect_broker_prune, effect_broker_admin USING (true);
-- The API takes deliveries in; both decide them.
GRANT SELECT, INSERT ON effect_broker.evidence_inbox TO effect_broker_api;
GRANT SELECT ON effect_broker.evidence_inbox TO effect_broker_worker;
GRANT UPDATE (status, code, effect_id, decided_at, next_match_at, key_id, ciphertext)
    ON effect_broker.evidence_inbox TO effect_broker_api, effect_broker_worker;

-- Whose endpoint a delivery came to. A sender has no API key, so this is asked before a tenant is
-- known; it tells an id for a name, and who may not prove a signature learns neither.
CREATE FUNCTION effect_broker.tenant_named(p_name text) RETURNS uuid
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, effect_broker, pg_temp AS $$
    SELECT t.tenant_id FROM effect_broker.tenants AS t WHERE t.name = p_name
$$;
REVOKE ALL ON FUNCTION effect_broker.tenant_named FROM PUBLIC;
GRANT EXECUTE ON FUNCTION effect_broker.tenant_named TO effect_broker_api;
