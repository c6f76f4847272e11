package guard_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors/guard"
)

// older is a dedupd of a version that knows of no replays.
type older struct{ dedupv1.DedupServiceClient }

func (o older) Reserve(ctx context.Context, q *dedupv1.ReserveRequest, opts ...grpc.CallOption) (*dedupv1.ReserveResponse, error) {
	q = proto.CloneOf(q)
	q.Replay = nil
	return o.DedupServiceClient.Reserve(ctx, q, opts...)
}

func TestAnOlderDedupdThatIgnoresTheClaimMakesNoReplayRun(t *testing.T) { // G01
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		engine, err := guard.New(guard.Config{Dedup: older{dedupv1.NewDedupServiceClient(w.wire)}, Namespace: "test"})
		require.NoError(t, err)
		t.Cleanup(engine.Close)
		c := call()
		c.Replay = &dedupv1.ReplayClaim{EntryId: make([]byte, 16), Token: make([]byte, 16)}
		var e effect
		_, err = engine.Do(t.Context(), c, e.run)
		requireRefused(t, err, dedupv1.Reason_REASON_KEY_INVALID, false)
		require.ErrorContains(t, err, "does not know of replays")
		require.Zero(t, e.count())
		require.Equal(t, dedupv1.State_STATE_RELEASED, w.state(t, call()), "the grant was given back")
	})
}
