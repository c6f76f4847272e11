package server

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/storage"
)

// shared is a store that another process writes to as well.
type shared struct{ *fakeStore }

func (s shared) Changed(ctx context.Context, id storage.RecordID, version int64) error {
	for {
		s.mu.Lock()
		row := s.rows[id]
		s.mu.Unlock()
		if row == nil && version != 0 || row != nil && row.Version != version {
			return nil
		}
		select {
		case <-time.After(100 * time.Millisecond): // virtual time
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func TestCallersAreWokenByWhatAnotherReplicaWrites(t *testing.T) {
	t.Parallel()
	inBubble(t, func(b *bubble) {
		mine := setup(b.t, func(c *Config) { c.Store = shared{b.store} })
		grant := b.grant(b.t, 1)
		b.bundle, mine = mine, b.bundle // hold at one replica, write at the other
		for i := range byte(3) {
			b.hold(b.t.Context(), waiting(10+i, 20*time.Second))
		}
		look := make(chan *dedupv1.LookupResponse, 1)
		go func() {
			res, _ := b.dedup.Lookup(b.t.Context(), lookupReq(20*time.Second))
			look <- res
		}()
		require.Zero(b.t, b.answered())

		b.pass(time.Second)
		held := completeReq(1, grant.GetFence(), "done")
		_, err := mine.dedup.Extend(b.t.Context(), &dedupv1.ExtendRequest{
			Identity: held.GetIdentity(), AttemptId: held.GetAttemptId(), Fence: held.GetFence(), Lease: durationpb.New(time.Minute),
		})
		require.NoError(b.t, err)
		b.pass(time.Second)
		require.Zero(b.t, b.answered(), "an extended lease is still held")

		_, err = mine.dedup.Complete(b.t.Context(), held)
		require.NoError(b.t, err)
		b.pass(100 * time.Millisecond)
		require.Equal(b.t, 3, b.answered())
		for range 3 {
			r := <-b.replies
			require.NoError(b.t, r.err)
			require.NotNil(b.t, r.res.GetCompleted())
		}
		require.NotNil(b.t, (<-look).GetCompleted())
	})
}
