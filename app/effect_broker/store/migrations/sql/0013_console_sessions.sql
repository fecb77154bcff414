-- Who is signed in at the console. Kept here, since several API processes serve one browser. Of the
-- session's id only the hash is stored: whoever reads this table cannot take a session over.
CREATE TABLE effect_broker.console_sessions (
    session_hash bytea PRIMARY KEY CHECK (octet_length(session_hash) = 32),
    tenant_id uuid NOT NULL REFERENCES effect_broker.tenants,
    key_id uuid NOT NULL REFERENCES effect_broker.api_keys,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at timestamptz NOT NULL,
    seen_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CHECK (created_at < expires_at)
);
CREATE INDEX console_sessions_by_end ON effect_broker.console_sessions (expires_at);
CREATE INDEX console_sessions_of_key ON effect_broker.console_sessions (key_id, created_at);

-- A session is looked up before a tenant is known. No role has a right on the table: the functions
-- below run as the owner, and this policy lets him through.
ALTER TABLE effect_broker.console_sessions ENABLE ROW LEVEL SECURITY;
ALTER TABLE effect_broker.console_sessions FORCE ROW LEVEL SECURITY;
CREATE POLICY through_functions ON effect_broker.console_sessions
    TO effect_broker_owner USING (true);

-- Begin a session of a key that is good now; false where it is not. What has ended goes meanwhile,
-- and of one key the twenty newest stay, so that nobody can fill the table.
CREATE FUNCTION effect_broker.begin_console_session(
    p_session_hash bytea, p_tenant_id uuid, p_key_id uuid) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, effect_broker, pg_temp AS $$
BEGIN
    DELETE FROM effect_broker.console_sessions s
    WHERE s.expires_at <= clock_timestamp()
       OR s.session_hash IN (
           SELECT o.session_hash FROM effect_broker.console_sessions o
           WHERE o.key_id = p_key_id ORDER BY o.created_at DESC OFFSET 19);
    INSERT INTO effect_broker.console_sessions (session_hash, tenant_id, key_id, expires_at)
    SELECT p_session_hash, k.tenant_id, k.key_id, clock_timestamp() + interval '8 hours'
    FROM effect_broker.api_keys k
    WHERE k.key_id = p_key_id AND k.tenant_id = p_tenant_id AND k.revoked_at IS NULL;
    RETURN FOUND;
END $$;

-- The session, while neither its time nor its key nor the patience for an idle one has ended. That
-- it was seen is noted once a minute, and not at all by a server that takes no writes.
CREATE FUNCTION effect_broker.console_session(p_session_hash bytea)
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
      AND s.expires_at > clock_timestamp()
      AND s.seen_at > clock_timestamp() - interval '30 minutes';
END $$;

CREATE FUNCTION effect_broker.end_console_session(p_session_hash bytea) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, effect_broker, pg_temp AS $$
    DELETE FROM effect_broker.console_sessions s WHERE s.session_hash = p_session_hash
$$;

REVOKE ALL ON FUNCTION effect_broker.begin_console_session, effect_broker.console_session,
    effect_broker.end_console_session FROM PUBLIC;
GRANT EXECUTE ON FUNCTION effect_broker.begin_console_session, effect_broker.console_session,
    effect_broker.end_console_session TO effect_broker_api;
