-- An API key may end by itself. The database's clock judges it, as all deadlines.
ALTER TABLE effect_broker.api_keys
    ADD COLUMN expires_at timestamptz,
    ADD CONSTRAINT a_key_expires_after_it_begins CHECK (expires_at > created_at);

-- Rights are separate from here on: submit, read, operate, admin; `effects` is short for the first
-- two. Until now any key could submit and read, and `operate` covered what is `admin` now. Keys that
-- exist go on as they are. The owner is bound by row-level security, but for this statement.
ALTER TABLE effect_broker.api_keys NO FORCE ROW LEVEL SECURITY;
UPDATE effect_broker.api_keys SET scopes = scopes
    || CASE WHEN 'effects' = ANY (scopes) THEN '{}'::text[] ELSE '{effects}'::text[] END
    || CASE WHEN 'operate' = ANY (scopes) AND NOT 'admin' = ANY (scopes)
            THEN '{admin}'::text[] ELSE '{}'::text[] END;
ALTER TABLE effect_broker.api_keys FORCE ROW LEVEL SECURITY;

-- The functions of 0001 and 0013: an expired key is refused like one that is unknown.
CREATE OR REPLACE FUNCTION effect_broker.authenticate(p_key_hash bytea)
RETURNS TABLE (
    tenant_id uuid, key_id uuid, scopes text[], hmac_key_id text, disabled boolean)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, effect_broker, pg_temp AS $$
    SELECT k.tenant_id, k.key_id, k.scopes, t.hmac_key_id, t.disabled_at IS NOT NULL
    FROM effect_broker.api_keys k JOIN effect_broker.tenants t USING (tenant_id)
    WHERE k.key_hash = p_key_hash AND k.revoked_at IS NULL
      AND (k.expires_at IS NULL OR k.expires_at > clock_timestamp())
$$;

CREATE OR REPLACE FUNCTION effect_broker.begin_console_session(
    p_session_hash bytea, p_tenant_id uuid, p_key_id uuid) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, effect_broker, pg_temp AS $$
BEGIN
    DELETE FROM effect_broker.console_sessions s
    WHERE s.expires_at <= clock_timestamp()
       OR s.session_hash IN (
           SELECT o.session_hash FROM effect_broker.console_sessions o
           WHERE o.key_id = p_key_id ORDER BY o.created_at DESC OFFSET 19);
    INSERT INTO effect_broker.console_sessions (session_hash, tenant_id, key_id, expires_at)
    SELECT p_session_hash, k.tenant_id, k.key_id,
           least(clock_timestamp() + interval '8 hours', k.expires_at)
    FROM effect_broker.api_keys k
    WHERE k.key_id = p_key_id AND k.tenant_id = p_tenant_id AND k.revoked_at IS NULL
      AND (k.expires_at IS NULL OR k.expires_at > clock_timestamp());
    RETURN FOUND;
END $$;

CREATE OR REPLACE FUNCTION effect_broker.console_session(p_session_hash bytea)
RETURNS TABLE (
    tenant_id uuid, tenant text, key_id uuid, scopes text[], hmac_key_id text, disabled boolean,
    expires_at timestamptz)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, effect_broker, pg_temp AS $$
#variable_conflict use_column
BEGIN
    IF NOT current_setting('transaction_read_only')::boolean THEN
        UPDATE effect_broker.console_sessions s SET seen_at = clock_timestamp()
        WHERE s.session_hash = p_session_hash
          AND s.seen_at < clock_timestamp() - interval '1 minute'
          AND s.seen_at > clock_timestamp() - interval '30 minutes';
    END IF;
    RETURN QUERY
    SELECT k.tenant_id, t.name, k.key_id, k.scopes, t.hmac_key_id, t.disabled_at IS NOT NULL,
           s.expires_at
    FROM effect_broker.console_sessions s
    JOIN effect_broker.api_keys k ON k.key_id = s.key_id AND k.tenant_id = s.tenant_id
    JOIN effect_broker.tenants t ON t.tenant_id = s.tenant_id
    WHERE s.session_hash = p_session_hash AND k.revoked_at IS NULL
      AND (k.expires_at IS NULL OR k.expires_at > clock_timestamp())
      AND s.expires_at > clock_timestamp()
      AND s.seen_at > clock_timestamp() - interval '30 minutes';
END $$;
