package replay_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	demov1 "github.com/dedupd/dedupd/gen/dedup/demo/v1"
	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors"
	"github.com/dedupd/dedupd/interceptors/dedupdtest"
	"github.com/dedupd/dedupd/interceptors/replay"
)

func TestARequestIsSentAsItWasStoredWhereNoCodeKnowsIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		id := w.parkTo("/shop.v1.Shop/Buy", "raw")
		res := w.replayed(w.replayer(replay.Config{}), id)[string(id)]
		require.NoError(t, res.Err)
		require.Equal(t, replay.Replayed, res.Outcome)
		require.Equal(t, 1, w.ran("raw"))
	})
}

func TestWorkThatWasDoneMeanwhileIsNotDoneAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		done, later := w.park("done"), w.park("later")
		client := demov1.NewPaymentsServiceClient(w.conn)
		_, err := client.Charge(metadata.AppendToOutgoingContext(t.Context(), interceptors.HeaderKey, "done"),
			&demov1.ChargeRequest{Order: "done", Amount: 12, Currency: "EUR"})
		require.NoError(t, err) // ada's own retry
		got := w.replayed(w.replayer(replay.Config{}), done, later, make([]byte, 16))
		require.Equal(t, replay.Superseded, got[string(done)].Outcome)
		require.Equal(t, replay.Replayed, got[string(later)].Outcome)
		require.Equal(t, replay.Failed, got[string(make([]byte, 16))].Outcome)
		require.Equal(t, 1, w.ran("done"))
		got = w.replayed(w.replayer(replay.Config{}), later)
		require.Equal(t, replay.Superseded, got[string(later)].Outcome, "it is settled")
	})
}

func TestTwoOperatorsAtOnceRunEachOnce(t *testing.T) { // G01
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.set(func() { w.takes = time.Second })
		id := w.park("k")
		outcomes := make(chan replay.Outcome, 2)
		for range 2 {
			go func() {
				outcomes <- w.replayed(w.replayer(replay.Config{Operator: true}), id)[string(id)].Outcome
			}()
		}
		require.ElementsMatch(t, []replay.Outcome{replay.Replayed, replay.SkippedLive}, []replay.Outcome{<-outcomes, <-outcomes})
		require.Equal(t, 1, w.ran("k"))
	})
}

func TestALostAnswerIsNotASecondRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		id := w.park("k")
		w.set(func() { w.deaf = true })
		res := w.replayed(w.replayer(replay.Config{}), id)[string(id)]
		require.Equal(t, replay.Replayed, res.Outcome, "the record knows better than the wire")
		require.NoError(t, res.Err)
		require.Equal(t, 1, w.ran("k"))
	})
}

func TestWhoeverWaitsForTheEndIsToldThatNobodyIsThere(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var ids [][]byte
		for n := range 20 {
			ids = append(ids, w.park(fmt.Sprint(n)))
		}
		w.set(func() { w.down = true })
		began := time.Now()
		got := w.replayed(w.replayer(replay.Config{Concurrency: 4}), ids...)
		require.Less(t, time.Since(began), 10*time.Second)
		require.Len(t, got, len(ids))
		for _, res := range got {
			require.Equal(t, replay.Failed, res.Outcome)
			require.Equal(t, codes.Unavailable, status.Code(res.Err))
		}
		w.set(func() { require.LessOrEqual(t, len(w.sent), 6) })
	})
}

func TestARunThatIsGoingOnIsLeftAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		id := w.park("k")
		w.set(func() { w.takes = 20 * time.Second })
		go func() {
			_, err := demov1.NewPaymentsServiceClient(w.conn).Charge(metadata.AppendToOutgoingContext(t.Context(), interceptors.HeaderKey, "k"),
				&demov1.ChargeRequest{Order: "k", Amount: 12, Currency: "EUR"})
			if err != nil {
				t.Error(err)
			}
		}()
		pass(time.Second)
		res := w.replayed(w.replayer(replay.Config{}), id)[string(id)]
		require.Equal(t, replay.SkippedLive, res.Outcome)
		pass(time.Minute)
		require.Equal(t, 1, w.ran("k"))
		w.requireResult(id, dedupv1.ReplayResult_REPLAY_RESULT_SUPERSEDED)
	})
}

