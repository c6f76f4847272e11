package main

import (
	"bytes"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dedupd/dedupd/cmd/dedupd/internal/demo"
)

// A02 A05: the ledger in PostgreSQL with an inbox; the service is killed 20 times.
func TestDemoWithAnInboxChargesEveryOrderOnceThroughTwentyKills(t *testing.T) {
	t.Parallel()
	url := emptyDatabase(t)
	report, err := demo.RunInbox(t.Context(), demo.Config{
		Executable: binary, Orders: 400, Clients: 8, Loss: 0.2, Seed: 1, Dir: t.TempDir(),
	}, url, 20)
	require.NoError(t, err)
	require.NoError(t, report.Err())
	require.Len(t, report, 1)
	r := report[0]
	require.Equal(t, [5]int{400, 400, 0, 0, 0}, [5]int{r.Asked, r.Once, r.Twice, r.Lost, r.Unknown})
	require.Equal(t, 20, r.PaymentsKills)
	require.Equal(t, 1, r.DedupdKills)
	require.Positive(t, r.LostReplies)

	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(t.Context())) }()
	var schemas int
	require.NoError(t, conn.QueryRow(t.Context(), "SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'dedupd_demo_%'").Scan(&schemas))
	require.Zero(t, schemas, "its schema is dropped")
}

func TestDemoTakesALedgerInADatabase(t *testing.T) {
	t.Parallel()
	cmd := command(t, "demo", "--orders", "10", "--clients", "2", "--down", "0", "--ledger", emptyDatabase(t), "--kills", "1")
	cmd.Env = append(cmd.Env, "TMPDIR="+t.TempDir())
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	require.NoError(t, cmd.Run(), "%s%s", &out, &errs)
	require.Regexp(t, `dedupd, inbox +10 +10 +0 +0 +0 `, out.String())
}

func TestDemoWithAnInboxRefusesWhatCannotBe(t *testing.T) {
	t.Parallel()
	for database, kills := range map[string]int{"postgres:///x": 0, "mysql://u:secret@h/d": 1} {
		_, err := demo.RunInbox(t.Context(), demo.Config{Executable: binary, Orders: 10}, database, kills)
		require.Regexp(t, "take 1 to 100|name it as postgres://", err)
		require.NotContains(t, err.Error(), "secret")
	}
}
