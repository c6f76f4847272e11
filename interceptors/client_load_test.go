package interceptors_test

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	demov1 "github.com/dedupd/dedupd/gen/dedup/demo/v1"
	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors"
	"github.com/dedupd/dedupd/interceptors/policy"
)

// isDown is a handler whose service is overloaded.
func isDown(context.Context, int, *demov1.ChargeRequest) (*demov1.ChargeResponse, error) {
	return nil, interceptors.NotApplied(errDown)
}

// together makes n calls at once and returns their errors.
func together(n int, call func(i int) error) []error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { errs[i] = call(i) })
	}
	wg.Wait()
	return errs
}

func TestTheRetryBudgetIsAShareOfTheActiveCalls(t *testing.T) { // E10
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var spent atomic.Int64
		w := newWorld(t, setup{client: []interceptors.ClientOption{
			interceptors.WithoutBreaker(), interceptors.WithMaxAttempts(2),
			interceptors.WithCallObserver(interceptors.CallObserver{
				BudgetSpent: func(context.Context, string) { spent.Add(1) },
			}),
		}})
		w.handle = func(ctx context.Context, n int, req *demov1.ChargeRequest) (*demov1.ChargeResponse, error) {
			if n <= 100 { // all of them are active, and fail at once
				pass(time.Minute / 2)
				return isDown(ctx, n, req)
			}
			return receipt(1), nil
		}
		errs := together(100, func(i int) error {
			_, err := w.client.Charge(t.Context(), order(), interceptors.WithKey(strconv.Itoa(i)))
			return err
		})
		failed := 0
		for _, err := range errs {
			if err != nil {
				failed++
				require.Equal(t, codes.Unavailable, status.Code(err))
				_, refused := interceptors.ReasonOf(err)
				require.False(t, refused, "the original error, not one of ours")
			}
		}
		require.Equal(t, 80, failed)
		require.Equal(t, 120, w.called())
		require.EqualValues(t, 80, spent.Load())
	})
}

func TestConnectionsCanShareOneRetryBudget(t *testing.T) { // E09, E10
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		budget, err := policy.NewBudget(policy.BudgetSettings{})
		require.NoError(t, err)
		var tries atomic.Int64
		options := func(way interceptors.ClientOption) []interceptors.ClientOption {
			return []interceptors.ClientOption{
				way, interceptors.WithoutBreaker(), interceptors.WithMaxAttempts(2),
				interceptors.WithCallObserver(interceptors.CallObserver{Attempt: func(context.Context, string, int) { tries.Add(1) }}),
			}
		}
		// Ten calls each over two connections, which fail together.
		fail := func(way interceptors.ClientOption) (retries int64) {
			tries.Store(0)
			var clients []demov1.PaymentsServiceClient
			for range 2 {
				w := newWorld(t, setup{client: options(way)})
				w.handle = func(ctx context.Context, n int, req *demov1.ChargeRequest) (*demov1.ChargeResponse, error) {
					pass(time.Second)
					return isDown(ctx, n, req)
				}
				clients = append(clients, w.client)
			}
			together(20, func(i int) error {
				_, err := clients[i%2].Charge(t.Context(), order(), interceptors.WithKey(strconv.Itoa(i)))
				return err
			})
			return tries.Load() - 20
		}
		require.EqualValues(t, 3+3, fail(interceptors.WithBudget(policy.BudgetSettings{})), "the least of each connection")
		require.EqualValues(t, 4, fail(interceptors.WithSharedBudget(budget)), "a fifth of all twenty")
		active, retrying := budget.Load()
		require.Zero(t, active)
		require.Zero(t, retrying)
		_, err = interceptors.ClientOptions(interceptors.WithSharedBudget(nil))
		require.ErrorContains(t, err, "shared budget is nil")
	})
}

func TestALoneCallStillGetsItsRetries(t *testing.T) { // E10
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{client: []interceptors.ClientOption{interceptors.WithBudget(policy.BudgetSettings{Minimum: 1})}})
		w.handle = fails(interceptors.NotApplied(errDown), interceptors.NotApplied(errDown))
		for _, key := range []string{"a", "b"} { // permits come back
			_, err := w.client.Charge(t.Context(), order(), interceptors.WithKey(key))
			require.NoError(t, err)
		}
		require.Equal(t, 4, w.called())
	})
}

