package replay_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	demov1 "github.com/dedupd/dedupd/gen/dedup/demo/v1"
	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors"
	"github.com/dedupd/dedupd/interceptors/dedupdtest"
	"github.com/dedupd/dedupd/interceptors/replay"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const charge = demov1.PaymentsService_Charge_FullMethodName

// world is a payments service with dead letters of caller ada, and a network to
// it that can be cut.
type world struct {
	demov1.UnimplementedPaymentsServiceServer
	t    *testing.T
	kit  *dedupdtest.Kit
	conn grpc.ClientConnInterface

	mu      sync.Mutex
	fault   func(n int) error // of the n-th run; nil: none
	runs    map[string]int    // by order
	sent    []time.Time       // calls that were sent
	busy    int
	crowd   int // the most at a time
	down    bool
	deaf    bool          // answers are lost
	takes   time.Duration // a run
	callers []string      // of the runs, as FromReplay tells them
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, kit: dedupdtest.New(t), runs: map[string]int{}}
	w.conn = w.kit.Serve(func(s grpc.ServiceRegistrar) {
		demov1.RegisterPaymentsServiceServer(s, w)
		s.RegisterService(&grpc.ServiceDesc{
			ServiceName: "shop.v1.Shop", HandlerType: (*any)(nil),
			Methods: []grpc.MethodDesc{{MethodName: "Buy", Handler: buy}},
		}, w)
	}, interceptors.WithCaller(callerOf))
	return w
}

// buy is a method that no proto file tells of.
func buy(srv any, ctx context.Context, dec func(any) error, around grpc.UnaryServerInterceptor) (any, error) { //nolint:revive // gRPC's order
	req := &demov1.ChargeRequest{}
	if err := dec(req); err != nil {
		return nil, err
	}
	return around(ctx, req, &grpc.UnaryServerInfo{Server: srv, FullMethod: "/shop.v1.Shop/Buy"}, func(ctx context.Context, req any) (any, error) {
		w, _ := srv.(*world)
		order, _ := req.(*demov1.ChargeRequest)
		return w.Charge(ctx, order)
	})
}

func callerOf(ctx context.Context) (string, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	return strings.Join(append(md["authorization"], "ada")[:1], ""), nil
}

func (w *world) Charge(ctx context.Context, q *demov1.ChargeRequest) (*demov1.ChargeResponse, error) {
	w.mu.Lock()
	w.runs[q.GetOrder()]++
	n, fault, takes := w.runs[q.GetOrder()], w.fault, w.takes
	w.busy++
	w.crowd = max(w.crowd, w.busy)
	from, _ := interceptors.FromReplay(ctx)
	w.callers = append(w.callers, string(from.Caller))
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.busy--
	}()
	if takes > 0 {
		<-time.After(takes)
	}
	if fault != nil {
		if err := fault(n); err != nil {
			return nil, err
		}
	}
	return &demov1.ChargeResponse{ChargeId: fmt.Sprint("charge ", n), Order: q.GetOrder()}, nil
}

// Invoke is the replayer's way to the service.
func (w *world) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	w.mu.Lock()
	w.sent = append(w.sent, time.Now())
	down, deaf := w.down, w.deaf
	w.mu.Unlock()
	if down {
		return status.Error(codes.Unavailable, "connection refused")
	}
	err := w.conn.Invoke(metadata.AppendToOutgoingContext(ctx, "authorization", "replayer"), method, args, reply, opts...)
	if deaf {
		return status.Error(codes.DeadlineExceeded, "the answer was lost")
	}
	return err
}

func (w *world) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, errors.New("no streams")
}

func (w *world) set(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

func (w *world) ran(order string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.runs[order]
}

// park parks a charge of ada's, and returns its id.
func (w *world) park(order string) []byte { return w.parkTo(charge, order) }

func (w *world) parkTo(method, order string) []byte {
	w.t.Helper()
	value, err := proto.Marshal(&demov1.ChargeRequest{Order: order, Amount: 12, Currency: "EUR"})
	require.NoError(w.t, err)
	parkID := make([]byte, 16)
	_, err = rand.Read(parkID)
	require.NoError(w.t, err)
	resp, err := w.kit.DeadLetters().Park(w.t.Context(), &dedupv1.ParkRequest{
		Record: &dedupv1.ParkRequest_Identity{Identity: &dedupv1.Identity{
			Namespace: dedupdtest.Namespace, Operation: method, Caller: []byte("ada"), Key: []byte(order),
		}},
		ParkId: parkID, Kind: dedupv1.DeadLetterKind_DEAD_LETTER_KIND_EXHAUSTED, Method: method,
		Request: &dedupv1.Response{TypeUrl: "type.googleapis.com/dedup.demo.v1.ChargeRequest", Value: value},
	})
	require.NoError(w.t, err)
	return resp.GetEntry().GetEntryId()
}

func (w *world) replayer(c replay.Config) *replay.Replayer {
	w.t.Helper()
	c.DeadLetters, c.Conn, c.Namespace = w.kit.DeadLetters(), w, dedupdtest.Namespace
	if c.Rate == 0 {
		c.Rate = 1000
	}
	r, err := replay.New(c)
	require.NoError(w.t, err)
	return r
}

// run runs a replayer in the background; stop ends it and waits for it.
func (w *world) run(c replay.Config) (stop func()) {
	r := w.replayer(c)
	ctx, cancel := context.WithCancel(w.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	w.t.Cleanup(cancel)
	return func() {
		cancel()
		require.NoError(w.t, <-ended)
	}
}

func (w *world) entry(id []byte) *dedupv1.DeadLetter {
	w.t.Helper()
	resp, err := w.kit.DeadLetters().Get(w.t.Context(), &dedupv1.DeadLetterServiceGetRequest{EntryId: id})
	require.NoError(w.t, err)
	return resp.GetEntry()
}

func (w *world) requireResult(id []byte, want dedupv1.ReplayResult) {
	w.t.Helper()
	e := w.entry(id)
	require.Equal(w.t, want.String(), e.GetResult().String())
}

// replayed replays the entries once.
func (w *world) replayed(r *replay.Replayer, ids ...[]byte) map[string]replay.Result {
	w.t.Helper()
	got := map[string]replay.Result{}
	require.NoError(w.t, r.Replay(w.t.Context(), ids, func(res replay.Result) { got[string(res.EntryID)] = res }))
	return got
}

// pass lets time go by; every test runs in a synctest bubble.
func pass(d time.Duration) { <-time.After(d) }

const (
	replayedResult = dedupv1.ReplayResult_REPLAY_RESULT_REPLAYED
	failedResult   = dedupv1.ReplayResult_REPLAY_RESULT_FAILED
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
		pass(30 * time.Second)
		require.Equal(t, 1, w.ran("k"), "not again at once")
		w.requireResult(id, failedResult)
		require.Equal(t, int32(codes.Aborted), w.entry(id).GetCode())
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

// keyless is a service that was never given the interceptors.
type keyless struct{ *world }

func (k keyless) Invoke(ctx context.Context, _ string, args, reply any, _ ...grpc.CallOption) error {
	order, _ := args.(*demov1.ChargeRequest)
	answer, err := k.Charge(ctx, order)
	if into, ok := reply.(*demov1.ChargeResponse); ok && err == nil {
		proto.Merge(into, answer)
	}
	return err
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
