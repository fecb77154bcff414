-- An effect that is named by its key is found by its primary key, from the first effect on.
--
-- A database that has just been made has no statistics, and all indexes look alike to the planner. What
-- it chose for (tenant_id, effect_id) was any index that begins with the tenant; the plan is kept, that
-- of a foreign key's check too, and each statement of the hot path then read all entries of its tenant
-- until the first ANALYZE came by. An index with a condition is no choice for a statement that does not
-- state it. The first two state it by the equality that they are for; a list states it in its text.
DROP INDEX effect_broker.effects_by_downstream_key;
CREATE INDEX effects_by_downstream_key
    ON effect_broker.effect_intents (tenant_id, downstream_key) WHERE downstream_key IS NOT NULL;

ALTER TABLE effect_broker.effect_intents DROP CONSTRAINT one_intent_per_operation_key;
CREATE UNIQUE INDEX one_intent_per_operation_key
    ON effect_broker.effect_intents (tenant_id, operation_key) WHERE operation_key IS NOT NULL;

DROP INDEX effect_broker.effects_by_age;
CREATE INDEX effects_by_age ON effect_broker.effect_intents (tenant_id, created_at, effect_id)
    WHERE created_at > '-infinity';
