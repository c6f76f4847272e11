package server_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/server"
	"github.com/dedupd/dedupd/storage/embedded"
)

// TestOneOfManyCallersRunsAndAllGetItsAnswer is the promise, over the wire and a
// real store: callers of one key race, each ready to run.
func TestOneOfManyCallersRunsAndAllGetItsAnswer(t *testing.T) {
	t.Parallel()
	store, err := embedded.OpenMemory(embedded.Options{})
	require.NoError(t, err)
	s, err := server.New(server.Config{Store: store})
	require.NoError(t, err)
	lis := listen(t)
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, lis, nil) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-done)
		require.NoError(t, store.Close())
	})
	wire, inProcess := dial(t, lis), dedupv1.NewDedupServiceClient(s.Conn())

	const keys, callers = 8, 16
	var effects [keys]atomic.Int64
	var all sync.WaitGroup
	for k := range keys {
		for n := range callers {
			all.Go(func() {
				c := wire
				if n%2 == 0 {
					c = inProcess
				}
				req := reserveOf(uint64(k))
				req.AttemptId = binary.BigEndian.AppendUint64(make([]byte, 8), uint64(k*callers+n))
				req.Wait = durationpb.New(20 * time.Second)
				res, err := c.Reserve(t.Context(), req)
				if err != nil {
					t.Errorf("reserve: %v", err)
					return
				}
				if g := res.GetGranted(); g != nil {
					effects[k].Add(1)
					_, err = c.Complete(t.Context(), &dedupv1.CompleteRequest{
						Identity: req.GetIdentity(), AttemptId: req.GetAttemptId(), Fence: g.GetFence(),
						Outcome: &dedupv1.Outcome{Result: &dedupv1.Outcome_Response{Response: &dedupv1.Response{Value: []byte{byte(k)}}}},
					})
					if err != nil {
						t.Errorf("complete: %v", err)
					}
					return
				}
				if got := res.GetCompleted().GetOutcome().GetResponse().GetValue(); !bytes.Equal(got, []byte{byte(k)}) {
					t.Errorf("another answer: %v", res)
				}
			})
		}
	}
	all.Wait()
	for k := range keys {
		require.EqualValues(t, 1, effects[k].Load())
	}

	list, err := dedupv1.NewAdminServiceClient(s.Conn()).ListRecords(t.Context(), &dedupv1.ListRecordsRequest{
		Namespace: "bench", States: []dedupv1.State{dedupv1.State_STATE_COMPLETED},
	})
	require.NoError(t, err)
	require.Len(t, list.GetRecords(), keys)

	require.NoError(t, store.Close())
	_, err = wire.Reserve(t.Context(), reserveOf(99))
	require.Equal(t, codes.Unavailable, status.Code(err), "a closed store is an error, never a panic")
}
