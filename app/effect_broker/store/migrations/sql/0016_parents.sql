-- What an effect is to another one: a child that its parent has delegated, or the compensation that
-- undoes it. A link is part of the submit, in the same commit, and never changes.
CREATE TABLE effect_broker.effect_links (
    tenant_id uuid NOT NULL,
    effect_id uuid NOT NULL,
    parent_id uuid CHECK (parent_id <> effect_id),
    compensates_id uuid CHECK (compensates_id <> effect_id),
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- When what it meant for the compensated effect was written there, or it was known to mean
    -- nothing: the compensation has failed.
    settled_at timestamptz,
    PRIMARY KEY (tenant_id, effect_id),
    FOREIGN KEY (tenant_id, effect_id) REFERENCES effect_broker.effect_intents,
    FOREIGN KEY (tenant_id, parent_id) REFERENCES effect_broker.effect_intents,
    FOREIGN KEY (tenant_id, compensates_id) REFERENCES effect_broker.effect_intents,
    CHECK (parent_id IS NOT NULL OR compensates_id IS NOT NULL)
);
CREATE INDEX children_of_effect ON effect_broker.effect_links (tenant_id, parent_id)
    WHERE parent_id IS NOT NULL;
CREATE INDEX compensations_of_effect ON effect_broker.effect_links (tenant_id, compensates_id)
    WHERE compensates_id IS NOT NULL;
CREATE INDEX compensations_to_settle ON effect_broker.effect_links (created_at)
    WHERE compensates_id IS NOT NULL AND settled_at IS NULL;

CREATE FUNCTION effect_broker.only_settle() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, effect_broker, pg_temp AS $$
BEGIN
    IF OLD.settled_at IS NOT NULL
       OR (to_jsonb(NEW) - 'settled_at') <> (to_jsonb(OLD) - 'settled_at')
    THEN
        RAISE EXCEPTION 'a link is settled once and never rewritten' USING ERRCODE = 'EB001';
    END IF;
    RETURN NEW;
END $$;
REVOKE ALL ON FUNCTION effect_broker.only_settle FROM PUBLIC;
CREATE TRIGGER only_settle BEFORE UPDATE ON effect_broker.effect_links
    FOR EACH ROW EXECUTE FUNCTION effect_broker.only_settle();
CREATE TRIGGER refuse_change BEFORE DELETE ON effect_broker.effect_links
    FOR EACH ROW EXECUTE FUNCTION effect_broker.refuse_change();
CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON effect_broker.effect_links
    FOR EACH STATEMENT EXECUTE FUNCTION effect_broker.refuse_change();

ALTER TABLE effect_broker.effect_links ENABLE ROW LEVEL SECURITY;
ALTER TABLE effect_broker.effect_links FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON effect_broker.effect_links
    TO effect_broker_api, effect_broker_owner
    USING (tenant_id =
        (SELECT nullif(current_setting('effect_broker.tenant_id', true), '')::uuid));
CREATE POLICY every_tenant ON effect_broker.effect_links
    TO effect_broker_worker, effect_broker_prune, effect_broker_admin USING (true);
GRANT SELECT ON effect_broker.effect_links TO effect_broker_api;
GRANT SELECT, UPDATE (settled_at) ON effect_broker.effect_links TO effect_broker_worker;

-- A submit that names another effect. EB004: there is no such effect of this tenant. EB005: the
-- operation key stands with another link. EB006: what has not succeeded, or is being undone
-- already, cannot be compensated.
CREATE FUNCTION effect_broker.submit_linked_effect(
    p_tenant_id uuid, p_effect_id uuid, p_operation_key text, p_tool text, p_request_hash bytea,
    p_contract_name text, p_contract_version text, p_contract_digest bytea, p_safety text,
    p_downstream_key text, p_hmac_key_id text, p_wire_digest bytea, p_requested_by text,
    p_trace_id text, p_traceparent text, p_preview jsonb, p_send_before timestamptz,
    p_arguments_key_id text, p_arguments bytea, p_wire_key_id text, p_wire bytea,
    p_parent_id uuid, p_compensates_id uuid
) RETURNS TABLE (created boolean, enqueued boolean, intent effect_broker.effect_intents)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, effect_broker, pg_temp AS $$
DECLARE
    known effect_broker.effect_links;
    undone text;
    submitted record;
BEGIN
    -- Before the submit locks its own row: of two that compensate the same effect one waits here.
    IF p_compensates_id IS NOT NULL THEN
        SELECT i.state INTO undone FROM effect_broker.effect_intents AS i
        WHERE i.tenant_id = p_tenant_id AND i.effect_id = p_compensates_id FOR NO KEY UPDATE;
    END IF;
    SELECT s.created, s.enqueued, s.intent INTO submitted
    FROM effect_broker.submit_effect(
        p_tenant_id, p_effect_id, p_operation_key, p_tool, p_request_hash, p_contract_name,
        p_contract_version, p_contract_digest, p_safety, p_downstream_key, p_hmac_key_id,
        p_wire_digest, p_requested_by, p_trace_id, p_traceparent, p_preview, p_send_before,
        p_arguments_key_id, p_arguments, p_wire_key_id, p_wire) AS s;
    created := submitted.created;
    enqueued := submitted.enqueued;
    intent := submitted.intent;
    IF NOT created THEN
        SELECT l.* INTO known FROM effect_broker.effect_links AS l
        WHERE l.tenant_id = p_tenant_id AND l.effect_id = (intent).effect_id;
        -- Another request under the key is the caller's to tell; it says more than the link.
        IF (intent).request_hash = p_request_hash
           AND (known.parent_id, known.compensates_id)
               IS DISTINCT FROM (p_parent_id, p_compensates_id)
        THEN
            RAISE EXCEPTION 'the operation key stands with another link' USING ERRCODE = 'EB005';
        END IF;
        RETURN NEXT;
        RETURN;
    END IF;
    IF (p_compensates_id IS NOT NULL AND undone IS NULL)
       OR (p_parent_id IS NOT NULL AND NOT EXISTS (
           SELECT 1 FROM effect_broker.effect_intents AS i
           WHERE i.tenant_id = p_tenant_id AND i.effect_id = p_parent_id))
    THEN
        RAISE EXCEPTION 'no such effect to belong to' USING ERRCODE = 'EB004';
    END IF;
    IF p_compensates_id IS NOT NULL AND (undone <> 'succeeded' OR EXISTS (
        SELECT 1 FROM effect_broker.effect_links AS l
        JOIN effect_broker.effect_intents AS i
            ON i.tenant_id = l.tenant_id AND i.effect_id = l.effect_id
        WHERE l.tenant_id = p_tenant_id AND l.compensates_id = p_compensates_id
          AND i.state NOT IN ('failed_final', 'cancelled')))
    THEN
        RAISE EXCEPTION 'it cannot be compensated now' USING ERRCODE = 'EB006';
    END IF;
    INSERT INTO effect_broker.effect_links (tenant_id, effect_id, parent_id, compensates_id)
    VALUES (p_tenant_id, p_effect_id, p_parent_id, p_compensates_id);
    RETURN NEXT;
END $$;
REVOKE ALL ON FUNCTION effect_broker.submit_linked_effect FROM PUBLIC;
GRANT EXECUTE ON FUNCTION effect_broker.submit_linked_effect TO effect_broker_api;
