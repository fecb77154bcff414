-- Who may do what. Rights come from these grants alone; rows from row-level security.

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA effect_broker FROM PUBLIC;
GRANT USAGE ON SCHEMA effect_broker
    TO effect_broker_api, effect_broker_worker, effect_broker_prune, effect_broker_admin;

-- Each transaction names its tenant; without one no row is visible. The policy binds the owner
-- too, and with him every SECURITY DEFINER function.
DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY[
        'tenants', 'api_keys', 'contract_controls', 'effect_intents', 'effect_attempts',
        'effect_evidence', 'effect_receipts', 'effect_events', 'effect_payloads', 'mutation_keys']
    LOOP
        EXECUTE format('ALTER TABLE effect_broker.%I ENABLE ROW LEVEL SECURITY', name);
        EXECUTE format('ALTER TABLE effect_broker.%I FORCE ROW LEVEL SECURITY', name);
        EXECUTE format(
            'CREATE POLICY own_tenant ON effect_broker.%I TO effect_broker_api, effect_broker_owner'
            ' USING (tenant_id ='
            '   (SELECT nullif(current_setting(''effect_broker.tenant_id'', true), '''')::uuid))'
            , name);
        -- A worker serves every tenant; its queries name one all the same.
        EXECUTE format('CREATE POLICY every_tenant ON effect_broker.%I'
            ' TO effect_broker_worker, effect_broker_prune, effect_broker_admin USING (true)', name);
    END LOOP;
END $$;
-- For `authenticate`, which runs as the owner before a tenant is known.
CREATE POLICY authenticate ON effect_broker.tenants FOR SELECT TO effect_broker_owner USING (true);
CREATE POLICY authenticate ON effect_broker.api_keys FOR SELECT TO effect_broker_owner USING (true);

-- What the API and the workers share: reading everything of an effect, and the writes of a change.
GRANT SELECT ON
    effect_broker.tenants, effect_broker.contracts, effect_broker.active_contracts,
    effect_broker.contract_controls, effect_broker.database_identity, effect_broker.workers,
    effect_broker.effect_intents, effect_broker.effect_attempts, effect_broker.effect_evidence,
    effect_broker.effect_receipts, effect_broker.effect_events, effect_broker.effect_payloads,
    effect_broker.mutation_keys, effect_broker.alembic_version
    TO effect_broker_api, effect_broker_worker;
GRANT INSERT ON
    effect_broker.effect_evidence, effect_broker.effect_receipts, effect_broker.effect_events,
    effect_broker.effect_payloads
    TO effect_broker_api, effect_broker_worker;
GRANT INSERT, UPDATE ON effect_broker.contract_controls TO effect_broker_api, effect_broker_worker;
GRANT UPDATE (
    target_identity, wire_digest, state, reason, version, generation, progress_generation,
    latest_ordinal, next_action_at, parked, cancel_requested_at, failed_by_operator_at,
    receipt_digest, event_digest, updated_at)
    ON effect_broker.effect_intents TO effect_broker_api, effect_broker_worker;
GRANT EXECUTE ON FUNCTION
    effect_broker.expect_one, effect_broker.canonical_field, effect_broker.event_digest,
    effect_broker.enqueue_run
    TO effect_broker_api, effect_broker_worker;

-- The API submits and authenticates. It can presume an attempt lost, since whoever adds a fact
-- does; a sender's outcome needs columns that it cannot write.
GRANT EXECUTE ON FUNCTION effect_broker.submit_effect, effect_broker.authenticate
    TO effect_broker_api;
GRANT UPDATE (outcome, lost_at) ON effect_broker.effect_attempts TO effect_broker_api;

-- Only workers send.
GRANT INSERT, UPDATE ON effect_broker.effect_attempts TO effect_broker_worker;
GRANT INSERT ON effect_broker.mutation_keys TO effect_broker_worker;
GRANT INSERT, UPDATE, DELETE ON effect_broker.workers TO effect_broker_worker;
GRANT UPDATE ON effect_broker.database_identity TO effect_broker_worker;

-- Administration: tenants, keys, contracts, holds. It sees no effect.
GRANT SELECT, INSERT, UPDATE ON
    effect_broker.tenants, effect_broker.api_keys, effect_broker.active_contracts,
    effect_broker.contract_controls TO effect_broker_admin;
GRANT SELECT, INSERT ON effect_broker.contracts TO effect_broker_admin;
GRANT SELECT, UPDATE ON effect_broker.database_identity TO effect_broker_admin;
GRANT SELECT, INSERT ON effect_broker.database_restores TO effect_broker_admin;
GRANT SELECT ON effect_broker.workers, effect_broker.alembic_version TO effect_broker_admin;

-- Pruning removes receipts and events and erases ciphertext; identity rows stay.
GRANT SELECT ON effect_broker.effect_intents TO effect_broker_prune;
GRANT SELECT, DELETE ON effect_broker.effect_receipts, effect_broker.effect_events
    TO effect_broker_prune;
GRANT SELECT, UPDATE (key_id, ciphertext, erased_at) ON effect_broker.effect_payloads
    TO effect_broker_prune;
