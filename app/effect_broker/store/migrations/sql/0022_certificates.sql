-- Certificates: what trials have shown of a contract's target, signed, and kept as it was signed.
-- A contract belongs to no tenant, and so does what was shown of its target.
CREATE TABLE effect_broker.certificates (
    certificate_id uuid PRIMARY KEY,
    -- A contract may be tried before it is applied, so that none need be stored under this digest.
    contract_digest bytea NOT NULL CHECK (octet_length(contract_digest) = 32),
    contract_name text NOT NULL CHECK (contract_name <> ''),
    contract_version text NOT NULL CHECK (contract_version <> ''),
    target_identity text NOT NULL CHECK (target_identity <> ''),
    content text NOT NULL,
    digest bytea NOT NULL UNIQUE CHECK (digest = sha256(convert_to(content, 'UTF8'))),
    key_id text NOT NULL CHECK (key_id <> ''),
    algorithm text NOT NULL CHECK (algorithm = 'ed25519'),
    signature bytea NOT NULL CHECK (octet_length(signature) = 64),
    begun_at timestamptz NOT NULL,
    ended_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    stored_by text NOT NULL CHECK (stored_by <> ''),
    stored_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CHECK (begun_at <= ended_at AND ended_at < expires_at)
);
CREATE INDEX certificates_of_contract
    ON effect_broker.certificates (contract_digest, ended_at DESC);

-- What ends certificates before their time. A lie that was found in use names the contract, and ends
-- every certificate of it whose trials had begun by then, one that is not stored yet included; a
-- person may end a single one.
CREATE TABLE effect_broker.certificate_revocations (
    revocation_id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    contract_digest bytea NOT NULL CHECK (octet_length(contract_digest) = 32),
    certificate_id uuid REFERENCES effect_broker.certificates,
    reason text NOT NULL CHECK (reason <> ''),
    effect_id uuid,
    actor text NOT NULL CHECK (actor <> ''),
    revoked_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- One effect shows the lie of its target once: what a person does with it later shows no other.
    UNIQUE (effect_id, contract_digest)
);
CREATE INDEX revocations_of_contract
    ON effect_broker.certificate_revocations (contract_digest, revoked_at);

DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['certificates', 'certificate_revocations'] LOOP
        EXECUTE format('CREATE TRIGGER refuse_change BEFORE UPDATE OR DELETE ON effect_broker.%I'
            ' FOR EACH ROW EXECUTE FUNCTION effect_broker.refuse_change()', name);
        EXECUTE format('CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON effect_broker.%I'
            ' FOR EACH STATEMENT EXECUTE FUNCTION effect_broker.refuse_change()', name);
    END LOOP;
END $$;
-- Only administration makes certificates. Whoever may freeze a contract may say why its certificates
-- no longer hold.
GRANT SELECT, INSERT ON effect_broker.certificates TO effect_broker_admin;
GRANT SELECT, INSERT ON effect_broker.certificate_revocations TO effect_broker_admin;
GRANT SELECT ON effect_broker.certificates TO effect_broker_worker;
GRANT SELECT, INSERT ON effect_broker.certificate_revocations TO effect_broker_worker;
GRANT INSERT ON effect_broker.certificate_revocations TO effect_broker_api;
-- Whether a certificate is in force, and not which effect ended it: that may be another tenant's.
GRANT SELECT (certificate_id, contract_digest, target_identity, begun_at, ended_at, expires_at)
    ON effect_broker.certificates TO effect_broker_api;
GRANT SELECT (certificate_id, contract_digest, revoked_at)
    ON effect_broker.certificate_revocations TO effect_broker_api;
