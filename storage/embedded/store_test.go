package embedded_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/dedupd/dedupd/storage/embedded"
	"github.com/dedupd/dedupd/storage/storagetest"
)

func TestMain(m *testing.M) {
	// A pebble.Open that fails late leaves this goroutine behind; its Close stops it.
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/cockroachdb/pebble/v2.(*ConcurrencyLimitScheduler).periodicGranter"))
}

// harness opens a store whose clock a test can move.
func harness(tb testing.TB, o embedded.Options) storagetest.Harness {
	tb.Helper()
	var offset atomic.Int64
	o.Now = func() time.Time { return time.Now().Add(time.Duration(offset.Load())) }
	h := storagetest.Harness{Advance: func(d time.Duration) { offset.Add(int64(d)) }}
	h.Reopen = func(tb testing.TB) storagetest.Harness {
		tb.Helper()
		s, err := embedded.Open(o)
		require.NoError(tb, err)
		h.Store = s
		return h
	}
	return h.Reopen(tb)
}

func TestTheStoreInMemoryPassesTheSuite(t *testing.T) {
	t.Parallel()
	storagetest.Run(t, func(tb testing.TB) storagetest.Harness {
		tb.Helper()
		return harness(tb, embedded.Options{FS: vfs.NewMem(), Dir: "store"})
	})
}

func TestTheStoreOnDiskPassesTheSuite(t *testing.T) {
	t.Parallel()
	storagetest.Run(t, func(tb testing.TB) storagetest.Harness {
		tb.Helper()
		return harness(tb, embedded.Options{Dir: tb.TempDir()})
	})
}
