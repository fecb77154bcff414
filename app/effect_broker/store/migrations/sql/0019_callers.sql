-- Callers that submit inside their own transactions: database roles of others, each of one tenant.
-- Such a role may call one function of the broker and nothing else.
CREATE TABLE effect_broker.callers (
    -- The role that logs in. By its name, which survives a dump and a restore.
    role_name text COLLATE "C" PRIMARY KEY CHECK (role_name <> ''),
    tenant_id uuid NOT NULL REFERENCES effect_broker.tenants,
    added_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
ALTER TABLE effect_broker.callers ENABLE ROW LEVEL SECURITY;
ALTER TABLE effect_broker.callers FORCE ROW LEVEL SECURITY;
CREATE POLICY every_tenant ON effect_broker.callers TO effect_broker_admin USING (true);
-- For the functions below, which run as the owner before a tenant is known.
CREATE POLICY of_the_session ON effect_broker.callers TO effect_broker_owner USING (true);
GRANT SELECT ON effect_broker.callers TO effect_broker_admin;

-- Let a role submit for a tenant. Says what it has found: `added`, `there`, or why it did not.
CREATE FUNCTION effect_broker.add_caller(p_role text, p_tenant_id uuid) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, effect_broker, pg_temp AS $$
DECLARE
    login record;
    known uuid;
BEGIN
    -- Grants on one function at the same time would fail; this lets one after the other.
    LOCK TABLE effect_broker.callers IN SHARE ROW EXCLUSIVE MODE;
    SELECT r.oid, r.rolcanlogin, r.rolsuper OR r.rolbypassrls AS above INTO login
    FROM pg_roles AS r WHERE r.rolname = p_role;
    IF NOT FOUND THEN
        RETURN 'no_role';
    END IF;
    -- Whoever has rights of the broker already is bound by no mapping.
    IF login.above OR EXISTS (
        SELECT 1 FROM pg_roles AS b WHERE b.rolname IN ('effect_broker_owner', 'effect_broker_api',
            'effect_broker_worker', 'effect_broker_prune', 'effect_broker_admin')
          AND pg_has_role(login.oid, b.oid, 'MEMBER'))
    THEN
        RETURN 'too_mighty';
    END IF;
    IF NOT login.rolcanlogin THEN
        RETURN 'no_login';
    END IF;
    SELECT c.tenant_id INTO known FROM effect_broker.callers AS c WHERE c.role_name = p_role;
    IF known <> p_tenant_id THEN
        RETURN 'of_another_tenant';
    END IF;
    EXECUTE format('GRANT USAGE ON SCHEMA effect_broker TO %I', p_role);
    EXECUTE format('GRANT EXECUTE ON FUNCTION effect_broker.join_effect(text, jsonb) TO %I', p_role);
    IF known IS NOT NULL THEN
        RETURN 'there';
    END IF;
    INSERT INTO effect_broker.callers (role_name, tenant_id) VALUES (p_role, p_tenant_id);
    RETURN 'added';
END $$;

-- Take it back; false where the role was no caller. A role that is gone has no rights left.
CREATE FUNCTION effect_broker.remove_caller(p_role text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, effect_broker, pg_temp AS $$
BEGIN
    LOCK TABLE effect_broker.callers IN SHARE ROW EXCLUSIVE MODE;
    DELETE FROM effect_broker.callers AS c WHERE c.role_name = p_role;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF EXISTS (SELECT 1 FROM pg_roles AS r WHERE r.rolname = p_role) THEN
        EXECUTE format(
            'REVOKE EXECUTE ON FUNCTION effect_broker.join_effect(text, jsonb) FROM %I', p_role);
        EXECUTE format('REVOKE USAGE ON SCHEMA effect_broker FROM %I', p_role);
    END IF;
    RETURN true;
END $$;

-- The id of an effect, as `effect_contracts.keys.effect_id` computes it: a caller chooses none.
CREATE FUNCTION effect_broker.effect_id_of(p_tenant_id uuid, p_operation_key text) RETURNS uuid
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, effect_broker, pg_temp AS $$
DECLARE
    domain bytea := convert_to('effect-broker/effect-id/1', 'UTF8');
    name bytea := convert_to(p_operation_key, 'UTF8');
    hash bytea;
BEGIN
    hash := substr(sha256(
        int2send(octet_length(domain)::int2) || domain
        || int2send(16::int2) || uuid_send(p_tenant_id)
        || int2send(octet_length(name)::int2) || name), 1, 16);
    hash := set_byte(hash, 6, (get_byte(hash, 6) & 15) | 128);
    hash := set_byte(hash, 8, (get_byte(hash, 8) & 63) | 128);
    RETURN encode(hash, 'hex')::uuid;
END $$;

-- An intent as its caller sees it; bytes in hexadecimal, whatever the session's own format is.
CREATE FUNCTION effect_broker.joined_intent(i effect_broker.effect_intents) RETURNS jsonb
LANGUAGE sql STABLE SET search_path = pg_catalog, effect_broker, pg_temp AS $$
    SELECT jsonb_build_object(
        'effect_id', i.effect_id, 'tenant_id', i.tenant_id, 'operation_key', i.operation_key,
        'tool', i.tool, 'request_hash', encode(i.request_hash, 'hex'),
        'contract_name', i.contract_name, 'contract_version', i.contract_version,
        'contract_digest', encode(i.contract_digest, 'hex'), 'safety', i.safety,
        'downstream_key', i.downstream_key, 'state', i.state, 'version', i.version,
        'reason', i.reason, 'generation', i.generation,
        'progress_generation', i.progress_generation, 'next_action_at', i.next_action_at,
        'target_identity', i.target_identity, 'wire_digest', encode(i.wire_digest, 'hex'),
        'created_at', i.created_at, 'updated_at', i.updated_at)
$$;

-- What a caller has to know before it can make a submission: whom it submits for, under which
-- contract, and what stands under its operation key; or where another effect stands that a link
-- names. Nothing is written.
CREATE FUNCTION effect_broker.joined_look(p_tenant_id uuid, p_told jsonb) RETURNS jsonb
LANGUAGE sql STABLE SET search_path = pg_catalog, effect_broker, pg_temp AS $$
    SELECT jsonb_build_object(
        'tenant_id', t.tenant_id, 'hmac_key_id', t.hmac_key_id, 'role', session_user,
        'database', (
            SELECT jsonb_build_array(d.system_identifier::text, d.database_oid::text,
                                     d.relation_oid::text)
            FROM effect_broker.this_database AS d),
        'contract', (
            SELECT jsonb_build_object('digest', encode(c.digest, 'hex'), 'document', c.document)
            FROM effect_broker.active_contracts AS a
            JOIN effect_broker.contracts AS c USING (tool, digest)
            WHERE a.tool = p_told->>'tool'),
        'standing', (
            SELECT jsonb_build_object(
                'intent', effect_broker.joined_intent(i),
                'arguments_key_id', p.key_id, 'arguments', encode(p.ciphertext, 'hex'))
            FROM effect_broker.effect_intents AS i
            LEFT JOIN effect_broker.effect_payloads AS p
                ON p.tenant_id = i.tenant_id AND p.effect_id = i.effect_id
                AND p.kind = 'arguments' AND p.ref = '' AND p_told->>'effect_id' IS NULL
            WHERE i.tenant_id = p_tenant_id
              AND i.effect_id = coalesce((p_told->>'effect_id')::uuid,
                  effect_broker.effect_id_of(p_tenant_id, p_told->>'operation_key'))))
    FROM effect_broker.tenants AS t WHERE t.tenant_id = p_tenant_id
$$;

-- Make the intent, as `submit_effect` does for the API. A caller is believed what is its own:
-- arguments, downstream key and request hash. Id, actor and contract are looked up here, and the
-- request on the wire is rendered by a worker, from the arguments and under the pinned contract.
CREATE FUNCTION effect_broker.joined_submit(
    p_tenant_id uuid, p_told jsonb, p_wire_digest bytea, OUT created boolean,
    OUT intent effect_broker.effect_intents)
LANGUAGE plpgsql SET search_path = pg_catalog, effect_broker, pg_temp AS $$
DECLARE
    contract effect_broker.contracts;
    tenant effect_broker.tenants;
    parent_id uuid := (p_told->>'parent_id')::uuid;
    compensates_id uuid := (p_told->>'compensates_id')::uuid;
    arguments bytea := decode(p_told->>'arguments', 'hex');
    made record;
BEGIN
    SELECT t.* INTO tenant FROM effect_broker.tenants AS t WHERE t.tenant_id = p_tenant_id;
    SELECT c.* INTO contract FROM effect_broker.contracts AS c
    WHERE c.digest = decode(p_told->>'contract_digest', 'hex') AND c.tool = p_told->>'tool';
    IF NOT FOUND THEN
        RAISE EXCEPTION 'not the active contract of its tool' USING ERRCODE = 'EB002';
    END IF;
    -- An approver must not read what a caller says of arguments that only a worker opens.
    IF contract.document::jsonb #>> '{oversight,approval_valid_seconds}' IS NOT NULL THEN
        RAISE EXCEPTION 'an approval is needed' USING ERRCODE = 'EB007';
    END IF;
    IF arguments IS NULL OR octet_length(arguments) > 1048576
        OR length(p_told->>'arguments_key_id') NOT BETWEEN 1 AND 255
        OR coalesce(p_told->>'downstream_key', '') !~ '^[!-~]+$'
        OR length(p_told->>'downstream_key') > 1024
        OR length(p_told->>'trace_id') > 255 OR length(p_told->>'traceparent') > 255
        OR jsonb_typeof(p_told->'preview') NOT IN ('object', 'null')
        OR octet_length((p_told->'preview')::text) > 1048576
        OR p_told->>'hmac_key_id' IS DISTINCT FROM tenant.hmac_key_id
    THEN
        RAISE EXCEPTION 'a submission that no client makes' USING ERRCODE = 'EB001';
    END IF;
    -- An acknowledged intent is on the disk, whatever the caller's transactions are by default.
    IF current_setting('synchronous_commit') IN ('off', 'local', 'remote_write') THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    IF parent_id IS NULL AND compensates_id IS NULL THEN
        SELECT s.created, s.intent INTO made FROM effect_broker.submit_effect(
            p_tenant_id, effect_broker.effect_id_of(p_tenant_id, p_told->>'operation_key'),
            p_told->>'operation_key', contract.tool, decode(p_told->>'request_hash', 'hex'),
            contract.name, contract.version, contract.digest, contract.safety,
            p_told->>'downstream_key', tenant.hmac_key_id, p_wire_digest,
            'caller:role:' || session_user, p_told->>'trace_id', p_told->>'traceparent',
            nullif(p_told->'preview', 'null'::jsonb), (p_told->>'send_before')::timestamptz,
            p_told->>'arguments_key_id', arguments, NULL, NULL) AS s;
    ELSE
        SELECT s.created, s.intent INTO made FROM effect_broker.submit_linked_effect(
            p_tenant_id, effect_broker.effect_id_of(p_tenant_id, p_told->>'operation_key'),
            p_told->>'operation_key', contract.tool, decode(p_told->>'request_hash', 'hex'),
            contract.name, contract.version, contract.digest, contract.safety,
            p_told->>'downstream_key', tenant.hmac_key_id, p_wire_digest,
            'caller:role:' || session_user, p_told->>'trace_id', p_told->>'traceparent',
            nullif(p_told->'preview', 'null'::jsonb), (p_told->>'send_before')::timestamptz,
            p_told->>'arguments_key_id', arguments, NULL, NULL, parent_id, compensates_id) AS s;
    END IF;
    created := made.created;
    intent := made.intent;
END $$;

-- The one function of callers. The tenant follows from the role that has logged in. What is refused
-- is an answer and no error, so that the caller's transaction goes on as if it had not asked.
CREATE FUNCTION effect_broker.join_effect(p_ask text, p_told jsonb) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, effect_broker, pg_temp AS $$
DECLARE
    tenant effect_broker.tenants;
    tenant_before text := coalesce(current_setting('effect_broker.tenant_id', true), '');
    patience_before text := current_setting('lock_timeout');
    answer jsonb;
    made record;
BEGIN
    -- A text that is no id would break the policies.
    PERFORM set_config('effect_broker.tenant_id', '', true);
    SELECT t.* INTO tenant FROM effect_broker.callers AS c
    JOIN effect_broker.tenants AS t USING (tenant_id) WHERE c.role_name = session_user::text;
    PERFORM set_config('effect_broker.tenant_id', coalesce(tenant.tenant_id::text, ''), true);
    -- Another transaction may hold the key. Nobody waits for it without an end.
    IF patience_before = '0' THEN
        PERFORM set_config('lock_timeout', '5s', true);
    END IF;
    IF tenant.tenant_id IS NULL THEN
        answer := '{"refused": "not_a_caller"}';
    ELSIF tenant.disabled_at IS NOT NULL THEN
        answer := '{"refused": "tenant_disabled"}';
    ELSIF current_setting('transaction_read_only')::boolean THEN
        answer := '{"refused": "read_only"}';
    ELSIF p_ask = 'look' THEN
        answer := effect_broker.joined_look(tenant.tenant_id, p_told);
    ELSE
        BEGIN
            IF p_ask = 'submit' THEN
                SELECT s.created, s.intent INTO made
                FROM effect_broker.joined_submit(tenant.tenant_id, p_told, NULL) AS s;
            ELSIF p_ask = 'perform' THEN
                SELECT s.created, s.intent INTO made
                FROM effect_broker.joined_perform(tenant.tenant_id, p_told) AS s;
            ELSE
                RAISE EXCEPTION 'nobody asks for this' USING ERRCODE = 'EB001';
            END IF;
            answer := jsonb_build_object(
                'created', made.created, 'intent', effect_broker.joined_intent(made.intent));
        EXCEPTION
            -- Another contract, links, an approval, a hold; a lock that did not come, and what a
            -- snapshot that is older than a commit must not decide.
            WHEN SQLSTATE 'EB002' OR SQLSTATE 'EB004' OR SQLSTATE 'EB005' OR SQLSTATE 'EB006'
                OR SQLSTATE 'EB007' OR SQLSTATE 'EB008' OR SQLSTATE 'EB009'
                OR lock_not_available OR serialization_failure OR deadlock_detected
            THEN
                answer := jsonb_build_object('refused', SQLSTATE, 'why', SQLERRM);
        END;
    END IF;
    IF patience_before = '0' THEN
        PERFORM set_config('lock_timeout', patience_before, true);
    END IF;
    PERFORM set_config('effect_broker.tenant_id', tenant_before, true);
    RETURN answer;
END $$;

REVOKE ALL ON FUNCTION effect_broker.add_caller, effect_broker.remove_caller,
    effect_broker.effect_id_of, effect_broker.joined_intent, effect_broker.joined_look,
    effect_broker.joined_submit, effect_broker.join_effect FROM PUBLIC;
GRANT EXECUTE ON FUNCTION effect_broker.add_caller, effect_broker.remove_caller
    TO effect_broker_admin;
