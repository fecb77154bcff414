-- Locks that stand between a hold and what it must not be passed by: on tables, where they were
-- advisory ones. Those are free for everybody who may log in, and one session of a role that may do
-- nothing else (a caller's, say) could hold all of them: then no attempt of any tenant was granted.
-- A lock on a table takes a right to the table. They are empty, and nobody has one; the functions act
-- as their owner. The mode of those who share does not meet that of a dump, which reads the tables.
DO $$
BEGIN
    FOR bucket IN 0..63 LOOP
        EXECUTE format('CREATE TABLE effect_broker.hold_gate_%s ()', bucket);
    END LOOP;
END $$;

-- As before, one of 64: a hold of one tenant makes few others wait, and a hold of all has a bounded
-- number to take.
CREATE OR REPLACE FUNCTION effect_broker.share_holds(tenant_id uuid) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, effect_broker, pg_temp AS $$
BEGIN
    EXECUTE format('LOCK TABLE effect_broker.hold_gate_%s IN ROW SHARE MODE',
        hashtext($1::text) & 63);
END $$;
CREATE OR REPLACE FUNCTION effect_broker.await_holds(tenant_id uuid) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, effect_broker, pg_temp AS $$
BEGIN
    FOR bucket IN 0..63 LOOP
        CONTINUE WHEN $1 IS NOT NULL AND bucket <> hashtext($1::text) & 63;
        EXECUTE format('LOCK TABLE effect_broker.hold_gate_%s IN EXCLUSIVE MODE', bucket);
    END LOOP;
END $$;
