-- The same rows and the same rules, for less computing of the server.

-- The same text as before, in one expression. It was put together by a dozen calls of a function, and
-- three digests of an effect took as long as one of its rows.
CREATE OR REPLACE FUNCTION effect_broker.event_digest(
    previous bytea, tenant_id uuid, effect_id uuid, sequence integer, kind text, event text,
    from_state text, to_state text, reason text, actor text, at timestamptz, metadata text
) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
SET search_path = pg_catalog, effect_broker, pg_temp AS $$
DECLARE
    place text := sequence::text;
    moment text := trunc(extract(epoch FROM at) * 1000000)::text;
BEGIN
    -- Each field is its length in bytes, a colon, itself and a semicolon. One may be NULL, and is '-;'
    -- then. The expression is short, since the server prepares it anew for every transaction.
    RETURN sha256(previous || convert_to(concat(
        '14:effect-event-1;36:', tenant_id, ';36:', effect_id, ';',
        octet_length(place), ':', place, ';',
        octet_length(convert_to(kind, 'UTF8')), ':', kind, ';',
        octet_length(convert_to(event, 'UTF8')), ':', event, ';',
        coalesce(octet_length(convert_to(from_state, 'UTF8')) || ':' || from_state, '-'), ';',
        octet_length(convert_to(to_state, 'UTF8')), ':', to_state, ';',
        octet_length(convert_to(reason, 'UTF8')), ':', reason, ';',
        octet_length(convert_to(actor, 'UTF8')), ':', actor, ';',
        octet_length(moment), ':', moment, ';',
        octet_length(convert_to(metadata, 'UTF8')), ':', metadata, ';'), 'UTF8'));
END $$;
DROP FUNCTION effect_broker.canonical_field;

-- As before, in one statement: a function in SQL that is called by another one begins a statement of
-- its own for each event.
CREATE OR REPLACE FUNCTION effect_broker.stream_era() RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
DECLARE
    known record;
    timeline bigint := 4294967295;
BEGIN
    SELECT k.epoch, k.timeline, k.relation_oid INTO known
    FROM effect_broker.event_epochs AS k ORDER BY k.epoch DESC LIMIT 1;
    IF NOT pg_is_in_recovery() THEN
        -- As `stream_timeline`.
        timeline := ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::bigint;
    END IF;
    IF known.relation_oid <> 'effect_broker.effect_events'::regclass::oid
       OR timeline < known.timeline
    THEN
        known.epoch := known.epoch + 1;
    END IF;
    RETURN (known.epoch::bigint << 32) | timeline;
END $$;

-- As 0030 for intents and attempts: Postgres reads the CHECKs of a table from their text again for
-- every statement that writes to it, and each effect writes three events, two payloads, a signature.
CREATE FUNCTION effect_broker.sound_event(
    p_sequence integer, p_from_state text, p_metadata text
) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, effect_broker, pg_temp AS $$
DECLARE
    broken text := CASE
        WHEN (p_sequence = 1) <> (p_from_state IS NULL) THEN 'effect_events_check'
        WHEN jsonb_typeof(p_metadata::jsonb) <> 'object' THEN 'effect_events_metadata_check'
        WHEN p_sequence < 1 THEN 'effect_events_sequence_check'
    END;
BEGIN
    IF broken IS NOT NULL THEN
        PERFORM effect_broker.refuse_row('effect_events', broken);
    END IF;
    RETURN true;
END $$;

CREATE FUNCTION effect_broker.sound_payload(
    p_kind text, p_ciphertext bytea, p_erased_at timestamptz
) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, effect_broker, pg_temp AS $$
DECLARE
    broken text := CASE
        WHEN (p_ciphertext IS NULL) <> (p_erased_at IS NOT NULL) THEN 'effect_payloads_check'
        WHEN p_kind NOT IN ('arguments', 'wire', 'operation', 'result')
            THEN 'effect_payloads_kind_check'
    END;
BEGIN
    IF broken IS NOT NULL THEN
        PERFORM effect_broker.refuse_row('effect_payloads', broken);
    END IF;
    RETURN true;
END $$;

CREATE FUNCTION effect_broker.sound_signature(
    p_receipt_digest bytea, p_key_id text, p_algorithm text, p_signature bytea
) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, effect_broker, pg_temp AS $$
DECLARE
    broken text := CASE
        WHEN p_algorithm <> 'ed25519' THEN 'effect_receipt_signatures_algorithm_check'
        WHEN p_key_id !~ '^[!-~]{1,64}$' THEN 'effect_receipt_signatures_key_id_check'
        WHEN octet_length(p_receipt_digest) <> 32
            THEN 'effect_receipt_signatures_receipt_digest_check'
        WHEN octet_length(p_signature) <> 64 THEN 'effect_receipt_signatures_signature_check'
    END;
