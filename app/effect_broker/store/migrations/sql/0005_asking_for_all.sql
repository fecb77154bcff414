-- What an API process asks for all of its callers at once, still one tenant at a time.

-- Which of these effects are final or wait for a person. It runs with the rights of who calls it,
-- and takes each tenant's rows as that tenant: row-level security stands between them as ever.
CREATE FUNCTION effect_broker.standing_still(p_tenant_ids uuid[], p_effect_ids uuid[])
RETURNS TABLE (tenant_id uuid, effect_id uuid)
LANGUAGE plpgsql SET search_path = pg_catalog, effect_broker, pg_temp AS $$
DECLARE
    before text := current_setting('effect_broker.tenant_id', true);
    asking uuid;
BEGIN
    FOR asking IN SELECT DISTINCT t.id FROM unnest(p_tenant_ids) AS t (id) LOOP
        PERFORM set_config('effect_broker.tenant_id', asking::text, true);
        RETURN QUERY
            SELECT i.tenant_id, i.effect_id
            FROM unnest(p_tenant_ids, p_effect_ids) AS w (tenant_id, effect_id)
            JOIN effect_broker.effect_intents AS i
                ON i.tenant_id = w.tenant_id AND i.effect_id = w.effect_id
            WHERE w.tenant_id = asking
              AND (i.parked
                   OR i.state IN ('succeeded', 'failed_final', 'cancelled', 'compensated'));
    END LOOP;
    PERFORM set_config('effect_broker.tenant_id', coalesce(before, ''), true);
END $$;

-- The keys that submits of today need, for the readiness of a process that holds a key ring. Ids
-- only, and of all tenants together: who has which is not told.
CREATE FUNCTION effect_broker.hmac_key_ids_in_use() RETURNS SETOF text
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, effect_broker, pg_temp AS $$
    SELECT DISTINCT t.hmac_key_id FROM effect_broker.tenants AS t WHERE t.disabled_at IS NULL
$$;

REVOKE ALL ON FUNCTION effect_broker.standing_still, effect_broker.hmac_key_ids_in_use FROM PUBLIC;
GRANT EXECUTE ON FUNCTION effect_broker.standing_still, effect_broker.hmac_key_ids_in_use
    TO effect_broker_api;
