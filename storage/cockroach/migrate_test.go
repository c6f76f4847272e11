package cockroach

import (
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// exec runs statements on a database.
func exec(t *testing.T, dsn string, statements ...string) {
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
	require.Equal(t, SchemaError{Have: 0, Want: 2}, *old)
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
	exec(t, opts.URL, createVersionsSQL, all[0].steps[0].sql)
	_, err = Open(t.Context(), opts)
	require.ErrorAs(t, err, new(*SchemaError), "half a migration is none")

	_, err = Migrate(t.Context(), opts)
	require.NoError(t, err)
	require.NoError(t, open(t, opts).Check(t.Context()))
}

func TestTheReleaseBeforeServesANewerSchema(t *testing.T) {
	t.Parallel()
	opts := migrated(t)
	exec(t, opts.URL,
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
