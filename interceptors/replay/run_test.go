package replay_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors"
	"github.com/dedupd/dedupd/interceptors/replay"
)

// G01: each effect once, under its first caller's record, whoever replays.
func TestAReplayerWorksOffWhatIsParked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var ids [][]byte
		for n := range 10 {
			ids = append(ids, w.park(fmt.Sprint("order ", n)))
		}
		w.set(func() { w.takes = time.Second })
		stop := w.run(replay.Config{Concurrency: 3})
		other := w.run(replay.Config{Concurrency: 3}) // another process of the owner
		pass(time.Minute)
		late := w.park("late")
		pass(time.Minute)
		stop()
		other()
		for n, id := range ids {
			require.Equal(t, 1, w.ran(fmt.Sprint("order ", n)))
			w.requireResult(id, replayedResult)
		}
		w.requireResult(late, replayedResult)
		require.LessOrEqual(t, w.crowd, 6)
		require.NotContains(t, w.callers, "replayer")
		require.Contains(t, w.callers, "ada")
	})
}

// G01: attempts count when the handler was called, and a failure waits longer
// each time.
func TestAFailedEntryIsParkedAgainAndWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.set(func() {
			w.fault = func(n int) error {
				if n <= 3 {
					return interceptors.NotApplied(status.Error(codes.Aborted, "not now"))
				}
				return nil
			}
		})
		id := w.park("k")
		stop := w.run(replay.Config{})
		pass(time.Millisecond) // the wait is random, up to minutes
		require.Equal(t, 1, w.ran("k"), "not again at once")
		w.requireResult(id, failedResult)
		require.Zero(t, w.entry(id).GetCode(), "what it was parked for stays")
		var told spb.Status
		require.NoError(t, proto.Unmarshal(w.entry(id).GetReplayStatus(), &told))
		require.Equal(t, int32(codes.Aborted), told.GetCode())
		require.EqualValues(t, 1, w.entry(id).GetReplays())
		pass(time.Hour)
		stop()
		require.Equal(t, 4, w.ran("k"))
		w.requireResult(id, replayedResult)
	})
}

func TestWhileTheServiceIsDownOneAtATimeAsks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		ids := make([][]byte, 0, 40)
		for n := range 40 {
			ids = append(ids, w.park(fmt.Sprint(n)))
		}
		var told []bool
		w.set(func() { w.down = true })
		stop := w.run(replay.Config{Concurrency: 8, Observer: replay.Observer{Down: func(down bool) { told = append(told, down) }}})
		pass(2 * time.Minute)
		w.set(func() {
			require.Less(t, len(w.sent), 30, "eight at first, then one by one with growing waits")
			require.Equal(t, []bool{true}, told)
			w.down = false
		})
		require.Zero(t, w.entry(ids[0]).GetReplays(), "nothing was tried")
		pass(time.Hour)
		stop()
		require.Equal(t, []bool{true, false}, told)
		for n, id := range ids {
			require.Equal(t, 1, w.ran(fmt.Sprint(n)))
			w.requireResult(id, replayedResult)
		}
	})
}

func TestTheRateIsKept(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		for n := range 20 {
			w.park(fmt.Sprint(n))
		}
		stop := w.run(replay.Config{Rate: 2, Concurrency: 10})
		pass(5 * time.Second)
		stop()
		w.set(func() { require.InDelta(t, 10, len(w.sent), 2) })
	})
}

func TestOnlyWhatIsAskedForIsReplayed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		first, second, other := w.park("1"), w.park("2"), w.parkTo("/shop.v1.Shop/Buy", "3")
		stop := w.run(replay.Config{RequestedOnly: true})
		pass(time.Minute)
		require.Zero(t, w.ran("1"))
		_, err := w.kit.DeadLetters().Requeue(t.Context(), &dedupv1.RequeueRequest{EntryIds: [][]byte{second}, Note: "fixed"})
		require.NoError(t, err)
		pass(time.Minute)
		stop()
		w.requireResult(second, replayedResult)
		w.requireResult(first, dedupv1.ReplayResult_REPLAY_RESULT_UNSPECIFIED)

		stop = w.run(replay.Config{Operations: []string{"/none.v1.None/Such", charge}})
		pass(time.Minute)
		stop()
		w.requireResult(first, replayedResult)
		w.requireResult(other, dedupv1.ReplayResult_REPLAY_RESULT_UNSPECIFIED)
	})
}

func TestAReplayerThatStopsLetsItsCallsEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.set(func() { w.takes = 10 * time.Second })
		id := w.park("k")
		pass(time.Second) // entries are taken in the order of parking
		w.park("not begun")
		stop := w.run(replay.Config{Concurrency: 1})
		pass(time.Second)
		began := time.Now()
		stop()
		require.Equal(t, 9*time.Second, time.Since(began).Round(time.Second))
		w.requireResult(id, replayedResult)
		require.Zero(t, w.ran("not begun"))
	})
}

func TestAReplayerSaysWhatItMisses(t *testing.T) {
	t.Parallel()
	dl := dedupv1.NewDeadLetterServiceClient(nil)
	for want, c := range map[string]replay.Config{
		"DeadLetterService": {},
		"connection":        {DeadLetters: dl},
		"more than zero":    {DeadLetters: dl, Conn: &world{}, Concurrency: -1},
		"call time":         {DeadLetters: dl, Conn: &world{}, CallTime: time.Hour},
	} {
		_, err := replay.New(c)
		require.ErrorContains(t, err, want)
	}
	r, err := replay.New(replay.Config{DeadLetters: dl, Conn: &world{}})
	require.NoError(t, err)
	require.ErrorContains(t, r.Run(t.Context()), "namespace")
}
