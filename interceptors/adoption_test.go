package interceptors_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"

	demov1 "github.com/dedupd/dedupd/gen/dedup/demo/v1"
	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors"
)

// sights collects what observed calls would have been.
type sights struct {
	mu      sync.Mutex
	seen    []string
	keyless int
}

func (s *sights) observer() interceptors.ServerOption {
	return interceptors.WithObserver(interceptors.Observer{
		Observed: func(method string, would interceptors.Sight, reason dedupv1.Reason) {
			s.mu.Lock()
			defer s.mu.Unlock()
			text := would.String()
			if reason != 0 {
				text += " " + strings.TrimPrefix(reason.String(), "REASON_")
			}
			s.seen = append(s.seen, text)
		},
		Keyless: func(string) { s.keyless++ },
	})
}

// last returns what was collected since it was last asked.
func (s *sights) last() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	seen := s.seen
	s.seen = nil
	return seen
}

func withPolicy(p *dedupv1.MethodPolicy) interceptors.ServerOption {
	return interceptors.WithMethod(charge, interceptors.Method{Policy: p})
}

func observing(s *sights) setup {
	return setup{client: once(), server: []interceptors.ServerOption{
		withPolicy(&dedupv1.MethodPolicy{Keys: dedupv1.KeyRule_KEY_RULE_OBSERVE}), s.observer(),
	}}
}

func TestAnObservedMethodAlwaysRunsAndCountsWhatWouldHaveBeen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var s sights
		w := newWorld(t, observing(&s))
		charge := func(key string, change func(*demov1.ChargeRequest)) (*demov1.ChargeResponse, error) {
			req := order()
			if change != nil {
				change(req)
			}
			defer synctest.Wait() // for the report in the background
			return w.client.Charge(t.Context(), req, interceptors.WithKey(key))
		}
		for n := 1; n <= 3; n++ {
			resp, err := charge("k", nil)
			require.NoError(t, err)
			require.Empty(t, cmp.Diff(receipt(n), resp, protocmp.Transform()), "the handler's own answer")
		}
		require.Equal(t, []string{"run", "replay", "replay"}, s.last())

		_, err := charge("k", func(r *demov1.ChargeRequest) { r.Amount = 1 })
		require.NoError(t, err)
		require.Equal(t, []string{"mismatch KEY_REUSED"}, s.last())

		w.handle = func(context.Context, int, *demov1.ChargeRequest) (*demov1.ChargeResponse, error) {
			return nil, status.Error(codes.Internal, "it broke somewhere")
		}
		for range 2 {
			_, err = charge("broken", nil)
			require.Equal(t, codes.Internal, status.Code(err), "no error but the handler's")
		}
		require.Equal(t, []string{"run", "refuse OUTCOME_UNKNOWN"}, s.last())
		w.handle = nil

		bare := w.bare(t)
		_, err = bare.Charge(t.Context(), order())
		require.NoError(t, err)
		require.Equal(t, 1, s.keyless)
		_, err = bare.Charge(metadata.AppendToOutgoingContext(t.Context(), interceptors.HeaderKeyBin, " k"), order())
		require.NoError(t, err)
		_, err = w.client.Charge(as(t.Context(), "nobody"), order(), interceptors.WithKey("k"))
		require.NoError(t, err)
		require.Equal(t, []string{"refuse KEY_INVALID", "refuse"}, s.last())

		require.Equal(t, 9, w.ran())
		require.Equal(t, dedupv1.State_STATE_ABSENT, w.state(t, "k"), "nothing is kept in the namespace itself")
	})
}

func TestAnObservedCallInProgressIsRefusedInTheShadowOnly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var s sights
		w := newWorld(t, observing(&s))
		w.handle = takes(time.Minute) // longer than a lease that nobody extends
		for _, at := range []time.Duration{0, 40 * time.Second} {
			time.AfterFunc(at, func() { _, _ = w.client.Charge(t.Context(), order(), interceptors.WithKey("k")) })
		}
		pass(2 * time.Minute)
		require.Equal(t, []string{"run", "refuse IN_PROGRESS"}, s.last())
		require.Equal(t, 2, w.ran())
	})
}

func TestObservingCostsLittleTimeWhileDedupdIsAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var s sights
		w := newWorld(t, observing(&s))
		w.hang.Store(true)
		for _, cost := range []time.Duration{100 * time.Millisecond, 0, 0} {
			at := time.Now()
			_, err := w.client.Charge(t.Context(), order(), interceptors.WithKey("k"))
			require.NoError(t, err)
			require.Equal(t, cost, time.Since(at))
		}
		require.Equal(t, []string{"none", "none", "none"}, s.last())
		w.hang.Store(false)
		pass(2 * time.Second)
		_, err := w.client.Charge(t.Context(), order(), interceptors.WithKey("other"))
		require.NoError(t, err)
		require.Equal(t, []string{"run"}, s.last())
		w.stop()
		_, err = w.client.Charge(t.Context(), order(), interceptors.WithKey("k"))
		require.NoError(t, err, "a server that stops runs it as well")
	})
}

