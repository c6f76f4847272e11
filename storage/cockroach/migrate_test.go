package cockroach

import (
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dedupd/dedupd/storage"
)

// execute runs statements on a database.
func execute(t *testing.T, dsn string, statements ...string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	require.NoError(t, err)
	defer conn.Close(t.Context()) //nolint:errcheck // every statement has been answered
	for _, sql := range statements {
		_, err = conn.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
}

func TestAStoreDoesNotOpenOnAnOlderSchemaAndSaysWhatToType(t *testing.T) {
	t.Parallel()
	opts := Options{URL: server.Schema(t)}
	_, err := Open(t.Context(), opts)
	var old *SchemaError
	require.ErrorAs(t, err, &old)
	require.Equal(t, SchemaError{Have: 0, Want: 4}, *old)
	require.ErrorContains(t, err, "dedupd migrate up")
	require.ErrorContains(t, &SchemaError{Have: 1, Want: 2}, "is at version 1, this dedupd needs 2")

	status, err := Status(t.Context(), opts)
	require.NoError(t, err)
	require.Equal(t, 0, status.Have)
	require.Len(t, status.Pending, status.Want)
	require.NotEmpty(t, status.Database)

	done, err := Migrate(t.Context(), opts)
	require.NoError(t, err)
	require.Equal(t, status.Pending, done)
	done, err = Migrate(t.Context(), opts)
	require.NoError(t, err)
	require.Empty(t, done, "there is nothing more to do")
	require.NoError(t, open(t, opts).Check(t.Context()))
}

func TestManyReplicasMayMigrateAtOnce(t *testing.T) {
	t.Parallel()
	opts := Options{URL: server.Schema(t)}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if _, err := Migrate(t.Context(), opts); err != nil {
				t.Errorf("a migration that met others: %v", err)
			}
		})
	}
	wg.Wait()
	require.NoError(t, open(t, opts).Check(t.Context()))
}

func TestAMigrationThatWasInterruptedIsRunAgain(t *testing.T) {
	t.Parallel()
	opts := Options{URL: server.Schema(t)}
	all, err := migrations(migrationFiles)
	require.NoError(t, err)
	require.Greater(t, len(all[0].steps), 1)
	execute(t, opts.URL, createVersionsSQL, all[0].steps[0].sql)
	_, err = Open(t.Context(), opts)
	require.ErrorAs(t, err, new(*SchemaError), "half a migration is none")

	_, err = Migrate(t.Context(), opts)
	require.NoError(t, err)
	require.NoError(t, open(t, opts).Check(t.Context()))
}

func TestTheReleaseBeforeServesANewerSchema(t *testing.T) {
	t.Parallel()
	opts := migrated(t)
	execute(t, opts.URL,
		`INSERT INTO dedup_schema (version, row_ttl) VALUES (99, false)`,
		`ALTER TABLE dedup_records ADD COLUMN IF NOT EXISTS of_a_later_release INT8 NOT NULL DEFAULT 0`)
	s := open(t, opts)
	h := newHolder("k")
	granted(t, s, h)
	_, err := h.complete(t.Context(), s)
	require.NoError(t, err)
	status, err := Status(t.Context(), opts)
	require.NoError(t, err)
	require.Equal(t, 99, status.Have)
	require.Empty(t, status.Pending)
}

func TestMigrationFilesAreNumberedAndSplitAtTheirSemicolons(t *testing.T) {
	t.Parallel()
	got, err := migrations(fstest.MapFS{
		"migrations/0001_one.sql": {Data: []byte("-- why\nCREATE a ( -- x; y\n  b\n);\n\n-- when: row ttl\nALTER a;\nALTER b;\n")},
		"migrations/0002_two.sql": {Data: []byte("CREATE c;\n")},
	})
	require.NoError(t, err)
	const sent = "/* dedupd migrate */ "
	require.Equal(t, []Migration{
		{Version: 1, Name: "one", steps: []step{{"", sent + "CREATE a ( -- x; y\n  b\n)"}, {"row ttl", sent + "ALTER a"}, {"", sent + "ALTER b"}}},
		{Version: 2, Name: "two", steps: []step{{"", sent + "CREATE c"}}},
	}, got)
	for _, name := range []string{"0002_gap.sql", "one.sql"} {
		_, err := migrations(fstest.MapFS{"migrations/" + name: {}})
		require.ErrorContains(t, err, name)
	}
	all, err := migrations(migrationFiles)
	require.NoError(t, err)
	for _, m := range all {
		for _, s := range m.steps {
			require.True(t, s.when == "" || s.when == "row ttl" || s.when == "no row ttl", s.when)
			if strings.HasPrefix(s.sql, sent+"CREATE") {
				require.Contains(t, s.sql, "IF NOT EXISTS", "a step may be run twice, by two at once")
			}
		}
	}
}

