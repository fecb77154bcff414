-- The tables of the broker. What must always hold is a CHECK, a key or a trigger here; the code
-- above is the second opinion on it. Times are of the database clock; digests are raw SHA-256.

CREATE TABLE effect_broker.tenants (
    tenant_id uuid PRIMARY KEY,
    name text COLLATE "C" NOT NULL UNIQUE CHECK (name ~ '^[a-z0-9][a-z0-9._-]{0,62}$'),
    hmac_key_id text NOT NULL,
    disabled_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- A key is 256 random bits, so one SHA-256 is enough: there is no dictionary to try, which is all
-- that a slow hash is against, and a fast one keeps authentication cheap.
CREATE TABLE effect_broker.api_keys (
    key_id uuid PRIMARY KEY,
    tenant_id uuid NOT NULL REFERENCES effect_broker.tenants,
    key_hash bytea NOT NULL UNIQUE CHECK (octet_length(key_hash) = 32),
    scopes text[] NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    revoked_at timestamptz
);
CREATE INDEX api_keys_of_tenant ON effect_broker.api_keys (tenant_id);

-- Full contract documents by digest. A name and version means one document for ever.
CREATE TABLE effect_broker.contracts (
    digest bytea PRIMARY KEY,
    name text COLLATE "C" NOT NULL,
    version text COLLATE "C" NOT NULL,
    tool text COLLATE "C" NOT NULL,
    safety text NOT NULL
        CHECK (safety IN ('transactional', 'idempotent', 'reconcilable', 'unsafe')),
    document text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (name, version),
    UNIQUE (tool, digest),
    CHECK (digest = sha256(convert_to(document, 'UTF8')))
);

-- The version under which new effects of a tool are submitted: one per tool.
CREATE TABLE effect_broker.active_contracts (
    tool text COLLATE "C" PRIMARY KEY,
    digest bytea NOT NULL,
    activated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    FOREIGN KEY (tool, digest) REFERENCES effect_broker.contracts (tool, digest)
);

-- What stops the dispatches of a tenant's contract version. No row means no hold, so that the
-- common case locks nothing that all effects of a tenant share.
CREATE TABLE effect_broker.contract_controls (
    tenant_id uuid NOT NULL REFERENCES effect_broker.tenants,
    contract_name text COLLATE "C" NOT NULL,
    contract_version text COLLATE "C" NOT NULL,
    frozen_reason text,
    frozen_at timestamptz,
    paused_reason text,
    paused_at timestamptz,
    PRIMARY KEY (tenant_id, contract_name, contract_version),
    CHECK ((frozen_reason IS NULL) = (frozen_at IS NULL)),
    CHECK ((paused_reason IS NULL) = (paused_at IS NULL))
);

-- Which database cluster this is. When it changes (a restore, a failover that may have lost
-- commits), dispatch is halted until an operator records the interval.
CREATE TABLE effect_broker.database_identity (
    singleton boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    system_identifier numeric NOT NULL,
    timeline bigint NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    halted_at timestamptz,
    bounds_restart_at timestamptz
);

-- What an operator said of each restore or failover: commits of this interval may be lost.
CREATE TABLE effect_broker.database_restores (
    restore_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    lost_from timestamptz NOT NULL,
    lost_to timestamptz NOT NULL CHECK (lost_to >= lost_from),
    reason text NOT NULL CHECK (reason <> ''),
    actor text NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE effect_broker.workers (
    executor_id text PRIMARY KEY,
    started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    beat_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    ttl_seconds double precision NOT NULL CHECK (ttl_seconds > 0),
    draining_at timestamptz,
    stopped_at timestamptz,
    host text,
    pid integer,
    version text
);

-- The identity of an effect and where it stands. Rows are never deleted.
CREATE TABLE effect_broker.effect_intents (
    tenant_id uuid NOT NULL REFERENCES effect_broker.tenants,
    effect_id uuid NOT NULL,
    operation_key text COLLATE "C" NOT NULL CHECK (operation_key ~ '^[!-~]{1,255}$'),
    tool text COLLATE "C" NOT NULL,
    request_hash bytea NOT NULL CHECK (octet_length(request_hash) = 32),
    contract_name text COLLATE "C" NOT NULL,
    contract_version text COLLATE "C" NOT NULL,
    contract_digest bytea NOT NULL REFERENCES effect_broker.contracts,
    safety text NOT NULL
        CHECK (safety IN ('transactional', 'idempotent', 'reconcilable', 'unsafe')),
    downstream_key text NOT NULL,
    hmac_key_id text NOT NULL,
    target_identity text,
    wire_digest bytea CHECK (octet_length(wire_digest) = 32),
    requested_by text NOT NULL,
    trace_id text,
    traceparent text,
    preview jsonb,
    send_before timestamptz,
    created_at timestamptz NOT NULL,
    -- Where it stands.
    state text NOT NULL CHECK (state IN (
        'prepared', 'dispatching', 'retryable', 'outcome_unknown', 'reconciling', 'manual_review',
        'succeeded', 'failed_final', 'cancelled', 'compensated')),
    reason text NOT NULL,
    version integer NOT NULL CHECK (version >= 1),
    generation integer NOT NULL CHECK (generation >= 1),
    progress_generation integer NOT NULL CHECK (progress_generation BETWEEN 1 AND generation),
    latest_ordinal integer NOT NULL DEFAULT 0 CHECK (latest_ordinal >= 0),
    next_action_at timestamptz,
    parked boolean NOT NULL DEFAULT false,
    cancel_requested_at timestamptz,
    failed_by_operator_at timestamptz,
    receipt_digest bytea CHECK (octet_length(receipt_digest) = 32),
    -- The digest of the latest event: the head of the chain outlives pruned events.
    event_digest bytea NOT NULL CHECK (octet_length(event_digest) = 32),
    updated_at timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, effect_id),
    CONSTRAINT one_intent_per_operation_key UNIQUE (tenant_id, operation_key),
    CONSTRAINT final_has_a_receipt CHECK (
        (state IN ('succeeded', 'failed_final', 'cancelled', 'compensated'))
        = (receipt_digest IS NOT NULL)),
    CONSTRAINT final_has_nothing_to_do CHECK (
        state NOT IN ('succeeded', 'failed_final', 'cancelled', 'compensated')
        OR (next_action_at IS NULL AND NOT parked)),
    CONSTRAINT open_acts_or_is_parked CHECK (
        state IN ('succeeded', 'failed_final', 'cancelled', 'compensated')
        OR parked = (next_action_at IS NULL)),
    CONSTRAINT attempts_fit_the_state CHECK (
        CASE WHEN state IN ('prepared', 'cancelled') THEN latest_ordinal = 0
             WHEN state = 'dispatching' THEN latest_ordinal >= 1
             ELSE true END)
);
-- Due effects, the longest due first.
CREATE INDEX effects_by_next_action ON effect_broker.effect_intents (next_action_at)
    WHERE next_action_at IS NOT NULL;
-- A tenant's outstanding effects, for the priority of its next one.
CREATE INDEX outstanding_effects_of_tenant ON effect_broker.effect_intents (tenant_id)
    WHERE next_action_at IS NOT NULL;
CREATE INDEX effects_by_age ON effect_broker.effect_intents (tenant_id, created_at, effect_id);
CREATE INDEX open_effects_by_state ON effect_broker.effect_intents (tenant_id, state, created_at)
    WHERE state NOT IN ('succeeded', 'failed_final', 'cancelled', 'compensated');

CREATE TABLE effect_broker.effect_attempts (
    attempt_id uuid PRIMARY KEY,
    tenant_id uuid NOT NULL,
    effect_id uuid NOT NULL,
    ordinal integer NOT NULL CHECK (ordinal >= 1),
    executor_id text NOT NULL,
    started_at timestamptz NOT NULL,
    deadline_at timestamptz NOT NULL,
    target_identity text NOT NULL,
    outcome text CHECK (outcome IN (
        'committed', 'rejected', 'not_sent', 'retryable', 'in_progress', 'key_conflict', 'partial',
        'ambiguous', 'presumed_ambiguous')),
    code text,
    -- When the process that sent recorded the outcome; its alone, so a presumption has none.
    recorded_at timestamptz,
    lost_at timestamptz,
    external_id text,
    retry_after_seconds double precision,
    operation boolean NOT NULL DEFAULT false,
    bytes_may_have_left boolean,
    response_digest text,
    status integer,
    result_digest bytea CHECK (octet_length(result_digest) = 32),
    FOREIGN KEY (tenant_id, effect_id) REFERENCES effect_broker.effect_intents,
    CONSTRAINT one_attempt_per_ordinal UNIQUE (effect_id, ordinal),
    CHECK (deadline_at > started_at),
    CONSTRAINT recorded_by_the_sender CHECK (
        (recorded_at IS NOT NULL) = (outcome IS NOT NULL AND outcome <> 'presumed_ambiguous')),
    CONSTRAINT presumed_by_a_successor CHECK (
        outcome IS DISTINCT FROM 'presumed_ambiguous' OR lost_at IS NOT NULL),
    CHECK (recorded_at IS NULL OR (code IS NOT NULL AND bytes_may_have_left IS NOT NULL)),
    CONSTRAINT not_sent_is_proved CHECK (outcome <> 'not_sent' OR NOT bytes_may_have_left)
);
CREATE UNIQUE INDEX one_open_attempt ON effect_broker.effect_attempts (effect_id)
    WHERE outcome IS NULL;

CREATE TABLE effect_broker.effect_evidence (
    evidence_id uuid PRIMARY KEY,
    tenant_id uuid NOT NULL,
    effect_id uuid NOT NULL,
    source text NOT NULL CHECK (source IN ('probe', 'webhook', 'operator', 'transaction')),
    verdict text NOT NULL CHECK (verdict IN (
        'committed', 'not_committed', 'rejected', 'mismatch', 'unknown')),
    code text NOT NULL,
    began_at timestamptz NOT NULL,
    recorded_at timestamptz NOT NULL,
    covers_through integer NOT NULL CHECK (covers_through >= 0),
    external_ids text[] NOT NULL,
    target_identity text,
    response_digest text,
    result_digest bytea CHECK (octet_length(result_digest) = 32),
    FOREIGN KEY (tenant_id, effect_id) REFERENCES effect_broker.effect_intents,
    CHECK (began_at <= recorded_at),
    -- A webhook can prove a commit and nothing else.
    CHECK (source <> 'webhook' OR verdict IN ('committed', 'mismatch', 'unknown'))
);
CREATE INDEX evidence_of_effect ON effect_broker.effect_evidence (effect_id, began_at);

CREATE TABLE effect_broker.effect_receipts (
    receipt_id uuid PRIMARY KEY,
    tenant_id uuid NOT NULL,
    effect_id uuid NOT NULL UNIQUE,
    content text NOT NULL,
    digest bytea NOT NULL,
    result_ref text,
    recorded_at timestamptz NOT NULL,
    FOREIGN KEY (tenant_id, effect_id) REFERENCES effect_broker.effect_intents,
    CONSTRAINT receipt_digest_fits CHECK (digest = sha256(convert_to(content, 'UTF8')))
);

-- What happened, in order. `sequence` is the version of the intent after the write; `digest` is
-- computed by a trigger over the row and the digest of the event before it.
CREATE TABLE effect_broker.effect_events (
    tenant_id uuid NOT NULL,
    effect_id uuid NOT NULL,
    sequence integer NOT NULL CHECK (sequence >= 1),
    kind text NOT NULL,
    event text NOT NULL,
    from_state text,
    to_state text NOT NULL,
    reason text NOT NULL,
    actor text NOT NULL,
    at timestamptz NOT NULL,
    metadata text NOT NULL CHECK (jsonb_typeof(metadata::jsonb) = 'object'),
    previous_digest bytea NOT NULL,
    digest bytea NOT NULL,
    PRIMARY KEY (effect_id, sequence),
    FOREIGN KEY (tenant_id, effect_id) REFERENCES effect_broker.effect_intents,
    CHECK ((sequence = 1) = (from_state IS NULL))
);

-- Ciphertext. It may be re-encrypted or erased; the digests elsewhere stay.
CREATE TABLE effect_broker.effect_payloads (
    tenant_id uuid NOT NULL,
    effect_id uuid NOT NULL,
    kind text NOT NULL CHECK (kind IN ('arguments', 'wire', 'operation', 'result')),
    ref text NOT NULL,
    key_id text NOT NULL,
    ciphertext bytea,
    stored_at timestamptz NOT NULL,
    erased_at timestamptz,
    PRIMARY KEY (effect_id, kind, ref),
    FOREIGN KEY (tenant_id, effect_id) REFERENCES effect_broker.effect_intents,
    CHECK ((ciphertext IS NULL) = (erased_at IS NOT NULL))
);

-- The keys that transactional mutations commit under, and the fences that stand on them.
CREATE TABLE effect_broker.mutation_keys (
    tenant_id uuid NOT NULL,
    effect_id uuid NOT NULL,
    ordinal integer NOT NULL CHECK (ordinal >= 1),
    kind text NOT NULL CHECK (kind IN ('mutation', 'fence')),
    recorded_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (effect_id, ordinal),
    FOREIGN KEY (tenant_id, effect_id) REFERENCES effect_broker.effect_intents
);
CREATE UNIQUE INDEX one_mutation_per_effect ON effect_broker.mutation_keys (effect_id)
    WHERE kind = 'mutation';