BEGIN
    IF broken IS NOT NULL THEN
        PERFORM effect_broker.refuse_row('effect_receipt_signatures', broken);
    END IF;
    RETURN true;
END $$;

-- Whoever writes a row calls them; callers of their own write by functions of ours alone.
REVOKE ALL ON FUNCTION effect_broker.sound_event, effect_broker.sound_payload,
    effect_broker.sound_signature FROM PUBLIC;
GRANT EXECUTE ON FUNCTION effect_broker.sound_event, effect_broker.sound_payload,
    effect_broker.sound_signature
    TO effect_broker_api, effect_broker_worker, effect_broker_prune;

DO $$
DECLARE
    old record;
BEGIN
    FOR old IN SELECT c.conrelid::regclass AS relation, c.conname FROM pg_constraint AS c
               WHERE c.contype = 'c'
                 AND c.conrelid IN ('effect_broker.effect_events'::regclass,
                                    'effect_broker.effect_payloads'::regclass,
                                    'effect_broker.effect_receipt_signatures'::regclass)
    LOOP
        EXECUTE format('ALTER TABLE %s DROP CONSTRAINT %I', old.relation, old.conname);
    END LOOP;
END $$;

-- Not read through: each row was written under the same rules.
ALTER TABLE effect_broker.effect_events ADD CONSTRAINT sound_event CHECK (
    effect_broker.sound_event(sequence, from_state, metadata)) NOT VALID;
ALTER TABLE effect_broker.effect_payloads ADD CONSTRAINT sound_payload CHECK (
    effect_broker.sound_payload(kind, ciphertext, erased_at)) NOT VALID;
ALTER TABLE effect_broker.effect_receipt_signatures ADD CONSTRAINT sound_signature CHECK (
    effect_broker.sound_signature(receipt_digest, key_id, algorithm, signature)) NOT VALID;

-- Attempts are gapless, and none starts on an effect that is final. An intent may have been written
-- together with the number of the attempt that follows; that number is given once in any case, by
-- `one_attempt_per_ordinal`.
CREATE OR REPLACE FUNCTION effect_broker.grant_attempt() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, effect_broker, pg_temp AS $$
DECLARE
    latest integer;
    standing text;
BEGIN
    SELECT i.latest_ordinal, i.state INTO latest, standing FROM effect_broker.effect_intents i
    WHERE i.tenant_id = NEW.tenant_id AND i.effect_id = NEW.effect_id;
    IF NOT FOUND OR latest NOT IN (NEW.ordinal - 1, NEW.ordinal)
       OR standing IN ('succeeded', 'failed_final', 'cancelled', 'compensated')
    THEN
        RAISE EXCEPTION 'attempt % does not follow', NEW.ordinal USING ERRCODE = 'EB001';
    END IF;
    IF NEW.outcome IS NOT NULL THEN
        RAISE EXCEPTION 'an attempt begins without an outcome' USING ERRCODE = 'EB001';
    END IF;
    RETURN NEW;
END $$;

-- Elect the first who asks: the intent, its payloads, its first attempt and both events, in one
-- statement. What is decided here stands in the protocol too: a new effect has no facts, so that
-- only a hold can stand in the way of its first attempt. An operation key that exists, and an
-- intent that is held, are returned as they stand; then the caller plans under the lock.
--
-- The intent is written once, with what it is after both events. So whether it is held is looked up
-- before it is written, and again under the lock of holds, which comes after the intent in the order
-- of locks. A hold that was placed in between undoes all with EB011; whoever asks again then sees it.
CREATE OR REPLACE FUNCTION effect_broker.elect_effect(
    p_tenant_id uuid, p_effect_id uuid, p_operation_key text, p_tool text, p_request_hash bytea,
    p_contract_name text, p_contract_version text, p_contract_digest bytea, p_safety text,
    p_downstream_key text, p_hmac_key_id text, p_wire_digest bytea, p_requested_by text,
    p_trace_id text, p_traceparent text, p_preview jsonb,
    p_arguments_key_id text, p_arguments bytea, p_wire_key_id text, p_wire bytea,
    p_attempt_id uuid, p_executor_id text, p_target_identity text, p_lease_seconds float8,
    p_margin_seconds float8, p_key_retention_seconds float8, p_reason text
) RETURNS TABLE (created boolean, granted boolean, intent effect_broker.effect_intents)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, effect_broker, pg_temp AS $$
DECLARE
    now_at timestamptz := clock_timestamp();
    until_at timestamptz := now_at + make_interval(secs => p_lease_seconds);
    acts_at timestamptz := until_at + make_interval(secs => p_margin_seconds);
    submitted text := format('{"contract_digest":"%s","request_hash":"%s"}',
        encode(p_contract_digest, 'hex'), encode(p_request_hash, 'hex'));
    started text := format('{"attempt_id":"%s","ordinal":1}', p_attempt_id);
    head bytea;
