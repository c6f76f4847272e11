package interceptors_test

import (
	"context"
	"strings"
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
	"github.com/dedupd/dedupd/interceptors/guard"
	"github.com/dedupd/dedupd/interceptors/policy"
)

// provider is a service that knows nothing of keys, and a client that guards its
// calls.
func provider(t *testing.T, g interceptors.Guarded, opts ...interceptors.ClientOption) (*world, demov1.PaymentsServiceClient) {
	t.Helper()
	w := newWorld(t, setup{server: []interceptors.ServerOption{
		interceptors.WithMethod(charge, interceptors.Method{Policy: &dedupv1.MethodPolicy{Keys: dedupv1.KeyRule_KEY_RULE_OFF}}),
	}})
	engine, err := guard.New(guard.Config{Dedup: dedupv1.NewDedupServiceClient(w), Namespace: "test"})
	require.NoError(t, err)
	conn := w.dial(t, append(opts, interceptors.WithGuarded(engine, charge, g), interceptors.WithIdentity("test", "ada")))
	t.Cleanup(func() {
		require.NoError(t, conn.Close())
		engine.Close()
	})
	return w, demov1.NewPaymentsServiceClient(conn)
}

func TestAGuardedCallHappensOnceAndItsAnswerIsKept(t *testing.T) { // A01
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, client := provider(t, interceptors.Guarded{})
		w.arrived = func(ctx context.Context, _ int) {
			md, _ := metadata.FromIncomingContext(ctx)
			for name := range md {
				require.False(t, strings.HasPrefix(name, "idempotency-"), "the callee knows nothing of keys: %s", name)
			}
		}
		w.handle = takes(time.Second)
		var answers [10]*demov1.ChargeResponse
		errs := together(len(answers), func(i int) (err error) {
			answers[i], err = client.Charge(t.Context(), order(), interceptors.WithKey("k"))
			return err
		})
		require.Equal(t, make([]error, len(answers)), errs)
		for _, answer := range answers {
			require.Equal(t, "x", answer.GetChargeId())
		}
		require.Equal(t, 1, w.ran())
		require.Equal(t, completed, w.state(t, "k"))

		other := order()
		other.Amount++
		_, err := client.Charge(t.Context(), other, interceptors.WithKey("k"))
		requireReason(t, err, codes.FailedPrecondition, dedupv1.Reason_REASON_KEY_REUSED)
		require.Equal(t, 1, w.ran())
	})
}

func TestAGuardedCallOfUnknownOutcomeIsNotSentAgain(t *testing.T) { // E07
	t.Parallel()
	for name, c := range map[string]struct {
		guarded interceptors.Guarded
		fault   func(w *world)
	}{
		"its reply is lost": {fault: func(w *world) { w.cutAfter = func(int) bool { return true } }},
		"the callee does not say what ABORTED means": {fault: func(w *world) {
			w.handle = fails(interceptors.NotApplied(status.Error(codes.Aborted, "no")))
		}},
		"the callee fails": {fault: func(w *world) { w.handle = fails(status.Error(codes.Internal, "no")) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w, client := provider(t, c.guarded)
				c.fault(w)
				_, err := client.Charge(t.Context(), order(), interceptors.WithKey("k"))
				require.ErrorIs(t, err, interceptors.ErrOutcomeUnknown)
				_, known := interceptors.RecordIDOf(err)
				require.True(t, known)
				require.Equal(t, unknown, w.state(t, "k"))
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
				defer cancel()
				_, err = client.Charge(ctx, order(), interceptors.WithKey("k"))
				requireReason(t, err, codes.FailedPrecondition, dedupv1.Reason_REASON_OUTCOME_UNKNOWN)
				require.ErrorIs(t, err, interceptors.ErrOutcomeUnknown)
				require.Equal(t, 1, w.called())
			})
		})
	}
}

