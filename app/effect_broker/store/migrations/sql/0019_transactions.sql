-- Effects that a caller carries out by its own statements: the receipt is written in the caller's
-- transaction, before the statements that it stands for, so that both commit or neither does.

-- A text as JSON writes it. Callers bring printable ASCII only, where RFC 8785, Python and
-- PostgreSQL agree.
CREATE FUNCTION effect_broker.json_of(p_text text) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(to_json(p_text)::text, 'null')
$$;
CREATE FUNCTION effect_broker.receipt_time(p_at timestamptz) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT to_char(p_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')
$$;

-- The content of a receipt, byte for byte as `effect_contracts.receipts.receipt_content` writes it.
CREATE FUNCTION effect_broker.joined_receipt(
    i effect_broker.effect_intents, p_receipt_id uuid, p_external_id text, p_at timestamptz
) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, effect_broker, pg_temp AS $$
    SELECT '{"attempts":1,"contract":{"digest":"' || encode(i.contract_digest, 'hex')
        || '","name":' || json_of(i.contract_name) || ',"version":' || json_of(i.contract_version)
        || '},"downstream_key_digest":"'
        || encode(sha256(convert_to(i.downstream_key, 'UTF8')), 'hex')
        || '","effect_id":"' || i.effect_id || '","external_id":' || json_of(p_external_id)
        || ',"format":"effect-broker/receipt/1","operation_key":' || json_of(i.operation_key)
        || ',"reason":"committed","receipt_id":"' || p_receipt_id
        || '","request_hash":"' || encode(i.request_hash, 'hex')
        || '","result_digest":null,"safety":"transactional","settled_at":"' || receipt_time(p_at)
        || '","source":"transaction","state":"succeeded","tenant_id":"' || i.tenant_id
        || '","tool":' || json_of(i.tool) || '}'
$$;

-- Whether a new effect may be carried out at all. EB008: of another class. EB009: held. No lock on
-- the holds is kept: an operator who places one waits for no caller's transaction.
CREATE FUNCTION effect_broker.joined_permission(p_tenant_id uuid, p_told jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, effect_broker, pg_temp AS $$
DECLARE
    contract effect_broker.contracts;
    held text;
BEGIN
    SELECT c.* INTO contract FROM effect_broker.contracts AS c
    WHERE c.digest = decode(p_told->>'contract_digest', 'hex') AND c.tool = p_told->>'tool';
    IF contract.safety <> 'transactional' THEN
        RAISE EXCEPTION '%', contract.safety USING ERRCODE = 'EB008';
    END IF;
    SELECT h.kind INTO held FROM effect_broker.holds AS h
    WHERE h.lifted_at IS NULL
      AND (h.tenant_id IS NULL OR h.tenant_id = p_tenant_id)
      AND (h.tool IS NULL OR h.tool = contract.tool)
      AND (h.contract_name IS NULL OR (h.contract_name, h.contract_version)
           = (contract.name, contract.version))
    ORDER BY h.kind LIMIT 1;
    IF EXISTS (
        SELECT 1 FROM effect_broker.database_identity AS d
        WHERE d.halted_at IS NOT NULL
           OR d.relation_oid IS DISTINCT FROM 'effect_broker.effect_intents'::regclass::oid)
    THEN
        held := 'database_restored';
    END IF;
    IF held IS NOT NULL THEN
        RAISE EXCEPTION '%', held USING ERRCODE = 'EB009';
    END IF;
END $$;

-- The intent, the key of the mutation, the attempt, the evidence and the receipt in one: what comes
-- after it in the caller's transaction is the mutation. Four events tell of it, as of any effect.
CREATE FUNCTION effect_broker.joined_perform(
    p_tenant_id uuid, p_told jsonb, OUT created boolean, OUT intent effect_broker.effect_intents)
LANGUAGE plpgsql SET search_path = pg_catalog, effect_broker, pg_temp AS $$
DECLARE
    made record;
    made_id uuid;
    document jsonb;
    named text := p_told->>'external_id';
    executor text := 'caller:role:' || session_user;  -- the sender, and so the actor
    attempt uuid := gen_random_uuid();
    evidence uuid := gen_random_uuid();
    receipt uuid := gen_random_uuid();
    target text;
    now_at timestamptz;
    outcome_at timestamptz;
    content text;
    told text;
BEGIN
    IF NOT EXISTS (SELECT 1 FROM effect_broker.effect_intents AS i
                   WHERE i.tenant_id = p_tenant_id AND i.operation_key = p_told->>'operation_key')
    THEN
        PERFORM effect_broker.joined_permission(p_tenant_id, p_told);
    END IF;
    SELECT s.created, s.intent INTO made FROM effect_broker.joined_submit(
        p_tenant_id, p_told, decode(p_told->>'wire_digest', 'hex')) AS s;
    created := made.created;
    intent := made.intent;
    made_id := intent.effect_id;
    IF NOT created THEN
        RETURN;
    END IF;
    IF named !~ '^[!-~]{1,255}$' OR intent.wire_digest IS NULL THEN
        RAISE EXCEPTION 'a submission that no client makes' USING ERRCODE = 'EB001';
    END IF;
    SELECT c.document::jsonb INTO document FROM effect_broker.contracts AS c
    WHERE c.digest = intent.contract_digest;
    target := format('postgres:%s#%s', document #>> '{adapter,function}', document->>'account');
    now_at := clock_timestamp();
    outcome_at := now_at + interval '1 microsecond';  -- the outcome is told after the evidence
    -- The key first, as in every transactional effect.
    INSERT INTO effect_broker.mutation_keys (tenant_id, effect_id, ordinal, kind)
    VALUES (p_tenant_id, made_id, 1, 'mutation');
    INSERT INTO effect_broker.effect_attempts (attempt_id, tenant_id, effect_id, ordinal,
        executor_id, started_at, deadline_at, target_identity)
    VALUES (attempt, p_tenant_id, made_id, 1, executor, now_at,
        now_at + make_interval(secs => (document->>'attempt_deadline_seconds')::float8), target);
    INSERT INTO effect_broker.effect_events (tenant_id, effect_id, sequence, kind, event,
        from_state, to_state, reason, actor, at, metadata)
    VALUES (p_tenant_id, made_id, 2, 'attempt_started', 'attempt_started', 'prepared',
        'dispatching', 'first_attempt', executor, now_at,
        format('{"attempt_id":"%s","ordinal":1,"wire_digest":"%s"}', attempt,
            encode(intent.wire_digest, 'hex')));
    INSERT INTO effect_broker.effect_evidence (evidence_id, tenant_id, effect_id, source, verdict,
        code, began_at, recorded_at, covers_through, external_ids, target_identity)
    VALUES (evidence, p_tenant_id, made_id, 'transaction', 'committed',
        'callers_transaction', now_at, now_at, 1,
        array_remove(ARRAY[named], NULL), target);
    content := effect_broker.joined_receipt(intent, receipt, named, now_at);
    INSERT INTO effect_broker.effect_receipts (receipt_id, tenant_id, effect_id, content, digest,
        result_ref, recorded_at)
    VALUES (receipt, p_tenant_id, made_id, content,
        sha256(convert_to(content, 'UTF8')), NULL, now_at);
    told := '{"began_at":"' || effect_broker.receipt_time(now_at)
        || '","code":"callers_transaction","covers_through":1,"evidence_id":"' || evidence
        || '","external_ids":['
        || CASE WHEN named IS NULL THEN '' ELSE effect_broker.json_of(named) END
        || '],"format":"effect-broker/evidence/1","result_digest":null,"source":"transaction",'
        || '"target_identity":' || effect_broker.json_of(target) || ',"verdict":"committed"}';
    INSERT INTO effect_broker.effect_events (tenant_id, effect_id, sequence, kind, event,
        from_state, to_state, reason, actor, at, metadata)
    VALUES (p_tenant_id, made_id, 3, 'evidence_added', 'commit_proved', 'dispatching',
        'succeeded', 'committed', executor, now_at,
        format('{"code":"callers_transaction","covers_through":1,"evidence_id":"%s",'
            '"fact_digest":"%s","receipt_digest":"%s","row":2,"source":"transaction",'
            '"verdict":"committed"}', evidence,
            encode(sha256(convert_to(told, 'UTF8')), 'hex'),
            encode(sha256(convert_to(content, 'UTF8')), 'hex')));
    UPDATE effect_broker.effect_attempts AS a
    SET outcome = 'committed', code = 'callers_transaction',
        recorded_at = outcome_at, external_id = named,
        bytes_may_have_left = true
    WHERE a.attempt_id = attempt;
    told := '{"attempt_id":"' || attempt || '","code":"callers_transaction","external_id":'
        || effect_broker.json_of(named)
        || ',"format":"effect-broker/outcome/1","operation":false,"ordinal":1,'
        || '"outcome":"committed","recorded_at":"' || effect_broker.receipt_time(outcome_at)
        || '","result_digest":null,"retry_after_seconds":null}';
    INSERT INTO effect_broker.effect_events (tenant_id, effect_id, sequence, kind, event,
        from_state, to_state, reason, actor, at, metadata)
    VALUES (p_tenant_id, made_id, 4, 'late_fact', 'late_fact', 'succeeded', 'succeeded',
        'committed', executor, outcome_at,
        format('{"code":"callers_transaction","contradicts":false,"fact_digest":"%s",'
            '"late":false,"ordinal":1,"outcome":"committed"}',
            encode(sha256(convert_to(told, 'UTF8')), 'hex')));
    UPDATE effect_broker.effect_intents AS i
    SET state = 'succeeded', reason = 'committed', version = 4, latest_ordinal = 1,
        next_action_at = NULL, target_identity = target,
        receipt_digest = sha256(convert_to(content, 'UTF8')),
        event_digest = (SELECT e.digest FROM effect_broker.effect_events AS e
                        WHERE e.effect_id = i.effect_id AND e.sequence = 4),
        updated_at = outcome_at
    WHERE i.tenant_id = p_tenant_id AND i.effect_id = made_id
    RETURNING i.* INTO intent;
END $$;

REVOKE ALL ON FUNCTION effect_broker.json_of, effect_broker.receipt_time,
    effect_broker.joined_receipt, effect_broker.joined_permission, effect_broker.joined_perform
    FROM PUBLIC;