BEGIN
    IF p_tenant_id IS DISTINCT FROM
       nullif(current_setting('effect_broker.tenant_id', true), '')::uuid
    THEN
        RAISE EXCEPTION 'the session serves another tenant' USING ERRCODE = 'EB001';
    END IF;
    IF NOT starts_with(p_executor_id, 'caller:') THEN
        RAISE EXCEPTION 'only callers are elected' USING ERRCODE = 'EB001';
    END IF;
    granted := effect_broker.nothing_holds(
        p_tenant_id, p_tool, p_contract_name, p_contract_version, p_safety);
    head := effect_broker.event_digest(''::bytea, p_tenant_id, p_effect_id, 1, 'submitted',
        'submitted', NULL, 'prepared', 'submitted', p_requested_by, now_at, submitted);
    IF granted THEN
        head := effect_broker.event_digest(head, p_tenant_id, p_effect_id, 2, 'attempt_started',
            'attempt_started', 'prepared', 'dispatching', p_reason, p_executor_id, now_at, started);
    END IF;
    INSERT INTO effect_broker.effect_intents AS i (
        tenant_id, effect_id, operation_key, tool, request_hash, contract_name, contract_version,
        contract_digest, safety, downstream_key, hmac_key_id, wire_digest, requested_by, trace_id,
        traceparent, preview, created_at, state, reason, version, generation,
        progress_generation, latest_ordinal, next_action_at, target_identity, attempt_open_until,
        key_expires_at, event_digest, updated_at)
    VALUES (
        p_tenant_id, p_effect_id, p_operation_key, p_tool, p_request_hash, p_contract_name,
        p_contract_version, p_contract_digest, p_safety, p_downstream_key, p_hmac_key_id,
        p_wire_digest, p_requested_by, p_trace_id, p_traceparent, p_preview,
        now_at, CASE WHEN granted THEN 'dispatching' ELSE 'prepared' END,
        CASE WHEN granted THEN p_reason ELSE 'submitted' END, CASE WHEN granted THEN 2 ELSE 1 END,
        1, 1, CASE WHEN granted THEN 1 ELSE 0 END, CASE WHEN granted THEN acts_at ELSE now_at END,
        CASE WHEN granted THEN p_target_identity END, CASE WHEN granted THEN acts_at END,
        CASE WHEN granted THEN now_at + make_interval(secs => p_key_retention_seconds) END,
        head, now_at)
    ON CONFLICT DO NOTHING
    RETURNING i.* INTO intent;
    created := FOUND;
    IF NOT created THEN
        granted := false;
        SELECT i.* INTO intent FROM effect_broker.effect_intents i
        WHERE i.tenant_id = p_tenant_id AND i.operation_key = p_operation_key;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'the effect id belongs to another operation key'
                USING ERRCODE = 'EB001';
        END IF;
        RETURN NEXT;
        RETURN;
    END IF;
    -- As in `submit_effect`: the contract that was applied before is the one that binds.
    PERFORM 1 FROM effect_broker.active_contracts a
    WHERE a.tool = p_tool AND a.digest = p_contract_digest;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'not the active contract of its tool' USING ERRCODE = 'EB002';
    END IF;
    -- Second in the lock order, as in every change; the statement after it sees what was placed.
    PERFORM effect_broker.share_holds(p_tenant_id);
    IF granted AND NOT effect_broker.nothing_holds(
        p_tenant_id, p_tool, p_contract_name, p_contract_version, p_safety)
    THEN
        RAISE EXCEPTION 'a hold was placed meanwhile' USING ERRCODE = 'EB011';
    END IF;
    INSERT INTO effect_broker.effect_payloads (
        tenant_id, effect_id, kind, ref, key_id, ciphertext, stored_at)
    SELECT p_tenant_id, p_effect_id, p.kind, '', p.key_id, p.ciphertext, now_at
    FROM (VALUES ('arguments', p_arguments_key_id, p_arguments),
                 ('wire', p_wire_key_id, p_wire)) AS p (kind, key_id, ciphertext)
    WHERE p.ciphertext IS NOT NULL;
    IF granted THEN
        INSERT INTO effect_broker.effect_attempts (
            attempt_id, tenant_id, effect_id, ordinal, executor_id, started_at, deadline_at,
            target_identity)
        VALUES (p_attempt_id, p_tenant_id, p_effect_id, 1, p_executor_id, now_at, until_at,
            p_target_identity);
    END IF;
    -- In their order: the trigger that chains the second looks for the first, and refuses it without.
    INSERT INTO effect_broker.effect_events (
        tenant_id, effect_id, sequence, kind, event, from_state, to_state, reason, actor, at,
        metadata)
    SELECT p_tenant_id, p_effect_id, e.*
    FROM (VALUES
        (1, 'submitted', 'submitted', NULL, 'prepared', 'submitted', p_requested_by, now_at,
         submitted),
        (2, 'attempt_started', 'attempt_started', 'prepared', 'dispatching', p_reason,
         p_executor_id, now_at, started)) AS e
    WHERE e.column1 = 1 OR granted;
    RETURN NEXT;