func TestEveryConnectionHasABudgetOfItsOwn(t *testing.T) { // E10
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{})
		w.handle = isDown
		opts, err := interceptors.ClientOptions(
			interceptors.WithoutBreaker(), interceptors.WithMaxAttempts(2), interceptors.WithBudget(policy.BudgetSettings{Minimum: 1}))
		require.NoError(t, err)
		clients := make([]demov1.PaymentsServiceClient, 2)
		for i := range clients {
			conn := w.dialWith(t, opts)
			defer func() { require.NoError(t, conn.Close()) }()
			clients[i] = demov1.NewPaymentsServiceClient(conn)
		}
		together(2, func(i int) error {
			_, err := clients[i].Charge(t.Context(), order(), interceptors.WithKey(strconv.Itoa(i)))
			return err
		})
		require.Equal(t, 4, w.called())
		// Of two calls of one connection only one gets a retry.
		together(2, func(i int) error {
			_, err := clients[0].Charge(t.Context(), order(), interceptors.WithKey("one "+strconv.Itoa(i)))
			return err
		})
		require.Equal(t, 4+3, w.called())
	})
}

// trip makes the service ill until its breaker opens.
func trip(t *testing.T, w *world) {
	t.Helper()
	healthy := w.handle
	w.handle = isDown
	for i := range policy.DefaultBreakerMinCalls {
		_, err := w.client.Charge(t.Context(), order(), interceptors.WithKey("ill "+strconv.Itoa(i)), interceptors.WithMaxAttempts(1))
		require.Equal(t, codes.Unavailable, status.Code(err))
	}
	w.handle = healthy
}

func TestAnOpenBreakerIsWaitedFor(t *testing.T) { // F01, E09
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var held, sent atomic.Int64
		w := newWorld(t, setup{client: []interceptors.ClientOption{interceptors.WithCallObserver(interceptors.CallObserver{
			BreakerOpen: func(context.Context, string) { held.Add(1) },
			Attempt:     func(context.Context, string, int) { sent.Add(1) },
		})}})
		trip(t, w)
		before := w.called()

		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := w.client.Charge(ctx, order(), interceptors.WithKey("hasty"))
		requireReason(t, err, codes.Unavailable, dedupv1.Reason_REASON_BREAKER_OPEN)
		require.NotErrorIs(t, err, interceptors.ErrOutcomeUnknown, "nothing was sent")
		require.Zero(t, time.Since(start), "no wait that would outlast the deadline")
		require.Equal(t, before, w.called())

		_, err = w.client.Charge(t.Context(), order(), interceptors.WithKey("patient"))
		require.NoError(t, err)
		require.GreaterOrEqual(t, time.Since(start), 4*time.Second, "5 s ± 20 %")
		require.Equal(t, before+1, w.called())
		require.EqualValues(t, 2, held.Load(), "each was held back once, not in a tight loop")
		require.EqualValues(t, w.called(), sent.Load(), "what is held back is not an attempt that was sent")
	})
}

func TestBeingHeldBackUsesUpAttempts(t *testing.T) { // F01
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var held atomic.Int64
		w := newWorld(t, setup{client: []interceptors.ClientOption{
			interceptors.WithBreaker(policy.BreakerSettings{OpenFor: 10 * time.Second, Probes: 1, MinCalls: policy.DefaultBreakerMinCalls}),
			interceptors.WithCallObserver(interceptors.CallObserver{BreakerOpen: func(context.Context, string) { held.Add(1) }}),
		}})
		trip(t, w)
		w.handle = takes(5 * time.Minute) // the probe hangs
		pass(13 * time.Second)
		go func() {
			_, _ = w.client.Charge(t.Context(), order(), interceptors.WithKey("probe"), interceptors.WithMaxAttempts(1))
		}()
		synctest.Wait()
		_, err := w.client.Charge(t.Context(), order(), interceptors.WithKey("k"), interceptors.WithMaxAttempts(3))
		requireReason(t, err, codes.Unavailable, dedupv1.Reason_REASON_BREAKER_OPEN)
		require.EqualValues(t, 3, held.Load())
		pass(5 * time.Minute)
	})
}