func TestAGuardedCallThatAppliedNothingIsTriedAgain(t *testing.T) { // E07
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, client := provider(t, interceptors.Guarded{RefusalsApplyNothing: true})
		w.handle = fails(status.Error(codes.Aborted, "try again"), status.Error(codes.ResourceExhausted, "slow down"))
		resp, err := client.Charge(t.Context(), order(), interceptors.WithKey("k"))
		require.NoError(t, err)
		require.Equal(t, "xxx", resp.GetChargeId())
		require.Equal(t, completed, w.state(t, "k"))

		w.handle = func(context.Context, int, *demov1.ChargeRequest) (*demov1.ChargeResponse, error) {
			return nil, status.Error(codes.InvalidArgument, "no such currency")
		}
		_, err = client.Charge(t.Context(), order(), interceptors.WithKey("mistyped"))
		require.Equal(t, codes.InvalidArgument, status.Code(err))
		require.Equal(t, released, w.state(t, "mistyped"))
		w.handle = nil
		corrected := order()
		corrected.Currency = "USD"
		_, err = client.Charge(t.Context(), corrected, interceptors.WithKey("mistyped"))
		require.NoError(t, err)
	})
}

func TestAGuardedCallIsSentAgainUnderTheProvidersKey(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, client := provider(t, interceptors.Guarded{Lease: time.Second, ProviderKeyHeader: "x-request-key", Rerun: true})
		var keys []string
		w.arrived = func(ctx context.Context, _ int) {
			md, _ := metadata.FromIncomingContext(ctx)
			keys = append(keys, md["x-request-key"]...)
			require.Empty(t, md[interceptors.HeaderKey])
		}
		w.cutAfter = func(n int) bool { return n == 1 }
		ctx := metadata.AppendToOutgoingContext(t.Context(), interceptors.HeaderKey, "k")
		_, err := client.Charge(ctx, order())
		require.NoError(t, err)
		require.Equal(t, completed, w.state(t, "k"))
		require.Len(t, keys, 2)
		require.Equal(t, keys[0], keys[1])
		require.Len(t, keys[0], 64, "the record's id: no two callers share it")
		_, err = client.Charge(t.Context(), order(), interceptors.WithKey("other"))
		require.NoError(t, err)
		require.NotEqual(t, keys[0], keys[2])
	})
}

func TestWithoutDedupdAGuardedCallIsNotSent(t *testing.T) { // H01
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, client := provider(t, interceptors.Guarded{})
		w.down.Store(true)
		_, err := client.Charge(t.Context(), order(), interceptors.WithKey("k"))
		requireReason(t, err, codes.Unavailable, dedupv1.Reason_REASON_STORE_UNAVAILABLE)
		require.NotErrorIs(t, err, interceptors.ErrOutcomeUnknown)
		require.Zero(t, w.called())
	})
	synctest.Test(t, func(t *testing.T) { // H02: it goes away once the call is made
		w, client := provider(t, interceptors.Guarded{})
		w.handle = func(_ context.Context, n int, _ *demov1.ChargeRequest) (*demov1.ChargeResponse, error) {
			w.down.Store(true)
			return receipt(n), nil
		}
		for range 3 {
			_, err := client.Charge(t.Context(), order(), interceptors.WithKey("k"))
			if err != nil {
				require.Equal(t, codes.Unavailable, status.Code(err))
			}
		}
		require.Equal(t, 1, w.ran())
		w.down.Store(false)
		pass(time.Minute) // the engine delivers what it could not
		require.Equal(t, completed, w.state(t, "k"))
	})
}

func TestAGuardedCallEndsWithItsCaller(t *testing.T) { // E03
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, client := provider(t, interceptors.Guarded{})
		w.handle = takes(time.Minute)
		start := time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		_, err := client.Charge(ctx, order(), interceptors.WithKey("a"))
		require.Equal(t, codes.Canceled, status.Code(err))
		require.ErrorIs(t, err, interceptors.ErrOutcomeUnknown)
		require.Equal(t, time.Second, time.Since(start))
		require.Equal(t, unknown, w.state(t, "a"))

		ctx, cancel = context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		_, err = client.Charge(ctx, order(), interceptors.WithKey("b"))
		require.Equal(t, codes.DeadlineExceeded, status.Code(err))
		require.Equal(t, 3*time.Second, time.Since(start))
		require.Equal(t, unknown, w.state(t, "b"))
		pass(time.Minute)
	})
}

