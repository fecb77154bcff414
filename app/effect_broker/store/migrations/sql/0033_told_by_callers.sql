-- What a caller with a role of the database tells is read by every process later. A preview that no
-- JSON parser takes, and a moment that no calendar has, made each of them stumble over the row: lists
-- of its tenant, a look at all effects, and the run that should have carried it out.
CREATE OR REPLACE FUNCTION effect_broker.joined_submit(
    p_tenant_id uuid, p_told jsonb, p_wire_digest bytea, OUT created boolean,
    OUT intent effect_broker.effect_intents)
LANGUAGE plpgsql SET search_path = pg_catalog, effect_broker, pg_temp AS $$
DECLARE
    contract effect_broker.contracts;
    tenant effect_broker.tenants;
    parent_id uuid := (p_told->>'parent_id')::uuid;
    compensates_id uuid := (p_told->>'compensates_id')::uuid;
    send_before timestamptz := (p_told->>'send_before')::timestamptz;
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
        -- Levels, and numbers, as a body may have them; and the years that there are elsewhere.
        OR jsonb_path_exists(p_told->'preview', 'strict $.**{65 to last}')
        OR jsonb_path_exists(p_told->'preview', 'strict $.** ? (@.type() == "number"
            && (@ > 1.7976931348623157e308 || @ < -1.7976931348623157e308))')
        OR send_before NOT BETWEEN '0001-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999999+00'
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
            nullif(p_told->'preview', 'null'::jsonb), send_before,
            p_told->>'arguments_key_id', arguments, NULL, NULL) AS s;
    ELSE
        SELECT s.created, s.intent INTO made FROM effect_broker.submit_linked_effect(
            p_tenant_id, effect_broker.effect_id_of(p_tenant_id, p_told->>'operation_key'),
            p_told->>'operation_key', contract.tool, decode(p_told->>'request_hash', 'hex'),
            contract.name, contract.version, contract.digest, contract.safety,
            p_told->>'downstream_key', tenant.hmac_key_id, p_wire_digest,
            'caller:role:' || session_user, p_told->>'trace_id', p_told->>'traceparent',
            nullif(p_told->'preview', 'null'::jsonb), send_before,
            p_told->>'arguments_key_id', arguments, NULL, NULL, parent_id, compensates_id) AS s;
    END IF;
    created := made.created;
    intent := made.intent;
END $$;
