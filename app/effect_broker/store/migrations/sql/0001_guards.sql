-- Guards: what a CHECK cannot say. SQLSTATE EB001 is ours: a write that must not be.

CREATE FUNCTION effect_broker.expect_one(changed bigint, write_name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, effect_broker, pg_temp AS $$
BEGIN
    -- The writes of a transaction are sent together with its COMMIT, so the server itself has to
    -- notice a write that changed nothing.
    IF changed <> 1 THEN
        RAISE EXCEPTION 'guarded write % changed % rows', write_name, changed
            USING ERRCODE = 'EB001';
    END IF;
END $$;

-- One field of an event's canonical text: its length in bytes, then itself; NULL is its own sign.
CREATE FUNCTION effect_broker.canonical_field(field text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN field IS NULL THEN '-;'
                ELSE octet_length(convert_to(field, 'UTF8')) || ':' || field || ';' END
$$;

-- The digest of an event. `effect_contracts.events.event_digest` computes the same.
CREATE FUNCTION effect_broker.event_digest(
    previous bytea, tenant_id uuid, effect_id uuid, sequence integer, kind text, event text,
    from_state text, to_state text, reason text, actor text, at timestamptz, metadata text
) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
SET search_path = pg_catalog, effect_broker, pg_temp AS $$
BEGIN
    -- PL/pgSQL, since it keeps the plan of an expression where a SQL function makes it anew.
    RETURN sha256(previous || convert_to(
        canonical_field('effect-event-1')
        || canonical_field(tenant_id::text)
        || canonical_field(effect_id::text)
        || canonical_field(sequence::text)
        || canonical_field(kind)
        || canonical_field(event)
        || canonical_field(from_state)
        || canonical_field(to_state)
        || canonical_field(reason)
        || canonical_field(actor)
        || canonical_field(trunc(extract(epoch FROM at) * 1000000)::text)
        || canonical_field(metadata), 'UTF8'));
END $$;

CREATE FUNCTION effect_broker.chain_event() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, effect_broker, pg_temp AS $$
DECLARE
    previous bytea;
BEGIN
    IF NEW.sequence = 1 THEN
        previous := ''::bytea;
    ELSE
        SELECT e.digest INTO previous FROM effect_broker.effect_events e
        WHERE e.effect_id = NEW.effect_id AND e.sequence = NEW.sequence - 1;
        IF NOT FOUND THEN
            -- The events before may have been pruned; the intent keeps the head of the chain.
            SELECT i.event_digest INTO previous FROM effect_broker.effect_intents i
            WHERE i.tenant_id = NEW.tenant_id AND i.effect_id = NEW.effect_id
              AND i.version = NEW.sequence - 1;
            IF NOT FOUND THEN
                RAISE EXCEPTION 'event % of the effect has no predecessor', NEW.sequence
                    USING ERRCODE = 'EB001';
            END IF;
        END IF;
    END IF;
    NEW.previous_digest := previous;
    NEW.digest := effect_broker.event_digest(
        previous, NEW.tenant_id, NEW.effect_id, NEW.sequence, NEW.kind, NEW.event, NEW.from_state,
        NEW.to_state, NEW.reason, NEW.actor, NEW.at, NEW.metadata);
    RETURN NEW;
END $$;
CREATE TRIGGER chain_event BEFORE INSERT ON effect_broker.effect_events
    FOR EACH ROW EXECUTE FUNCTION effect_broker.chain_event();

CREATE FUNCTION effect_broker.refuse_change() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, effect_broker, pg_temp AS $$
BEGIN
    RAISE EXCEPTION '% of % is refused: its rows are kept as they are', TG_OP, TG_TABLE_NAME
        USING ERRCODE = 'EB001';
END $$;

-- Pruning has a role of its own. Whoever may take it says so with SET ROLE, superusers included.
CREATE FUNCTION effect_broker.refuse_delete_but_by_prune() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, effect_broker, pg_temp AS $$
BEGIN
    IF current_user <> 'effect_broker_prune' THEN
        RAISE EXCEPTION 'only effect_broker_prune removes rows of %', TG_TABLE_NAME
            USING ERRCODE = 'EB001';
    END IF;
    RETURN OLD;
END $$;

CREATE TRIGGER refuse_update BEFORE UPDATE ON effect_broker.effect_receipts
    FOR EACH ROW EXECUTE FUNCTION effect_broker.refuse_change();
CREATE TRIGGER refuse_delete BEFORE DELETE ON effect_broker.effect_receipts
    FOR EACH ROW EXECUTE FUNCTION effect_broker.refuse_delete_but_by_prune();
CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON effect_broker.effect_receipts
    FOR EACH STATEMENT EXECUTE FUNCTION effect_broker.refuse_change();
CREATE TRIGGER refuse_update BEFORE UPDATE ON effect_broker.effect_events
    FOR EACH ROW EXECUTE FUNCTION effect_broker.refuse_change();
CREATE TRIGGER refuse_delete BEFORE DELETE ON effect_broker.effect_events
    FOR EACH ROW EXECUTE FUNCTION effect_broker.refuse_delete_but_by_prune();
CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON effect_broker.effect_events
    FOR EACH STATEMENT EXECUTE FUNCTION effect_broker.refuse_change();
CREATE TRIGGER refuse_change BEFORE UPDATE OR DELETE ON effect_broker.contracts
    FOR EACH ROW EXECUTE FUNCTION effect_broker.refuse_change();
CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON effect_broker.contracts
    FOR EACH STATEMENT EXECUTE FUNCTION effect_broker.refuse_change();
CREATE TRIGGER refuse_change BEFORE UPDATE OR DELETE ON effect_broker.effect_evidence
    FOR EACH ROW EXECUTE FUNCTION effect_broker.refuse_change();
CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON effect_broker.effect_evidence
    FOR EACH STATEMENT EXECUTE FUNCTION effect_broker.refuse_change();
CREATE TRIGGER refuse_change BEFORE UPDATE OR DELETE ON effect_broker.mutation_keys
    FOR EACH ROW EXECUTE FUNCTION effect_broker.refuse_change();
CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON effect_broker.mutation_keys
    FOR EACH STATEMENT EXECUTE FUNCTION effect_broker.refuse_change();
CREATE TRIGGER refuse_delete BEFORE DELETE ON effect_broker.effect_intents
    FOR EACH ROW EXECUTE FUNCTION effect_broker.refuse_change();
CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON effect_broker.effect_intents
    FOR EACH STATEMENT EXECUTE FUNCTION effect_broker.refuse_change();
CREATE TRIGGER refuse_delete BEFORE DELETE ON effect_broker.effect_attempts
    FOR EACH ROW EXECUTE FUNCTION effect_broker.refuse_change();
CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON effect_broker.effect_attempts
    FOR EACH STATEMENT EXECUTE FUNCTION effect_broker.refuse_change();

-- Identity never moves under an effect, and what is final stays final.
CREATE FUNCTION effect_broker.keep_identity() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, effect_broker, pg_temp AS $$
BEGIN
    IF (NEW.tenant_id, NEW.effect_id, NEW.operation_key, NEW.tool, NEW.request_hash,
        NEW.contract_name, NEW.contract_version, NEW.contract_digest, NEW.safety,
        NEW.downstream_key, NEW.hmac_key_id, NEW.created_at)
       IS DISTINCT FROM
       (OLD.tenant_id, OLD.effect_id, OLD.operation_key, OLD.tool, OLD.request_hash,
        OLD.contract_name, OLD.contract_version, OLD.contract_digest, OLD.safety,
        OLD.downstream_key, OLD.hmac_key_id, OLD.created_at)
    THEN
        RAISE EXCEPTION 'the identity of an effect never changes' USING ERRCODE = 'EB001';
    END IF;
    IF (OLD.target_identity IS NOT NULL
            AND NEW.target_identity IS DISTINCT FROM OLD.target_identity)
       OR (OLD.wire_digest IS NOT NULL AND NEW.wire_digest IS DISTINCT FROM OLD.wire_digest)
       OR (OLD.receipt_digest IS NOT NULL
            AND NEW.receipt_digest IS DISTINCT FROM OLD.receipt_digest)
       OR (OLD.cancel_requested_at IS NOT NULL
            AND NEW.cancel_requested_at IS DISTINCT FROM OLD.cancel_requested_at)
       OR (OLD.failed_by_operator_at IS NOT NULL
            AND NEW.failed_by_operator_at IS DISTINCT FROM OLD.failed_by_operator_at)
    THEN
        RAISE EXCEPTION 'what is bound to an effect stays bound' USING ERRCODE = 'EB001';
    END IF;
    IF NEW.version < OLD.version OR NEW.generation NOT IN (OLD.generation, OLD.generation + 1)
       OR NEW.latest_ordinal NOT IN (OLD.latest_ordinal, OLD.latest_ordinal + 1)
       OR (NEW.state <> OLD.state AND NEW.version = OLD.version)
    THEN
        RAISE EXCEPTION 'counters of an effect go up by one, its state with its version'
            USING ERRCODE = 'EB001';
    END IF;
    IF OLD.state IN ('succeeded', 'failed_final', 'cancelled', 'compensated')
       AND NEW.state <> OLD.state
       AND NOT (OLD.state = 'succeeded' AND NEW.state = 'compensated')
    THEN
        RAISE EXCEPTION 'a final state stays' USING ERRCODE = 'EB001';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER keep_identity BEFORE UPDATE ON effect_broker.effect_intents
    FOR EACH ROW EXECUTE FUNCTION effect_broker.keep_identity();

-- Attempts are gapless, and none starts on an effect that is final.
CREATE FUNCTION effect_broker.grant_attempt() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, effect_broker, pg_temp AS $$
BEGIN
    PERFORM 1 FROM effect_broker.effect_intents i
    WHERE i.tenant_id = NEW.tenant_id AND i.effect_id = NEW.effect_id
      AND i.latest_ordinal = NEW.ordinal - 1
      AND i.state NOT IN ('succeeded', 'failed_final', 'cancelled', 'compensated');
    IF NOT FOUND THEN
        RAISE EXCEPTION 'attempt % does not follow', NEW.ordinal USING ERRCODE = 'EB001';
    END IF;
    IF NEW.outcome IS NOT NULL THEN
        RAISE EXCEPTION 'an attempt begins without an outcome' USING ERRCODE = 'EB001';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER grant_attempt BEFORE INSERT ON effect_broker.effect_attempts
    FOR EACH ROW EXECUTE FUNCTION effect_broker.grant_attempt();

-- Only the sender's word replaces a presumption, and nothing replaces the sender's word.
CREATE FUNCTION effect_broker.keep_outcome() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, effect_broker, pg_temp AS $$
BEGIN
    IF (NEW.attempt_id, NEW.tenant_id, NEW.effect_id, NEW.ordinal, NEW.executor_id,
        NEW.started_at, NEW.deadline_at, NEW.target_identity)
       IS DISTINCT FROM
       (OLD.attempt_id, OLD.tenant_id, OLD.effect_id, OLD.ordinal, OLD.executor_id,
        OLD.started_at, OLD.deadline_at, OLD.target_identity)
    THEN
        RAISE EXCEPTION 'the identity of an attempt never changes' USING ERRCODE = 'EB001';
    END IF;
    IF NEW.outcome IS NULL OR (OLD.outcome IS NOT NULL AND OLD.outcome <> 'presumed_ambiguous')
       OR (OLD.outcome = 'presumed_ambiguous' AND NEW.outcome = 'presumed_ambiguous')
    THEN
        RAISE EXCEPTION 'the outcome of attempt % is not replaced', OLD.ordinal
            USING ERRCODE = 'EB001';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER keep_outcome BEFORE UPDATE ON effect_broker.effect_attempts
    FOR EACH ROW EXECUTE FUNCTION effect_broker.keep_outcome();