func TestTheBreakerOfAGuardedCallLooksAtTheCallee(t *testing.T) { // F01
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, client := provider(t, interceptors.Guarded{}, interceptors.WithMaxAttempts(1),
			interceptors.WithBreaker(policy.BreakerSettings{MinCalls: 2}))
		w.down.Store(true) // dedupd is, the callee is not
		for range 5 {
			_, err := client.Charge(t.Context(), order())
			requireReason(t, err, codes.Unavailable, dedupv1.Reason_REASON_STORE_UNAVAILABLE)
		}
		w.down.Store(false)
		w.handle = isDown
		for range 2 {
			_, err := client.Charge(t.Context(), order())
			require.Equal(t, codes.Unavailable, status.Code(err))
		}
		asked := w.asked.Load()
		_, err := client.Charge(t.Context(), order())
		requireReason(t, err, codes.Unavailable, dedupv1.Reason_REASON_BREAKER_OPEN)
		require.Equal(t, 2, w.called())
		require.Equal(t, asked, w.asked.Load(), "nothing is reserved for what is not sent")
	})
}

func TestAGuardedCallOfAKeyedHandlerLeavesAKeyedEffect(t *testing.T) { // A04
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		down, client := provider(t, interceptors.Guarded{})
		w := newWorld(t, setup{server: []interceptors.ServerOption{byTable()}})
		w.handle = func(ctx context.Context, n int, _ *demov1.ChargeRequest) (*demov1.ChargeResponse, error) {
			if _, err := client.Charge(ctx, order()); err != nil {
				return nil, err
			}
			require.Equal(t, guard.LeftKeyed, guard.LeftBehind(ctx))
			if n == 1 {
				return nil, status.Error(codes.Unavailable, "the database is away")
			}
			return receipt(n), nil
		}
		_, err := w.client.Charge(t.Context(), order(), interceptors.WithKey("k"))
		require.NoError(t, err)
		require.Equal(t, 2, w.ran())
		require.Equal(t, 1, down.ran())
	})
}

func TestWhatGuardModeNeedsIsCheckedAtConstruction(t *testing.T) {
	t.Parallel()
	engine, err := guard.New(guard.Config{Dedup: dedupv1.NewDedupServiceClient(nil), Namespace: "test"})
	require.NoError(t, err)
	defer engine.Close()
	for says, option := range map[string]interceptors.ClientOption{
		"engine":           interceptors.WithGuarded(nil, charge, interceptors.Guarded{}),
		"name its header":  interceptors.WithGuarded(engine, charge, interceptors.Guarded{Rerun: true}),
		"lower case":       interceptors.WithGuarded(engine, charge, interceptors.Guarded{ProviderKeyHeader: "X-Key"}),
		"lease":            interceptors.WithGuarded(engine, charge, interceptors.Guarded{Lease: time.Hour}),
		"400 days":         interceptors.WithGuarded(engine, charge, interceptors.Guarded{Retention: -1}),
		"/package.Service": interceptors.WithGuarded(engine, "Charge", interceptors.Guarded{}),
	} {
		_, err := interceptors.ClientOptions(option)
		require.ErrorContains(t, err, says)
	}
}

// A guarded call is parked under its own record, and its replay runs once, under
// the first caller's.
func TestAGuardedCallIsParkedAndReplayed(t *testing.T) { // G01
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		way := &letters{}
		p, err := interceptors.NewParker(interceptors.ParkerConfig{DeadLetters: dedupv1.NewDeadLetterServiceClient(way)})
		require.NoError(t, err)
		w, client := provider(t, interceptors.Guarded{RefusalsApplyNothing: true},
			interceptors.WithDeadLetters(p), interceptors.WithParked(charge), interceptors.WithMaxAttempts(2))
		way.w = w
		t.Cleanup(p.Close)
		w.handle = fails(status.Error(codes.Aborted, "later"), status.Error(codes.Aborted, "later"))
		_, err = client.Charge(t.Context(), order(), interceptors.WithKey("k"))
		_, ok := interceptors.DeadLetterOf(err)
		require.True(t, ok)
		all := w.entries(t)
		require.Len(t, all, 1)
		require.Len(t, all[0].GetAttempts(), 2)

		w.arrived = func(ctx context.Context, _ int) {
			md, _ := metadata.FromIncomingContext(ctx)
			require.Empty(t, md[interceptors.HeaderReplay], "the callee knows nothing of claims")
		}
		ctx := w.claim(t.Context(), t, all[0], time.Minute)
		for range 2 {
			resp, err := client.Charge(ctx, order())
			require.NoError(t, err)
			require.Equal(t, "xxx", resp.GetChargeId())
		}
		require.Equal(t, 3, w.ran())
		require.Equal(t, completed, w.state(t, "k"))
		require.Len(t, w.entries(t, resolved), 1)
	})
}