END $$;

-- Settle an effect by the word of the process that was granted its open attempt, in one statement.
-- It was planned on what the grant has left, so that the version has to be the one of the grant:
-- every fact bumps it. The moment was measured by the process from the grant's own; false, and
-- nothing written, where it is no longer true, or where anything has happened since: then the
-- outcome is planned under the lock, as every change is.
--
-- The intent is written first, which is the lock too, and with the digest of the event that follows:
-- its row keeps the head of the chain. What turns out afterwards undoes all with EB011, which says
-- the same as false: the lock was waited for too long, or the attempt is open no more.
CREATE OR REPLACE FUNCTION effect_broker.settle_success(
    p_tenant_id uuid, p_effect_id uuid, p_version integer, p_generation integer,
    p_attempt_id uuid, p_at timestamptz, p_code text, p_external_id text, p_status integer,
    p_response_digest text, p_result_digest bytea, p_result_key_id text, p_result bytea,
    p_receipt_id uuid, p_content text, p_receipt_digest bytea, p_result_ref text, p_event text,
    p_to_state text, p_reason text, p_actor text, p_kind text, p_metadata text,
    p_next_action_at timestamptz, p_signing_key_id text, p_algorithm text, p_signature bytea
) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, effect_broker, pg_temp AS $$
BEGIN
    UPDATE effect_broker.effect_intents AS i
    SET state = p_to_state, reason = p_reason, version = p_version + 1,
        progress_generation = p_generation, next_action_at = p_next_action_at, parked = false,
        receipt_digest = p_receipt_digest, key_expires_at = NULL, attempt_open_until = NULL,
        sender_lost = false, updated_at = p_at,
        event_digest = effect_broker.event_digest(
            i.event_digest, p_tenant_id, p_effect_id, p_version + 1, p_kind, p_event,
            'dispatching', p_to_state, p_reason, p_actor, p_at, p_metadata)
    WHERE i.tenant_id = p_tenant_id AND i.effect_id = p_effect_id AND i.version = p_version
      AND i.generation = p_generation AND i.updated_at <= p_at
      AND i.state || '' = 'dispatching';  -- by the key, not by the index of what is open (0025)
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF clock_timestamp() - p_at NOT BETWEEN interval '0' AND interval '1 second' THEN
        RAISE EXCEPTION 'the moment is no longer true' USING ERRCODE = 'EB011';
    END IF;
    UPDATE effect_broker.effect_attempts AS a
    SET outcome = 'committed', code = p_code, recorded_at = p_at, external_id = p_external_id,
        operation = false, bytes_may_have_left = true, response_digest = p_response_digest,
        status = p_status, result_digest = p_result_digest
    WHERE a.tenant_id = p_tenant_id AND a.effect_id = p_effect_id
      AND a.attempt_id = p_attempt_id AND a.outcome IS NULL;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'no such open attempt' USING ERRCODE = 'EB011';
    END IF;
    INSERT INTO effect_broker.effect_payloads (
        tenant_id, effect_id, kind, ref, key_id, ciphertext, stored_at)
    VALUES (p_tenant_id, p_effect_id, 'result', p_attempt_id::text, p_result_key_id, p_result,
        p_at);
    INSERT INTO effect_broker.effect_receipts (
        receipt_id, tenant_id, effect_id, content, digest, result_ref, recorded_at)
    VALUES (p_receipt_id, p_tenant_id, p_effect_id, p_content, p_receipt_digest, p_result_ref,
        p_at);
    INSERT INTO effect_broker.effect_events (
        tenant_id, effect_id, sequence, kind, event, from_state, to_state, reason, actor, at,
        metadata)
    VALUES (p_tenant_id, p_effect_id, p_version + 1, p_kind, p_event, 'dispatching', p_to_state,
        p_reason, p_actor, p_at, p_metadata);
    IF p_signature IS NOT NULL THEN
        INSERT INTO effect_broker.effect_receipt_signatures (
            tenant_id, effect_id, receipt_digest, key_id, algorithm, signature, signed_at)
        VALUES (p_tenant_id, p_effect_id, p_receipt_digest, p_signing_key_id, p_algorithm,
            p_signature, p_at);
    END IF;
    RETURN true;
END $$;