func TestAShadowNamespaceMustFit(t *testing.T) {
	t.Parallel()
	long := []interceptors.ServerOption{
		interceptors.WithNamespace(strings.Repeat("n", 60)), interceptors.SharedCaller(),
		withPolicy(&dedupv1.MethodPolicy{Keys: dedupv1.KeyRule_KEY_RULE_OBSERVE}),
	}
	dedup := dedupv1.NewDedupServiceClient(nil)
	_, err := interceptors.ServerOptions(dedup, long...)
	require.ErrorContains(t, err, "WithShadowNamespace")
	_, err = interceptors.ServerOptions(dedup, append(long, interceptors.WithShadowNamespace("shadow"))...)
	require.NoError(t, err)
}

func TestAMethodThatFailsOpenRunsUnprotectedWhileDedupdIsAway(t *testing.T) { // H01
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		open := 0
		w := newWorld(t, setup{client: once(), server: []interceptors.ServerOption{
			withPolicy(&dedupv1.MethodPolicy{FailOpen: true}), interceptors.WithLogger(slog.New(slog.NewTextHandler(&log, nil))),
			interceptors.WithObserver(interceptors.Observer{Unprotected: func(string) { open++ }}),
		}})
		lines := func() int { return strings.Count(log.String(), "without protection") }
		w.down.Store(true)
		for range 3 {
			var trailer metadata.MD
			_, err := w.client.Charge(t.Context(), order(), interceptors.WithKey("k"), grpc.Trailer(&trailer))
			require.NoError(t, err)
			require.Len(t, trailer["idempotency-record"], 1)
			require.Equal(t, []string{"true"}, trailer["idempotency-unprotected"], "the record knows nothing of it")
		}
		require.Equal(t, 3, w.ran())
		require.Equal(t, 3, open)
		require.Equal(t, 1, lines(), "once a minute")
		pass(time.Minute)
		_, err := w.client.Charge(t.Context(), order(), interceptors.WithKey("k"))
		require.NoError(t, err)
		require.Equal(t, 2, lines())
		require.Contains(t, log.String(), "calls=3")

		w.down.Store(false)
		pass(time.Minute)
		for range 2 {
			var trailer metadata.MD
			_, err = w.client.Charge(t.Context(), order(), interceptors.WithKey("k"), grpc.Trailer(&trailer))
			require.NoError(t, err)
			require.Empty(t, trailer["idempotency-unprotected"])
		}
		require.Equal(t, 5, w.ran(), "no restart is needed to protect again")
		require.Equal(t, 4, open)
	})
}

func TestFailingOpenNeverRepeatsWhatThisProcessKnowsOf(t *testing.T) { // H01
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{client: once(), server: []interceptors.ServerOption{withPolicy(&dedupv1.MethodPolicy{FailOpen: true})}})
		w.handle = func(_ context.Context, n int, _ *demov1.ChargeRequest) (*demov1.ChargeResponse, error) {
			w.down.Store(true)
			pass(10 * time.Second)
			return receipt(n), nil
		}
		time.AfterFunc(5*time.Second, func() {
			_, err := w.client.Charge(t.Context(), order(), interceptors.WithKey("k"))
			requireReason(t, err, codes.Unavailable, dedupv1.Reason_REASON_STORE_UNAVAILABLE)
		})
		_, err := w.client.Charge(t.Context(), order(), interceptors.WithKey("k"))
		require.NoError(t, err)
		_, err = w.client.Charge(t.Context(), order(), interceptors.WithKey("k"))
		requireReason(t, err, codes.Unavailable, dedupv1.Reason_REASON_STORE_UNAVAILABLE)
		require.Equal(t, 1, w.ran())
	})
}

func TestAnUnknownOutcomeIsNoReasonToFailOpen(t *testing.T) { // H01
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{client: once(), server: []interceptors.ServerOption{withPolicy(&dedupv1.MethodPolicy{FailOpen: true})}})
		w.handle = fails(status.Error(codes.Internal, "it broke somewhere"))
		_, err := w.client.Charge(t.Context(), order(), interceptors.WithKey("k"))
		require.Equal(t, codes.Internal, status.Code(err))
		_, err = w.client.Charge(t.Context(), order(), interceptors.WithKey("k"))
		requireReason(t, err, codes.FailedPrecondition, dedupv1.Reason_REASON_OUTCOME_UNKNOWN)
		require.Equal(t, 1, w.ran())
	})
}

func TestAMethodMayEndWithItsCaller(t *testing.T) {
	t.Parallel()
	leave := map[string]func(context.Context) (context.Context, context.CancelFunc){
		"it cancels": func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(ctx)
			time.AfterFunc(time.Second, cancel)
			return ctx, cancel
		},
		"its deadline passes": func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, time.Second)
		},
	}
	for name, limit := range leave {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, setup{client: once(), server: []interceptors.ServerOption{withPolicy(&dedupv1.MethodPolicy{CallerCancels: true})}})
				stopped := make(chan time.Duration, 1)
				at := time.Now()
				w.handle = func(ctx context.Context, _ int, _ *demov1.ChargeRequest) (*demov1.ChargeResponse, error) {
					<-ctx.Done()
					stopped <- time.Since(at)
					return nil, ctx.Err()
				}
				ctx, cancel := limit(t.Context())
				defer cancel()
				_, err := w.client.Charge(ctx, order(), interceptors.WithKey("k"))
				require.ErrorIs(t, err, interceptors.ErrOutcomeUnknown)
				require.Equal(t, time.Second, <-stopped)
				synctest.Wait()
				require.Equal(t, dedupv1.State_STATE_UNKNOWN, w.state(t, "k"), "nobody knows how far it came")
			})
		})
	}
}
