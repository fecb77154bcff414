-- The target's own ledger. Rows are only ever added, except for what is marked below.

CREATE TABLE IF NOT EXISTS arrivals (
  n                  INTEGER PRIMARY KEY AUTOINCREMENT,
  kind               TEXT    NOT NULL,
  method             TEXT    NOT NULL,
  path               TEXT    NOT NULL,
  query              TEXT    NOT NULL,
  mutating           INTEGER NOT NULL CHECK (mutating IN (0, 1)),
  headers            TEXT    NOT NULL,
  downstream_key     TEXT,
  correlation_key    TEXT,
  body               BLOB    NOT NULL,
  body_length        INTEGER NOT NULL,
  body_digest        TEXT    NOT NULL,
  -- Only 'whole' and 'early' count as received requests.
  body_state         TEXT    NOT NULL CHECK (body_state IN ('whole', 'early', 'cut', 'unread')),
  plan               TEXT    NOT NULL,
  received_monotonic REAL    NOT NULL,
  received_at        REAL    NOT NULL
);
CREATE INDEX IF NOT EXISTS arrivals_by_downstream_key ON arrivals (downstream_key);
CREATE INDEX IF NOT EXISTS arrivals_by_correlation_key ON arrivals (correlation_key);

-- Requests whose client went away before it had the whole answer, as the target saw it.
CREATE TABLE IF NOT EXISTS departures (
  arrival_n      INTEGER PRIMARY KEY REFERENCES arrivals (n),
  left_monotonic REAL    NOT NULL
);

-- One row for each applied mutation; a later row of the same object replaces its content.
CREATE TABLE IF NOT EXISTS effects (
  n               INTEGER PRIMARY KEY AUTOINCREMENT,
  kind            TEXT    NOT NULL,
  object_id       TEXT    NOT NULL,
  -- The number in the object's id; the same in every row of one object.
  sequence        INTEGER NOT NULL,
  name            TEXT,
  downstream_key  TEXT,
  correlation_key TEXT,
  arrival_n       INTEGER NOT NULL REFERENCES arrivals (n),
  item            INTEGER,
  content         TEXT    NOT NULL,
  etag            TEXT    NOT NULL,
  committed_at    REAL    NOT NULL
);
CREATE INDEX IF NOT EXISTS effects_by_object ON effects (kind, object_id);
CREATE INDEX IF NOT EXISTS effects_by_sequence ON effects (kind, sequence);
CREATE INDEX IF NOT EXISTS effects_by_name ON effects (kind, name);
CREATE INDEX IF NOT EXISTS effects_by_downstream_key ON effects (downstream_key);
CREATE INDEX IF NOT EXISTS effects_by_correlation_key ON effects (correlation_key);

-- What de-duplication remembers. Replaced when a key's retention has passed.
CREATE TABLE IF NOT EXISTS stored_answers (
  kind           TEXT    NOT NULL,
  key            TEXT    NOT NULL,
  request_digest TEXT    NOT NULL,
  status         INTEGER NOT NULL,
  headers        TEXT    NOT NULL,
  body           BLOB    NOT NULL,
  stored_at      REAL    NOT NULL,
  PRIMARY KEY (kind, key)
);

-- Operations behind a 202. `running_left` counts down with every poll.
CREATE TABLE IF NOT EXISTS operations (
  n            INTEGER PRIMARY KEY AUTOINCREMENT,
  kind         TEXT    NOT NULL,
  arrival_n    INTEGER NOT NULL REFERENCES arrivals (n),
  outcome      TEXT    NOT NULL CHECK (outcome IN ('succeeded', 'failed', '404', 'never')),
  running_left INTEGER NOT NULL,
  object_id    TEXT
);

-- Settings of a kind, kept over a restart.
CREATE TABLE IF NOT EXISTS modes (kind TEXT PRIMARY KEY, settings TEXT NOT NULL);

-- Requests of `count_only` kinds, written from memory now and then: for benchmarks only.
CREATE TABLE IF NOT EXISTS counts (kind TEXT PRIMARY KEY, requests INTEGER NOT NULL);
