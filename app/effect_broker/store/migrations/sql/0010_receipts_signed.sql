-- Signatures of receipts. A receipt is content and never changes; processes that hold a signing key
-- add signatures to it, at most one for each key. A key id is never given to another key.
CREATE TABLE effect_broker.effect_receipt_signatures (
    tenant_id uuid NOT NULL,
    effect_id uuid NOT NULL,
    receipt_digest bytea NOT NULL CHECK (octet_length(receipt_digest) = 32),
    key_id text COLLATE "C" NOT NULL CHECK (key_id ~ '^[!-~]{1,64}$'),
    algorithm text NOT NULL CHECK (algorithm = 'ed25519'),
    signature bytea NOT NULL CHECK (octet_length(signature) = 64),
    signed_at timestamptz NOT NULL,
    CONSTRAINT one_signature_per_key PRIMARY KEY (effect_id, key_id),
    FOREIGN KEY (tenant_id, effect_id) REFERENCES effect_broker.effect_intents
);

-- A signature begins at a receipt that is there and has this digest.
CREATE FUNCTION effect_broker.signs_a_receipt() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, effect_broker, pg_temp AS $$
BEGIN
    PERFORM 1 FROM effect_broker.effect_receipts AS r
    WHERE r.tenant_id = NEW.tenant_id AND r.effect_id = NEW.effect_id
      AND r.digest = NEW.receipt_digest;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'a signature of no receipt' USING ERRCODE = 'EB001';
    END IF;
    RETURN NEW;
END $$;
REVOKE ALL ON FUNCTION effect_broker.signs_a_receipt FROM PUBLIC;
CREATE TRIGGER signs_a_receipt BEFORE INSERT ON effect_broker.effect_receipt_signatures
    FOR EACH ROW EXECUTE FUNCTION effect_broker.signs_a_receipt();
CREATE TRIGGER refuse_change BEFORE UPDATE OR DELETE ON effect_broker.effect_receipt_signatures
    FOR EACH ROW EXECUTE FUNCTION effect_broker.refuse_change();
CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON effect_broker.effect_receipt_signatures
    FOR EACH STATEMENT EXECUTE FUNCTION effect_broker.refuse_change();

ALTER TABLE effect_broker.effect_receipt_signatures ENABLE ROW LEVEL SECURITY;
ALTER TABLE effect_broker.effect_receipt_signatures FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON effect_broker.effect_receipt_signatures
    TO effect_broker_api, effect_broker_owner
    USING (tenant_id =
        (SELECT nullif(current_setting('effect_broker.tenant_id', true), '')::uuid));
CREATE POLICY every_tenant ON effect_broker.effect_receipt_signatures
    TO effect_broker_worker, effect_broker_prune, effect_broker_admin USING (true);
-- Whoever settles signs. A signature stays as long as its receipt: nobody removes one.
GRANT SELECT, INSERT ON effect_broker.effect_receipt_signatures
    TO effect_broker_api, effect_broker_worker;
