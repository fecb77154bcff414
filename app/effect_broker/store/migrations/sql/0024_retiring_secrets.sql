-- The secrets of subscriptions can be replaced. The one before goes on signing beside the new one
-- for a time, so that no receiver has to change at the same moment.
CREATE TABLE effect_broker.event_retiring_secrets (
    tenant_id uuid NOT NULL,
    subscription_id uuid NOT NULL,
    retired_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    signs_until timestamptz NOT NULL,
    -- Sealed, as it was in event_subscriptions.
    key_id text NOT NULL,
    ciphertext bytea NOT NULL,
    PRIMARY KEY (tenant_id, subscription_id, retired_at),
    FOREIGN KEY (tenant_id, subscription_id)
        REFERENCES effect_broker.event_subscriptions (tenant_id, subscription_id)
        ON DELETE CASCADE,
    CHECK (signs_until > retired_at)
);
ALTER TABLE effect_broker.event_retiring_secrets ENABLE ROW LEVEL SECURITY;
ALTER TABLE effect_broker.event_retiring_secrets FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON effect_broker.event_retiring_secrets
    TO effect_broker_api, effect_broker_owner
    USING (tenant_id = (SELECT nullif(current_setting('effect_broker.tenant_id', true), '')::uuid));
CREATE POLICY every_tenant ON effect_broker.event_retiring_secrets
    TO effect_broker_worker, effect_broker_prune, effect_broker_admin USING (true);
GRANT SELECT, INSERT, DELETE ON effect_broker.event_retiring_secrets TO effect_broker_api;
GRANT SELECT ON effect_broker.event_retiring_secrets TO effect_broker_worker;
GRANT SELECT, UPDATE (key_id, ciphertext)
    ON effect_broker.event_retiring_secrets TO effect_broker_prune;

-- Whoever replaces a secret takes the lease from the worker that delivers with the one before.
GRANT UPDATE (key_id, ciphertext, lease_id, lease_executor_id, lease_until)
    ON effect_broker.event_subscriptions TO effect_broker_api;
