-- What stops dispatches: a pause that a person has made, or a freeze that the broker has. A hold is
-- about one tenant or (NULL) all; about one tool, one contract version, or (both NULL) all effects.
-- A lifted hold stays, as the record of who stopped what, when and why.
CREATE TABLE effect_broker.holds (
    hold_id uuid PRIMARY KEY,
    kind text NOT NULL CHECK (kind IN ('paused', 'frozen')),
    tenant_id uuid REFERENCES effect_broker.tenants,
    tool text COLLATE "C",
    contract_name text COLLATE "C",
    contract_version text COLLATE "C",
    reason text NOT NULL CHECK (reason <> ''),
    placed_by text NOT NULL CHECK (placed_by <> ''),
    placed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    lifted_by text CHECK (lifted_by <> ''),
    lifted_at timestamptz,
    lift_reason text CHECK (lift_reason <> ''),
    CONSTRAINT one_contract_or_none CHECK (
        (contract_name IS NULL) = (contract_version IS NULL)
        AND (tool IS NULL OR contract_name IS NULL)),
    CONSTRAINT lifted_by_somebody CHECK (
        (lifted_at IS NULL) = (lifted_by IS NULL)
        AND (lifted_at IS NULL) = (lift_reason IS NULL))
);
-- Those in force are few: every change of an effect reads them all through this index. The first
-- hold of its kind and scope stays; another one would add nothing.
CREATE UNIQUE INDEX one_hold_of_its_scope ON effect_broker.holds
    (kind, tenant_id, tool, contract_name, contract_version) NULLS NOT DISTINCT
    WHERE lifted_at IS NULL;
CREATE INDEX holds_by_age ON effect_broker.holds (placed_at DESC, hold_id DESC);

-- The owner is bound by the old table's policy too, as long as it is forced.
ALTER TABLE effect_broker.contract_controls NO FORCE ROW LEVEL SECURITY;
INSERT INTO effect_broker.holds (
    hold_id, kind, tenant_id, contract_name, contract_version, reason, placed_by, placed_at)
SELECT gen_random_uuid(), k.kind, c.tenant_id, c.contract_name, c.contract_version, k.reason,
       'broker', k.at
FROM effect_broker.contract_controls AS c
CROSS JOIN LATERAL (VALUES
    ('paused', c.paused_reason, c.paused_at), ('frozen', c.frozen_reason, c.frozen_at)
) AS k (kind, reason, at)
WHERE k.at IS NOT NULL;
DROP TABLE effect_broker.contract_controls;

-- Only who lifts it and why may be written later, and once.
CREATE FUNCTION effect_broker.only_lift() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, effect_broker, pg_temp AS $$
BEGIN
    IF OLD.lifted_at IS NOT NULL
       OR (to_jsonb(NEW) - '{lifted_by,lifted_at,lift_reason}'::text[])
           <> (to_jsonb(OLD) - '{lifted_by,lifted_at,lift_reason}'::text[]) THEN
        RAISE EXCEPTION 'a hold is lifted once and never rewritten' USING ERRCODE = 'EB001';
    END IF;
    RETURN NEW;
END $$;
REVOKE ALL ON FUNCTION effect_broker.only_lift FROM PUBLIC;
CREATE TRIGGER only_lift BEFORE UPDATE ON effect_broker.holds
    FOR EACH ROW EXECUTE FUNCTION effect_broker.only_lift();
CREATE TRIGGER refuse_change BEFORE DELETE ON effect_broker.holds
    FOR EACH ROW EXECUTE FUNCTION effect_broker.refuse_change();
CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON effect_broker.holds
    FOR EACH STATEMENT EXECUTE FUNCTION effect_broker.refuse_change();

ALTER TABLE effect_broker.holds ENABLE ROW LEVEL SECURITY;
ALTER TABLE effect_broker.holds FORCE ROW LEVEL SECURITY;
-- A tenant sees what stops it, also where that stops everybody; it places and lifts its own.
CREATE POLICY seen_by_tenant ON effect_broker.holds FOR SELECT
    TO effect_broker_api, effect_broker_owner
    USING (tenant_id IS NULL OR tenant_id =
        (SELECT nullif(current_setting('effect_broker.tenant_id', true), '')::uuid));
CREATE POLICY placed_by_tenant ON effect_broker.holds FOR INSERT
    TO effect_broker_api, effect_broker_owner
    WITH CHECK (tenant_id =
        (SELECT nullif(current_setting('effect_broker.tenant_id', true), '')::uuid));
CREATE POLICY lifted_by_tenant ON effect_broker.holds FOR UPDATE
    TO effect_broker_api, effect_broker_owner
    USING (tenant_id =
        (SELECT nullif(current_setting('effect_broker.tenant_id', true), '')::uuid));
CREATE POLICY every_tenant ON effect_broker.holds
    TO effect_broker_worker, effect_broker_prune, effect_broker_admin USING (true);
GRANT SELECT, INSERT, UPDATE (lifted_by, lifted_at, lift_reason) ON effect_broker.holds
    TO effect_broker_api, effect_broker_admin;
GRANT SELECT, INSERT ON effect_broker.holds TO effect_broker_worker;

-- Every change of an effect shares this lock until it ends; whoever has placed a hold waits for it
-- once, alone, and then knows that no attempt is granted any more by somebody who has not seen the
-- hold. An advisory lock, since a hold that does not exist yet has no row to lock. One of 64, so
-- that a hold of one tenant makes few others wait, and a hold of all has a bounded number to take.
CREATE FUNCTION effect_broker.share_holds(tenant_id uuid) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    SELECT pg_advisory_xact_lock_shared(1701999971, hashtext($1::text) & 63)
$$;
CREATE FUNCTION effect_broker.await_holds(tenant_id uuid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    FOR bucket IN 0..63 LOOP
        CONTINUE WHEN $1 IS NOT NULL AND bucket <> hashtext($1::text) & 63;
        PERFORM pg_advisory_xact_lock(1701999971, bucket);
    END LOOP;
END $$;
REVOKE ALL ON FUNCTION effect_broker.share_holds, effect_broker.await_holds FROM PUBLIC;
GRANT EXECUTE ON FUNCTION effect_broker.share_holds
    TO effect_broker_api, effect_broker_worker;
GRANT EXECUTE ON FUNCTION effect_broker.await_holds
    TO effect_broker_api, effect_broker_admin;
