-- A few words that servers leave for one another, by name.
CREATE TABLE IF NOT EXISTS dedup_memos (
  name TEXT  NOT NULL PRIMARY KEY,
  memo BYTEA NOT NULL
);
