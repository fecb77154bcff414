-- The target of the catalog's `demo-ledger-transactional`: a ledger beside the broker's tables.
CREATE SCHEMA IF NOT EXISTS effect_broker_demo;

CREATE TABLE IF NOT EXISTS effect_broker_demo.entries (
    entry_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    debit text NOT NULL,
    credit text NOT NULL CHECK (credit <> debit),
    amount bigint NOT NULL CHECK (amount > 0),
    currency text NOT NULL,
    memo text,
    downstream_key text NOT NULL, -- not unique on purpose: the broker, not the table, prevents two
    posted_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE OR REPLACE FUNCTION effect_broker_demo.post_entry(arguments jsonb, downstream_key text)
RETURNS jsonb LANGUAGE sql AS $$
    INSERT INTO effect_broker_demo.entries (debit, credit, amount, currency, memo, downstream_key)
    VALUES (arguments ->> 'debit', arguments ->> 'credit', (arguments ->> 'amount')::bigint,
            arguments ->> 'currency', arguments ->> 'memo', downstream_key)
    RETURNING jsonb_build_object('entry_id', entry_id::text, 'posted_at', posted_at)
$$;

GRANT USAGE ON SCHEMA effect_broker_demo TO effect_broker_worker;
GRANT INSERT, SELECT ON effect_broker_demo.entries TO effect_broker_worker;
GRANT EXECUTE ON FUNCTION effect_broker_demo.post_entry TO effect_broker_worker;