func TestAFinalErrorIsOpenedForAnOperatorOnly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		id := w.park("k")
		w.set(func() {
			w.fault = func(n int) error {
				if n == 1 {
					return interceptors.Final(status.Error(codes.NotFound, "no such card"))
				}
				return nil
			}
		})
		for range 2 {
			res := w.replayed(w.replayer(replay.Config{}), id)[string(id)]
			require.Equal(t, replay.Failed, res.Outcome)
			require.Equal(t, codes.NotFound, status.Code(res.Err))
			require.Equal(t, 1, w.ran("k"))
		}
		res := w.replayed(w.replayer(replay.Config{Operator: true}), id)[string(id)]
		require.Equal(t, replay.Replayed, res.Outcome)
		require.Equal(t, 2, w.ran("k"))
	})
}

func TestWhatCannotBeSentIsNotSent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		id := w.parkTo("POST /orders", "k")
		res := w.replayed(w.replayer(replay.Config{}), id)[string(id)]
		require.Equal(t, replay.Failed, res.Outcome)
		require.ErrorContains(t, res.Err, "no gRPC method")
		w.set(func() { require.Empty(t, w.sent) })
	})
}

// A wrong target does the work without binding it to its record: it is noticed at
// the first answer, that entry is never sent again, and no other is sent there.
func TestAServiceThatLooksAtNoKeysIsSentOneEntryOnly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		r, err := replay.New(replay.Config{
			DeadLetters: w.kit.DeadLetters(), Conn: keyless{w}, Namespace: dedupdtest.Namespace, Rate: 1000,
		})
		require.NoError(t, err)
		a, b := w.park("a"), w.park("b")
		got := w.replayed(r, a, b)
		require.Equal(t, replay.Unprotected, got[string(a)].Outcome)
		require.ErrorContains(t, got[string(a)].Err, "does not look at keys")
		require.False(t, got[string(a)].Outcome.Done())
		require.Equal(t, replay.Failed, got[string(b)].Outcome)
		require.ErrorContains(t, got[string(b)].Err, "nothing was sent")
		require.Equal(t, dedupv1.DeadLetterState_DEAD_LETTER_STATE_RESOLVED, w.entry(a).GetState())
		require.Equal(t, dedupv1.DeadLetterState_DEAD_LETTER_STATE_PARKED, w.entry(b).GetState())
		require.ErrorContains(t, r.Run(t.Context()), "does not look at keys")
		require.Equal(t, []int{1, 0}, []int{w.ran("a"), w.ran("b")})
	})
}

func TestOfAnEntryAndTheOneItWasEditedFromOneIsSent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		r := w.replayer(replay.Config{})
		parent := w.park("a")
		resp, err := w.kit.DeadLetters().Park(t.Context(), &dedupv1.ParkRequest{
			Record: &dedupv1.ParkRequest_Identity{Identity: &dedupv1.Identity{
				Namespace: dedupdtest.Namespace, Operation: charge, Caller: []byte("ada"), Key: []byte("edited"),
			}},
			ParkId: parent, Kind: dedupv1.DeadLetterKind_DEAD_LETTER_KIND_EXHAUSTED, Method: charge, ParentId: parent,
			Request: &dedupv1.Response{TypeUrl: "type.googleapis.com/dedup.demo.v1.ChargeRequest"},
		})
		require.NoError(t, err)
		child := resp.GetEntry().GetEntryId()
		res := w.replayed(r, child)[string(child)]
		require.Equal(t, replay.Failed, res.Outcome)
		require.ErrorContains(t, res.Err, "open still")
		require.Equal(t, replay.Replayed, w.replayed(r, parent)[string(parent)].Outcome)
		res = w.replayed(r, child)[string(child)]
		require.Equal(t, replay.Failed, res.Outcome)
		require.ErrorContains(t, res.Err, "has been done")
		require.Len(t, w.runs, 1)
		require.Zero(t, w.entry(child).GetReplays(), "it was never tried")
	})
}
