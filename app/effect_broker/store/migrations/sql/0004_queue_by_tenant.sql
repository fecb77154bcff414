-- The engine's queue is parted by tenant: a worker gives one tenant a share of its slots and no
-- more (effect_broker.hosting says why). Within a tenant the oldest run is served first. A priority
-- by the number of outstanding effects let a young effect overtake an old one for ever, and was
-- counted at every submit.
CREATE OR REPLACE FUNCTION effect_broker.enqueue_run(
    p_tenant_id uuid, p_effect_id uuid, p_generation integer, p_not_before timestamptz
) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, effect_broker, pg_temp AS $$
DECLARE
    delay_until_ms bigint;
BEGIN
    PERFORM 1 FROM effect_broker.effect_intents i
    WHERE i.tenant_id = p_tenant_id AND i.effect_id = p_effect_id
      AND i.generation = p_generation;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'no such run of this tenant' USING ERRCODE = 'EB001';
    END IF;
    -- A convenience: the engine wakes delayed rows by a worker's clock, ours decides.
    IF p_not_before > clock_timestamp() THEN
        delay_until_ms := ceil(extract(epoch FROM p_not_before) * 1000);
    END IF;
    -- The names are those of effect_broker.hosting; a test compares them.
    PERFORM dbos.enqueue_workflow(
        workflow_name => 'effect_run',
        queue_name => 'effects',
        positional_args => ARRAY[
            to_json(p_tenant_id::text), to_json(p_effect_id::text), to_json(p_generation)],
        workflow_id => p_effect_id::text || '.' || p_generation::text,
        app_version => 'effect-broker-1',
        application_name => 'effect-broker',
        queue_partition_key => p_tenant_id::text,
        delay_until_epoch_ms => delay_until_ms);
    RETURN true;
EXCEPTION
    -- Missing, being dropped or recreated at this moment, or not yet granted again.
    WHEN invalid_schema_name OR undefined_table OR undefined_function OR undefined_column
        OR undefined_object OR insufficient_privilege OR lock_not_available OR internal_error
    THEN
        RETURN false;
END $$;

-- It was there for the priority alone.
DROP INDEX effect_broker.outstanding_effects_of_tenant;
