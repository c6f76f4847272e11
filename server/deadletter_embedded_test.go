package server_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/server"
	"github.com/dedupd/dedupd/storage/embedded"
)

func random() []byte {
	b := make([]byte, 16)
	_, _ = rand.Read(b) // never fails
	return b
}

// TestG01ManyReplayersRunEveryParkedCallExactlyOnce is the promise over a real
// store: replayers claim what they can, some lose their replies and ask again, the
// original callers retry at the same time; each effect happens once, and nothing
// stays parked.
func TestG01ManyReplayersRunEveryParkedCallExactlyOnce(t *testing.T) {
	t.Parallel()
	store, err := embedded.OpenMemory(embedded.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	s, err := server.New(server.Config{Store: store})
	require.NoError(t, err)
	w := &replayWorld{
		dedup: dedupv1.NewDedupServiceClient(s.Conn()), dead: dedupv1.NewDeadLetterServiceClient(s.Conn()),
		index: map[string]int{},
	}
	for n := range w.effects {
		req := reserveOf(uint64(n))
		w.index[string(req.GetIdentity().GetKey())] = n
		_, err := w.dead.Park(t.Context(), &dedupv1.ParkRequest{
			Record: &dedupv1.ParkRequest_Identity{Identity: req.GetIdentity()}, ParkId: random(),
			Kind: dedupv1.DeadLetterKind_DEAD_LETTER_KIND_EXHAUSTED, Method: req.GetIdentity().GetOperation(),
			Request: &dedupv1.Response{Value: fmt.Append(nil, n)}, Fingerprints: req.GetFingerprints(),
		})
		require.NoError(t, err)
	}
	var all sync.WaitGroup
	for n := range 6 {
		all.Go(func() {
			if err := w.replay(t.Context(), n%2 == 0); err != nil {
				t.Errorf("replay: %v", err)
			}
		})
	}
	for n := 0; n < len(w.effects); n += 3 {
		all.Go(func() { // the original caller's own retry
			req := reserveOf(uint64(n))
			req.AttemptId = random()
			if _, err := w.run(t.Context(), req); err != nil {
				t.Errorf("retry: %v", err)
			}
		})
	}
	all.Wait()
	for n := range w.effects {
		require.EqualValues(t, 1, w.effects[n].Load(), "call %d", n)
	}
	list, err := w.dead.List(t.Context(), &dedupv1.DeadLetterServiceListRequest{})
	require.NoError(t, err)
	require.Empty(t, list.GetEntries())
	groups, err := w.dead.Groups(t.Context(), &dedupv1.GroupsRequest{Filter: &dedupv1.DeadLetterFilter{
		States: []dedupv1.DeadLetterState{dedupv1.DeadLetterState_DEAD_LETTER_STATE_RESOLVED},
	}})
	require.NoError(t, err)
	require.EqualValues(t, len(w.effects), groups.GetGroups()[0].GetEntries())
	forgot, err := dedupv1.NewAdminServiceClient(s.Conn()).Forget(t.Context(), &dedupv1.ForgetRequest{
		Note: "n", Selector: &dedupv1.RecordSelector{Choice: &dedupv1.RecordSelector_Namespace{Namespace: "bench"}},
	})
	require.NoError(t, err)
	require.EqualValues(t, len(w.effects), forgot.GetRecords())
	require.EqualValues(t, len(w.effects), forgot.GetDeadLetters())
}

type replayWorld struct {
	dedup   dedupv1.DedupServiceClient
	dead    dedupv1.DeadLetterServiceClient
	effects [30]atomic.Int64
	index   map[string]int // by key
}

// run does what a handler's interceptor does, and reports whether it was answered
// from the record.
func (w *replayWorld) run(ctx context.Context, req *dedupv1.ReserveRequest) (done bool, err error) {
	req.Wait = durationpb.New(20e9)
	res, err := w.dedup.Reserve(ctx, req)
	if err != nil || res.GetGranted() == nil {
		return res.GetCompleted() != nil, err
	}
	w.effects[w.index[string(req.GetIdentity().GetKey())]].Add(1)
	id := req.GetIdentity()
	if res.GetReplayed() != nil {
		id = res.GetReplayed()
	}
	_, err = w.dedup.Complete(ctx, &dedupv1.CompleteRequest{
		Identity: id, AttemptId: req.GetAttemptId(), Fence: res.GetGranted().GetFence(), Outcome: &dedupv1.Outcome{},
	})
	return false, err
}

// replay claims, sends and settles until nothing is left to claim. A forgetful
// replayer asks for every claim twice.
func (w *replayWorld) replay(ctx context.Context, forgetful bool) error {
	for {
		claim := &dedupv1.ClaimRequest{Token: random(), Limit: 4}
		res, err := w.dead.Claim(ctx, claim)
		if err == nil && forgetful {
			res, err = w.dead.Claim(ctx, claim)
		}
		if err != nil || len(res.GetEntries()) == 0 {
			return err
		}
		for _, e := range res.GetEntries() {
			req := &dedupv1.ReserveRequest{
				Identity: e.GetIdentity(), AttemptId: random(), Fingerprints: []*dedupv1.Fingerprint{{Version: 1, Digest: make([]byte, 32)}},
				Replay: &dedupv1.ReplayClaim{EntryId: e.GetEntryId(), Token: claim.GetToken()},
			}
			req.Identity.Caller = []byte("replayer")
			result := dedupv1.ReplayResult_REPLAY_RESULT_REPLAYED
			done, err := w.run(ctx, req)
			if err != nil {
				return err
			}
			if done {
				result = dedupv1.ReplayResult_REPLAY_RESULT_ALREADY_DONE
			}
			settle := &dedupv1.SettleRequest{EntryId: e.GetEntryId(), Token: claim.GetToken(), Result: result}
			if _, err := w.dead.Settle(ctx, settle); err != nil {
				return err
			}
		}
	}
}
