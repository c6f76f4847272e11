package embedded

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dedupd/dedupd/storage"
)

func TestALockIsHandedOnInTheOrderOfArrival(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var l keyLocks
		id := storage.RecordID{1}
		require.NoError(t, l.lock(t.Context(), id))
		require.False(t, l.tryLock(id))
		require.True(t, l.tryLock(storage.RecordID{1, 1}), "another record of the shard is free")
		var order []int
		var done sync.WaitGroup
		for i := range 5 {
			done.Go(func() {
				if l.lock(t.Context(), id) == nil {
					order = append(order, i)
					l.unlock(id)
				}
			})
			synctest.Wait()
		}
		l.unlock(id)
		done.Wait()
		require.Equal(t, []int{0, 1, 2, 3, 4}, order)
		require.True(t, l.tryLock(id))
		l.unlock(id)
		require.Len(t, l.shard(id).held, 1, "a free record leaves nothing behind")
	})
}

func TestACallerThatGivesUpLeavesTheLine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var l keyLocks
		id := storage.RecordID{1}
		require.NoError(t, l.lock(t.Context(), id))
		impatient, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var gaveUp error
		go func() { gaveUp = l.lock(impatient, id) }()
		synctest.Wait()
		patient := make(chan error, 1)
		go func() { patient <- l.lock(t.Context(), id) }()
		time.Sleep(2 * time.Second) //nolint:forbidigo // inside a synctest bubble
		synctest.Wait()
		require.ErrorIs(t, gaveUp, context.DeadlineExceeded)
		l.unlock(id)
		require.NoError(t, <-patient)
		l.unlock(id)
		require.Empty(t, l.shard(id).held)
	})
}
