-- One row per record. The primary key is a hash, so writes spread evenly. Times
-- are the database's own; NULL is "none". What only people and the rules read is
-- in bytes columns, each value with a format byte in front.
CREATE TABLE IF NOT EXISTS dedup_records (
  id           BYTEA       NOT NULL PRIMARY KEY,
  shard        INT2        NOT NULL, -- the id's first four bits: spreads the index over times
  namespace    TEXT        NOT NULL,
  operation    TEXT        NOT NULL,
  caller       BYTEA       NOT NULL,
  key          BYTEA       NOT NULL,
  state        INT2        NOT NULL, -- 1 spent mark, 2 reserved, 3 released, 4 unknown, 5 completed
  version      INT8        NOT NULL, -- raised by every write
  fence        INT8        NOT NULL,
  attempt      BYTEA       NOT NULL,
  mode         INT2        NOT NULL, -- 0 none, 1 run, 2 reconcile
  lease        INTERVAL    NOT NULL, -- asked for last
  lease_end    TIMESTAMPTZ,
  granted_at   TIMESTAMPTZ,
  run_fence    INT8        NOT NULL,
  run_attempt  BYTEA       NOT NULL,
  run_end      TIMESTAMPTZ,
  grants       INT8        NOT NULL,
  prev_grant   TIMESTAMPTZ,
  created_at   TIMESTAMPTZ NOT NULL,
  is_open      BOOL        NOT NULL DEFAULT false,
  is_bound     BOOL        NOT NULL DEFAULT false,
  fingerprint  BYTEA       NOT NULL,
  superseded   BYTEA       NOT NULL DEFAULT '',
  ended        BYTEA       NOT NULL DEFAULT '', -- attempt ids, 16 bytes each
  released_as  INT2        NOT NULL DEFAULT 0,
  outcome      BYTEA,
  hold_end     TIMESTAMPTZ,
  completed_at TIMESTAMPTZ,
  expires_at   TIMESTAMPTZ,
  drop_at      TIMESTAMPTZ, -- from here on the row counts as absent
  resolved_from INT8       NOT NULL DEFAULT 0,
  note         BYTEA       NOT NULL DEFAULT ''
);

-- when: no row ttl
CREATE INDEX IF NOT EXISTS dedup_records_drop ON dedup_records (shard, drop_at) WHERE drop_at IS NOT NULL;

-- when: row ttl
ALTER TABLE dedup_records SET (ttl_expiration_expression = 'drop_at', ttl_job_cron = '*/10 * * * *');
