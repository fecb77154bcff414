-- The same rules for the rows of intents and attempts as before, judged by one function each.
--
-- Postgres reads every CHECK of a table from its text again for every statement that writes to it. Of
-- what the server computed for an effect, a quarter was the reading of these; a function's body is kept
-- by the session. Rules and their names are the old ones, and in the old order: by name.
CREATE FUNCTION effect_broker.refuse_row(p_table text, p_constraint text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, effect_broker, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'new row for relation "%" violates check constraint "%"', p_table, p_constraint
        USING ERRCODE = 'check_violation', SCHEMA = 'effect_broker', TABLE = p_table,
            CONSTRAINT = p_constraint;
END $$;

CREATE FUNCTION effect_broker.sound_intent(
    p_state text, p_safety text, p_operation_key text, p_request_hash bytea, p_wire_digest bytea,
    p_receipt_digest bytea, p_event_digest bytea, p_version integer, p_generation integer,
    p_progress_generation integer, p_latest_ordinal integer, p_retention_stage smallint,
    p_parked boolean, p_next_action_at timestamptz, p_alert text
) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, effect_broker, pg_temp AS $$
DECLARE
    final boolean := p_state IN ('succeeded', 'failed_final', 'cancelled', 'compensated');
    broken text := CASE
        WHEN NOT (p_alert IS NULL
                  OR (p_alert IN ('late_contradiction', 'duplicate_detected') AND final))
            THEN 'alert_on_a_final_effect'
        WHEN NOT CASE WHEN p_state IN ('prepared', 'cancelled') THEN p_latest_ordinal = 0
                      WHEN p_state = 'dispatching' THEN p_latest_ordinal >= 1
                      ELSE true END
            THEN 'attempts_fit_the_state'
        WHEN NOT p_progress_generation BETWEEN 1 AND p_generation THEN 'effect_intents_check'
        WHEN octet_length(p_event_digest) <> 32 THEN 'effect_intents_event_digest_check'
        WHEN p_generation < 1 THEN 'effect_intents_generation_check'
        WHEN p_latest_ordinal < 0 THEN 'effect_intents_latest_ordinal_check'
        WHEN p_operation_key !~ '^[!-~]{1,255}$' THEN 'effect_intents_operation_key_check'
        WHEN octet_length(p_receipt_digest) <> 32 THEN 'effect_intents_receipt_digest_check'
        WHEN octet_length(p_request_hash) <> 32 THEN 'effect_intents_request_hash_check'
        WHEN NOT p_retention_stage BETWEEN 0 AND 3 THEN 'effect_intents_retention_stage_check'
        WHEN p_safety NOT IN ('transactional', 'idempotent', 'reconcilable', 'unsafe')
            THEN 'effect_intents_safety_check'
        WHEN NOT (final OR p_state IN ('prepared', 'dispatching', 'retryable', 'outcome_unknown',
                                       'reconciling', 'manual_review'))
            THEN 'effect_intents_state_check'
        WHEN p_version < 1 THEN 'effect_intents_version_check'
        WHEN octet_length(p_wire_digest) <> 32 THEN 'effect_intents_wire_digest_check'
        WHEN final <> (p_receipt_digest IS NOT NULL) THEN 'final_has_a_receipt'
        WHEN final AND (p_parked OR (p_next_action_at IS NOT NULL AND p_safety <> 'reconcilable'))
            THEN 'final_is_at_most_counted'
        WHEN NOT (p_retention_stage = 0 OR (final AND p_next_action_at IS NULL))
            THEN 'only_settled_effects_are_pruned'
        WHEN NOT final AND p_parked <> (p_next_action_at IS NULL) THEN 'open_acts_or_is_parked'
    END;
BEGIN
    IF broken IS NOT NULL THEN
        PERFORM effect_broker.refuse_row('effect_intents', broken);
    END IF;
    RETURN true;
END $$;

CREATE FUNCTION effect_broker.sound_attempt(
    p_ordinal integer, p_started_at timestamptz, p_deadline_at timestamptz, p_outcome text,
    p_code text, p_recorded_at timestamptz, p_lost_at timestamptz, p_bytes_may_have_left boolean,
    p_result_digest bytea
) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, effect_broker, pg_temp AS $$
DECLARE
    broken text := CASE
        WHEN p_deadline_at <= p_started_at THEN 'effect_attempts_check'
        WHEN p_recorded_at IS NOT NULL AND (p_code IS NULL OR p_bytes_may_have_left IS NULL)
            THEN 'effect_attempts_check1'
        WHEN p_ordinal < 1 THEN 'effect_attempts_ordinal_check'
        WHEN p_outcome NOT IN (
            'committed', 'rejected', 'not_sent', 'retryable', 'in_progress', 'key_conflict',
            'partial', 'ambiguous', 'presumed_ambiguous')
            THEN 'effect_attempts_outcome_check'
        WHEN octet_length(p_result_digest) <> 32 THEN 'effect_attempts_result_digest_check'
        WHEN p_outcome = 'not_sent' AND p_bytes_may_have_left THEN 'not_sent_is_proved'
        WHEN p_outcome = 'presumed_ambiguous' AND p_lost_at IS NULL THEN 'presumed_by_a_successor'
        WHEN (p_recorded_at IS NOT NULL)
             <> (p_outcome IS NOT NULL AND p_outcome <> 'presumed_ambiguous')
            THEN 'recorded_by_the_sender'
    END;
BEGIN
    IF broken IS NOT NULL THEN
        PERFORM effect_broker.refuse_row('effect_attempts', broken);
    END IF;
    RETURN true;
END $$;

-- Whoever writes a row calls them; callers of their own write by functions of ours alone.
REVOKE ALL ON FUNCTION effect_broker.refuse_row, effect_broker.sound_intent,
    effect_broker.sound_attempt FROM PUBLIC;
GRANT EXECUTE ON FUNCTION effect_broker.refuse_row, effect_broker.sound_intent,
    effect_broker.sound_attempt
    TO effect_broker_api, effect_broker_worker, effect_broker_prune;

DO $$
DECLARE
    old record;
BEGIN
    FOR old IN SELECT c.conrelid::regclass AS relation, c.conname FROM pg_constraint AS c
               WHERE c.contype = 'c'
                 AND c.conrelid IN ('effect_broker.effect_intents'::regclass,
                                    'effect_broker.effect_attempts'::regclass)
    LOOP
        EXECUTE format('ALTER TABLE %s DROP CONSTRAINT %I', old.relation, old.conname);
    END LOOP;
END $$;

-- Not read through: each row was written under the same rules.
ALTER TABLE effect_broker.effect_intents ADD CONSTRAINT sound_intent CHECK (
    effect_broker.sound_intent(
        state, safety, operation_key, request_hash, wire_digest, receipt_digest, event_digest,
        version, generation, progress_generation, latest_ordinal, retention_stage, parked,
        next_action_at, alert)) NOT VALID;
ALTER TABLE effect_broker.effect_attempts ADD CONSTRAINT sound_attempt CHECK (
    effect_broker.sound_attempt(
        ordinal, started_at, deadline_at, outcome, code, recorded_at, lost_at,
        bytes_may_have_left, result_digest)) NOT VALID;
