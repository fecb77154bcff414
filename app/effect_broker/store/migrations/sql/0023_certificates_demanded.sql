-- Contracts may demand a certificate before anything is sent; what waits for one has the reason
-- 'awaiting_certificate'.

-- Whoever decides on an effect has to read what a certificate says, and by whom it is signed. It
-- speaks of a contract and belongs to no tenant.
GRANT SELECT (content, digest, key_id, signature)
    ON effect_broker.certificates TO effect_broker_api;

-- What goes on when a fitting certificate is stored is found by its contract.
CREATE INDEX effects_awaiting_certificate
    ON effect_broker.effect_intents (contract_digest, next_action_at)
    WHERE reason = 'awaiting_certificate';

-- As in 0007, with the new reason. The conditions are those of `effect_broker.store.unresolved`,
-- word for word.
DROP INDEX effect_broker.unresolved_effects;
CREATE INDEX unresolved_effects ON effect_broker.effect_intents (
    tenant_id, (CASE WHEN key_expires_at IS NULL THEN 'infinity' ELSE key_expires_at END),
    created_at, effect_id)
    WHERE alert IS NOT NULL OR parked
       OR state IN ('outcome_unknown', 'reconciling', 'manual_review')
       OR (state = 'dispatching' AND sender_lost)
       OR (state IN ('prepared', 'retryable') AND reason IN (
           'paused', 'frozen', 'tenant_disabled', 'awaiting_certificate', 'awaiting_approval',
           'database_restored'));
DROP INDEX effect_broker.effects_on_their_way;
CREATE INDEX effects_on_their_way ON effect_broker.effect_intents (
    tenant_id, (CASE WHEN key_expires_at IS NULL THEN 'infinity' ELSE key_expires_at END),
    created_at, effect_id, next_action_at)
    WHERE state IN ('prepared', 'retryable') AND NOT parked AND reason NOT IN (
        'paused', 'frozen', 'tenant_disabled', 'awaiting_certificate', 'awaiting_approval',
        'database_restored');