func TestTheBreakerOpensOnlyForSignsOfAnIllServer(t *testing.T) { // F01
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{client: []interceptors.ClientOption{interceptors.WithMaxAttempts(1)}})
		for i, code := range []codes.Code{
			codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.OutOfRange, codes.ResourceExhausted, codes.Aborted,
		} {
			w.handle = func(context.Context, int, *demov1.ChargeRequest) (*demov1.ChargeResponse, error) {
				return nil, interceptors.NotApplied(status.Error(code, "no"))
			}
			for n := range 50 {
				_, err := w.client.Charge(t.Context(), order(), interceptors.WithKey(strconv.Itoa(1000*i+n)))
				require.Equal(t, code, status.Code(err))
			}
		}
		w.handle = takes(time.Minute)
		for i := range 50 {
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(time.Second, cancel)
			_, err := w.client.Charge(ctx, order(), interceptors.WithKey("cancelled "+strconv.Itoa(i)))
			require.Equal(t, codes.Canceled, status.Code(err))
		}
		gone, cancel := context.WithTimeout(t.Context(), -1)
		defer cancel()
		for i := range 50 {
			_, err := w.client.Charge(gone, order(), interceptors.WithKey("gone "+strconv.Itoa(i)))
			require.Equal(t, codes.DeadlineExceeded, status.Code(err))
		}
		synctest.Wait() // handlers of the calls that were left have begun
		w.handle = nil
		_, err := w.client.Charge(t.Context(), order(), interceptors.WithKey("well"))
		require.NoError(t, err)
		other := order()
		other.Amount++
		for range 50 {
			_, err = w.client.Charge(t.Context(), other, interceptors.WithKey("well"))
			requireReason(t, err, codes.FailedPrecondition, dedupv1.Reason_REASON_KEY_REUSED)
		}
		_, err = w.client.Charge(t.Context(), order(), interceptors.WithKey("still well"))
		require.NoError(t, err)
		pass(time.Minute)

		w.handle = takes(time.Minute) // it hangs: deadlines pass after the request was sent
		for i := range policy.DefaultBreakerMinCalls {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			_, err := w.client.Charge(ctx, order(), interceptors.WithKey("hangs "+strconv.Itoa(i)))
			require.Equal(t, codes.DeadlineExceeded, status.Code(err))
			cancel()
		}
		_, err = w.client.Charge(t.Context(), order(), interceptors.WithKey("held back"))
		requireReason(t, err, codes.Unavailable, dedupv1.Reason_REASON_BREAKER_OPEN)
		pass(time.Minute)
	})
}

func TestFewProbesReachAServerThatMayBeWellAgain(t *testing.T) { // F02
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{client: []interceptors.ClientOption{interceptors.WithMaxAttempts(1)}})
		trip(t, w)
		pass(7 * time.Second)
		before := w.called()
		w.handle = takes(time.Second)
		errs := together(100, func(i int) error {
			_, err := w.client.Charge(t.Context(), order(), interceptors.WithKey(strconv.Itoa(i)))
			return err
		})
		require.Equal(t, before+policy.DefaultBreakerProbes, w.called())
		held := 0
		for _, err := range errs {
			if err != nil {
				held++
				requireReason(t, err, codes.Unavailable, dedupv1.Reason_REASON_BREAKER_OPEN)
			}
		}
		require.Equal(t, 100-policy.DefaultBreakerProbes, held)
		errs = together(100, func(i int) error { // the probes found it well
			_, err := w.client.Charge(t.Context(), order(), interceptors.WithKey("after "+strconv.Itoa(i)))
			return err
		})
		require.Equal(t, make([]error, 100), errs)
	})
}

func TestATryOverAnotherConnectionCountsAsSent(t *testing.T) { // E07
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{})
		conn := w.dial(t, []interceptors.ClientOption{
			interceptors.WithMaxAttempts(1),
			interceptors.PerTry(func(context.Context, string, any, any, *grpc.ClientConn, grpc.UnaryInvoker, ...grpc.CallOption) error {
				return errDown // whatever it did, it was not over the connection that we watch
			}),
		})
		defer func() { require.NoError(t, conn.Close()) }()
		_, err := demov1.NewPaymentsServiceClient(conn).Charge(t.Context(), order(), interceptors.WithKey("k"))
		require.ErrorIs(t, err, interceptors.ErrOutcomeUnknown)

		dead, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		w.refuse() // nobody listens any more: what is watched and never sent is known not to have happened
		_, err = w.client.Charge(dead, order(), interceptors.WithKey("k"), interceptors.WithMaxAttempts(1))
		require.Equal(t, codes.Unavailable, status.Code(err))
		require.NotErrorIs(t, err, interceptors.ErrOutcomeUnknown)
	})
}

func TestSettingsThatWouldProtectNothingAreRefusedAtConstruction(t *testing.T) { // E01, E10
	t.Parallel()
	_, err := interceptors.ClientOptions(
		interceptors.WithBudget(policy.BudgetSettings{Ratio: 2}), interceptors.WithBreaker(policy.BreakerSettings{Probes: -1}))
	require.ErrorContains(t, err, "budget ratio")
	require.ErrorContains(t, err, "probes")
	_, err = interceptors.ClientOptions(interceptors.WithBackoff(policy.Backoff{}), interceptors.WithErrors(policy.Table{}))
	require.ErrorContains(t, err, "policy.NewBackoff")
	require.ErrorContains(t, err, "policy.Default")
	_, err = interceptors.ClientOptions(interceptors.WithoutBudget(), interceptors.WithoutBreaker())
	require.NoError(t, err)
}