func TestTheDatabaseIsToldByItsVersion(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]database{
		"CockroachDB CCL v24.3.1 (x86_64-pc-linux-gnu, built 2024)": {name: "CockroachDB v24.3.1", cockroach: true, hasTTL: true},
		"CockroachDB OSS v21.1.19 (x86_64)":                         {name: "CockroachDB v21.1.19", cockroach: true},
		"CockroachDB CCL v22.1.9 (x86_64)":                          {name: "CockroachDB v22.1.9", cockroach: true},
		"CockroachDB CCL v22.2.0 (x86_64)":                          {name: "CockroachDB v22.2.0", cockroach: true, hasTTL: true},
		"something else":                                            {name: "CockroachDB", cockroach: true},
	} {
		require.Equal(t, want, identifyCockroach(version))
	}
}

func TestOptionsThatCannotWorkAreRefused(t *testing.T) {
	t.Parallel()
	for _, opts := range []Options{
		{},
		{URL: "postgres://x", MaxConns: 1},
		{URL: "postgres://x", CallTimeout: 1},
		{URL: "postgres://x:port"},
	} {
		_, err := Open(t.Context(), opts)
		require.Error(t, err)
		_, err = Migrate(t.Context(), opts)
		require.Error(t, err)
	}
}

// What the release before has stored is there after the migration, and what it
// writes beside this one is read: it knows nothing of pins.
func TestRecordsOfTheReleaseBeforeAreServed(t *testing.T) {
	t.Parallel()
	opts := Options{URL: server.Schema(t)}
	all, err := migrations(migrationFiles)
	require.NoError(t, err)
	statements := []string{createVersionsSQL}
	for _, st := range all[0].steps {
		if st.when == "" || st.when == "no row ttl" {
			statements = append(statements, st.sql)
		}
	}
	execute(t, opts.URL, append(statements, `INSERT INTO dedup_schema (version, row_ttl) VALUES (1, false)`)...)
	before, between := newHolder("before"), newHolder("between")
	insertAsBefore(t, opts.URL, before)
	_, err = Open(t.Context(), opts)
	require.ErrorAs(t, err, new(*SchemaError))
	done, err := Migrate(t.Context(), opts)
	require.NoError(t, err)
	require.Equal(t, all[1:], done)

	s := open(t, opts)
	insertAsBefore(t, opts.URL, between)
	for _, h := range []*holder{before, between} {
		found := lookup(t, s, h.id)
		require.Equal(t, storage.StateReserved, found.State)
		require.Zero(t, found.Record.Pins)
		parkedAs(t, s, h)
		_, err := h.complete(t.Context(), s)
		require.NoError(t, err)
		require.Zero(t, lookup(t, s, h.id).Record.Pins)
	}
}

// insertAsBefore grants the holder its key by the columns of the first schema.
func insertAsBefore(t *testing.T, dsn string, h *holder) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	require.NoError(t, err)
	defer conn.Close(t.Context()) //nolint:errcheck // its only statement has been answered
	h.fence = 1
	_, err = conn.Exec(t.Context(), `INSERT INTO dedup_records (id, shard, namespace, operation, caller, key, state, version, fence, attempt,
  mode, lease, lease_end, granted_at, run_fence, run_attempt, run_end, grants, created_at, fingerprint)
VALUES ($1, 0, $2, $3, $4, $5, 2, 1, 1, $6, 1, INTERVAL '1 hour', now() + INTERVAL '1 hour', now(), 1, $6, now() + INTERVAL '1 hour', 1, now(), $7)`,
		h.id[:], h.Identity.Namespace, h.Identity.Operation, []byte(h.Identity.Caller), []byte(h.Identity.Key), h.Attempt[:], encodeFingerprint(h.Fingerprint))
	require.NoError(t, err)
}

// A sweeper of the release before knows no pins. The entry of a row that it deleted
// is still there and can be closed; nothing is pinned by it any more.
func TestAnEntryOutlivesARowThatTheReleaseBeforeDeleted(t *testing.T) {
	t.Parallel()
	s := open(t, migrated(t))
	h := newHolder("k")
	granted(t, s, h)
	parkedAs(t, s, h)
	_, err := s.pool.Exec(t.Context(), `DELETE FROM dedup_records`)
	require.NoError(t, err)
	ans, err := s.Discard(t.Context(), storage.Discard{Entry: h.entry})
	require.NoError(t, err)
	require.Equal(t, storage.VerdictOK, ans.Verdict)
	require.Equal(t, storage.EntryDiscarded, ans.Entry.State)
	granted(t, s, h.again())
	require.Zero(t, lookup(t, s, h.id).Record.Pins)
}
