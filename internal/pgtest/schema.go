package pgtest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"net/url"
	"os/user"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// Schema makes an empty schema and returns a connection string whose sessions
// see only it. It is dropped when the test ends.
func (s *Server) Schema(tb testing.TB) string {
	tb.Helper()
	var b [8]byte
	_, err := rand.Read(b[:])
	require.NoError(tb, err)
	name := "dedupd_test_" + hex.EncodeToString(b[:])
	require.NoError(tb, execSQL(tb.Context(), s.URL(), "CREATE SCHEMA "+name))
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), startTime)
		defer cancel()
		if err := execSQL(ctx, s.URL(), "DROP SCHEMA "+name+" CASCADE"); err != nil {
			tb.Logf("the schema %s stays: %v", name, err)
		}
	})
	u, err := url.Parse(s.URL())
	require.NoError(tb, err)
	q := u.Query()
	q.Set("search_path", name)
	u.RawQuery = q.Encode()
	return u.String()
}

func ping(ctx context.Context, dsn string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return execSQL(ctx, dsn, "SELECT 1")
}

func execSQL(ctx context.Context, dsn, sql string) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // its only statement has been answered
	_, err = conn.Exec(ctx, sql)
	return err
}

func lookup(name string) (uid, gid uint32, err error) {
	u, err := user.Lookup(name)
	if err != nil {
		return 0, 0, err
	}
	id, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return 0, 0, err
	}
	group, err := strconv.ParseUint(u.Gid, 10, 32)
	return uint32(id), uint32(group), err
}
