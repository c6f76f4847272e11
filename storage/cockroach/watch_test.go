package cockroach

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dedupd/dedupd/storage"
)

func TestAChangeByAnotherReplicaIsNoticed(t *testing.T) {
	t.Parallel()
	opts := migrated(t)
	here, there := open(t, opts), open(t, opts)
	h := newHolder("k")
	granted(t, there, h)
	found, err := here.Lookup(t.Context(), h.id, storage.Lookup{})
	require.NoError(t, err)

	done := make(chan error, 2)
	go func() { done <- here.Changed(t.Context(), h.id, found.Record.Version) }()
	go func() { done <- here.Changed(t.Context(), newHolder("absent").id, 0) }()
	_, err = h.complete(t.Context(), there)
	require.NoError(t, err)
	require.NoError(t, <-done)
	granted(t, there, newHolder("absent"))
	require.NoError(t, <-done)
}

func TestCloseEndsThoseWhoWaitForAChange(t *testing.T) {
	t.Parallel()
	s := open(t, migrated(t))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, s.Changed(ctx, storage.RecordID{}, 0), context.Canceled)
	done := make(chan error)
	go func() { done <- s.Changed(t.Context(), storage.RecordID{}, 0) }()
	require.NoError(t, s.Close())
	require.ErrorIs(t, <-done, storage.ErrClosed)
	require.ErrorIs(t, s.Changed(t.Context(), storage.RecordID{}, 0), storage.ErrClosed)
}

// However many wait, a record is read at most once in half of each pause, and
// pauses grow to the slowest.
func TestAWaitCostsOneReadPerRecordAndPoll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var reads []time.Time
		var version int64
		var work sync.WaitGroup
		w := &watcher{work: &work, read: func(ids [][]byte) (map[storage.RecordID]int64, error) {
			mu.Lock()
			defer mu.Unlock()
			if len(ids) != 1 {
				t.Errorf("%d ids in one read, one is waited for", len(ids))
			}
			reads = append(reads, time.Now())
			if len(reads)%5 == 0 {
				return nil, errors.New("no database") // a failed read wakes nobody
			}
			return map[storage.RecordID]int64{{}: version}, nil
		}}
		begun := time.Now()
		var id storage.RecordID
		for range 100 {
			changed, leave := w.join(id, 0)
			defer leave()
			go func() { <-changed }()
		}
		time.Sleep(10 * time.Second) //nolint:forbidigo // inside a synctest bubble
		synctest.Wait()
		mu.Lock()
		require.GreaterOrEqual(t, reads[0].Sub(begun), firstPoll/2)
		require.LessOrEqual(t, reads[0].Sub(begun), firstPoll+1)
		for i := 3; i < len(reads); i++ {
			pause := reads[i].Sub(reads[i-1])
			require.GreaterOrEqual(t, pause, slowestPoll/2)
			require.LessOrEqual(t, pause, slowestPoll+1)
		}
		require.Greater(t, len(reads), 40)

		version = 7
		mu.Unlock()
		work.Wait() // all are woken, and the poller ends
		count := len(reads)
		time.Sleep(time.Second) //nolint:forbidigo // inside a synctest bubble
		require.Len(t, reads, count)
	})
}
