package cockroach

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/dedupd/dedupd/internal/pgtest"
	"github.com/dedupd/dedupd/storage/storagetest"
)

// server is the database of this test binary.
var server *pgtest.Server

func TestMain(m *testing.M) {
	var err error
	if server, err = pgtest.Start(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	if err := server.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// opener opens a store on an empty, migrated schema; the URL of opts is added to
// that of the schema. Each set changes the store before its first call.
func opener(opts Options, sets ...func(*Store)) storagetest.Opener {
	return func(tb testing.TB) storagetest.Harness {
		tb.Helper()
		opts := opts
		opts.URL = server.Schema(tb) + opts.URL
		_, err := Migrate(tb.Context(), opts)
		require.NoError(tb, err)
		return harness(tb, opts, 0, sets)
	}
}

func harness(tb testing.TB, opts Options, ahead time.Duration, sets []func(*Store)) storagetest.Harness {
	tb.Helper()
	s := open(tb, opts)
	s.clock.advance(ahead)
	for _, set := range sets {
		set(s)
	}
	return storagetest.Harness{
		Store:   s,
		Advance: s.clock.advance,
		Reopen: func(tb testing.TB) storagetest.Harness {
			tb.Helper()
			return harness(tb, opts, time.Duration(s.clock.micros.Load())*time.Microsecond, sets)
		},
	}
}

// open opens a store that is closed at the end of the test.
func open(tb testing.TB, opts Options) *Store {
	tb.Helper()
	s, err := Open(tb.Context(), opts)
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, s.Close()) })
	return s
}
