-- What the last failed replay was told stands beside what the entry was parked for,
-- which groups it. The release before neither knows nor writes this column.
ALTER TABLE dedup_dead_letters ADD COLUMN IF NOT EXISTS replay_status BYTEA NOT NULL DEFAULT '';
