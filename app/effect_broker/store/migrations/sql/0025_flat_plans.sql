-- Plans that stay flat beside a long history and beside a backlog.
--
-- Statistics are mostly gathered while nothing is open. An index of what is open then looks empty, and
-- so cheaper than the primary key for whoever names an effect and a state; the plan is kept, and once
-- there is a backlog, every statement of it reads all the others. So a row that is named by its key is
-- read by its key alone, and its state is judged afterwards.

-- Attempts are gapless, and none starts on an effect that is final. As before, read by the key.
CREATE OR REPLACE FUNCTION effect_broker.grant_attempt() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, effect_broker, pg_temp AS $$
DECLARE
    latest integer;
    standing text;
BEGIN
    SELECT i.latest_ordinal, i.state INTO latest, standing FROM effect_broker.effect_intents i
    WHERE i.tenant_id = NEW.tenant_id AND i.effect_id = NEW.effect_id;
    IF NOT FOUND OR latest <> NEW.ordinal - 1
       OR standing IN ('succeeded', 'failed_final', 'cancelled', 'compensated')
    THEN
        RAISE EXCEPTION 'attempt % does not follow', NEW.ordinal USING ERRCODE = 'EB001';
    END IF;
    IF NEW.outcome IS NOT NULL THEN
        RAISE EXCEPTION 'an attempt begins without an outcome' USING ERRCODE = 'EB001';
    END IF;
    RETURN NEW;
END $$;

-- Each gives one row. With the default of a thousand the planner reads whole tables into hashes for
-- what is looked up beside that row.
ALTER FUNCTION effect_broker.submit_effect ROWS 1;
ALTER FUNCTION effect_broker.submit_linked_effect ROWS 1;
ALTER FUNCTION effect_broker.elect_effect ROWS 1;

-- By the default, a table is looked at again after a tenth of it has changed: with a million effects
-- a backlog of tens of thousands would come and go unnoticed. A look takes a fraction of a second,
-- and there is one a minute at most. (The engine's table has the same, see dbos_access.sql.)
ALTER TABLE effect_broker.effect_intents
    SET (autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 2000);
