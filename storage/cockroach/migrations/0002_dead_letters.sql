-- A record with open dead letters is pinned: it does not expire and is not
-- deleted. The release before neither knows nor writes these columns; what it
-- inserts has no pins.
ALTER TABLE dedup_records
  ADD COLUMN IF NOT EXISTS pins     INT4  NOT NULL DEFAULT 0,
  ADD COLUMN IF NOT EXISTS reopened BYTEA, -- the final error that a replay opened again
  ADD COLUMN IF NOT EXISTS redacted BOOL  NOT NULL DEFAULT false, -- the id is that of the identity as it was
  ADD COLUMN IF NOT EXISTS trace    BYTEA NOT NULL DEFAULT '';

-- What is unfinished (2 reserved, 4 unknown: the even states) is few among many:
-- listing and counting it reads nothing else. A hash is its key: on CockroachDB there
-- is no hot range. The condition is one that "state = 2" does not imply for a planner:
-- a holder's call must not scan this index, which is full of dead entries.
CREATE INDEX IF NOT EXISTS dedup_records_unfinished ON dedup_records (id) WHERE state % 2 = 0;

-- when: row ttl
ALTER TABLE dedup_records SET (ttl_expiration_expression = 'CASE WHEN pins <= 0 THEN drop_at END');

-- One row per entry. Ids begin with the time of parking, so they are in its order.
CREATE TABLE IF NOT EXISTS dedup_dead_letters (
  id             BYTEA       NOT NULL PRIMARY KEY,
  revision       INT8        NOT NULL, -- raised by every write
  record_id      BYTEA       NOT NULL,
  namespace      TEXT        NOT NULL,
  operation      TEXT        NOT NULL,
  caller         BYTEA       NOT NULL,
  key            BYTEA       NOT NULL,
  kind           INT2        NOT NULL, -- 1 exhausted, 2 unreconciled, 3 overdue, 4 conflict
  state          INT2        NOT NULL, -- 1 parked, 2 replaying, 3 resolved, 4 discarded
  pinned         BOOL        NOT NULL, -- counts in its record's pins
  code           INT4        NOT NULL,
  signature      BYTEA       NOT NULL, -- groups entries
  parks          INT8        NOT NULL,
  parked_at      TIMESTAMPTZ NOT NULL,
  last_parked_at TIMESTAMPTZ NOT NULL,
  claim_end      TIMESTAMPTZ,
  not_before     TIMESTAMPTZ,
  requested      BOOL        NOT NULL,
  has_request    BOOL        NOT NULL,
  closed_at      TIMESTAMPTZ,
  drop_at        TIMESTAMPTZ, -- of a closed entry
  detail         BYTEA       NOT NULL -- what only people and the rules read
);

-- Requests are apart: a listing does not read them, a claim does not write them anew.
CREATE TABLE IF NOT EXISTS dedup_dead_letter_requests (
  entry_id BYTEA NOT NULL PRIMARY KEY,
  request  BYTEA NOT NULL
);

-- A record has one open entry of a kind.
CREATE UNIQUE INDEX IF NOT EXISTS dedup_dead_letters_open_kind ON dedup_dead_letters (record_id, kind) WHERE state <= 2;

CREATE INDEX IF NOT EXISTS dedup_dead_letters_record ON dedup_dead_letters (record_id, id);

CREATE INDEX IF NOT EXISTS dedup_dead_letters_open ON dedup_dead_letters (namespace, id) WHERE state <= 2;

CREATE INDEX IF NOT EXISTS dedup_dead_letters_listing ON dedup_dead_letters (namespace, id);

CREATE INDEX IF NOT EXISTS dedup_dead_letters_drop ON dedup_dead_letters (drop_at) WHERE drop_at IS NOT NULL;
