package interceptors_test

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	demov1 "github.com/dedupd/dedupd/gen/dedup/demo/v1"
	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors"
)

// What a run left behind is known to its server, and the code does not tell it.
func TestACallersErrorSaysWhatTheRunLeftBehind(t *testing.T) { // A05 A09
	t.Parallel()
	charged := func(code codes.Code) func(*world) func(context.Context) error {
		return func(down *world) func(context.Context) error {
			return func(ctx context.Context) error {
				if _, err := down.client.Charge(ctx, order()); err != nil {
					return err
				}
				return status.Error(code, "no stock")
			}
		}
	}
	says := func(err error) func(*world) func(context.Context) error {
		return func(*world) func(context.Context) error { return func(context.Context) error { return err } }
	}
	for name, c := range map[string]struct {
		rule    dedupv1.ErrorRule
		handle  func(down *world) func(ctx context.Context) error
		unknown bool
		state   dedupv1.State
	}{
		"nothing, it says": {
			handle: says(interceptors.NotApplied(status.Error(codes.Internal, "no"))), state: dedupv1.State_STATE_RELEASED,
		},
		"nothing, by its code": {
			handle: says(status.Error(codes.NotFound, "no")), state: dedupv1.State_STATE_RELEASED,
		},
		"effects under child keys": {
			handle: charged(codes.NotFound), unknown: true, state: dedupv1.State_STATE_RELEASED,
		},
		"effects of its own": {
			handle: func(*world) func(context.Context) error {
				return func(ctx context.Context) error {
					interceptors.MarkEffect(ctx)
					return status.Error(codes.InvalidArgument, "no")
				}
			}, unknown: true, state: dedupv1.State_STATE_UNKNOWN,
		},
		"nobody knows, by its policy": {
			rule: dedupv1.ErrorRule_ERROR_RULE_UNKNOWN, handle: says(status.Error(codes.FailedPrecondition, "no")),
			unknown: true, state: dedupv1.State_STATE_UNKNOWN,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				down := newWorld(t, setup{})
				w := newWorld(t, setup{client: once(), server: []interceptors.ServerOption{withPolicy(&dedupv1.MethodPolicy{
					Keys: dedupv1.KeyRule_KEY_RULE_REQUIRED, Errors: cmp.Or(c.rule, dedupv1.ErrorRule_ERROR_RULE_TABLE),
				})}})
				handle := c.handle(down)
				w.handle = func(ctx context.Context, _ int, _ *demov1.ChargeRequest) (*demov1.ChargeResponse, error) {
					return nil, handle(ctx)
				}
				_, err := w.client.Charge(t.Context(), order(), interceptors.WithKey("k"))
				require.Error(t, err)
				require.Equal(t, c.unknown, errors.Is(err, interceptors.ErrOutcomeUnknown), err)
				require.Equal(t, c.state, w.state(t, "k"))
				if c.state == dedupv1.State_STATE_RELEASED {
					_, err = w.client.Charge(t.Context(), order(), interceptors.WithKey("k"))
					require.Equal(t, c.unknown, errors.Is(err, interceptors.ErrOutcomeUnknown), "a repeat is told the same")
				}
			})
		})
	}
}

func TestARunWhoseCalleeCanBeCompletedIsFreedForTheSameRequest(t *testing.T) { // A05
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		last := newWorld(t, setup{})
		middle := newWorld(t, setup{client: once(), server: []interceptors.ServerOption{byTable()}})
		middle.handle = func(ctx context.Context, n int, _ *demov1.ChargeRequest) (*demov1.ChargeResponse, error) {
			if _, err := last.client.Charge(ctx, order()); err != nil {
				return nil, err
			}
			if n == 1 {
				return nil, status.Error(codes.NotFound, "not yet")
			}
			return receipt(n), nil
		}
		w := newWorld(t, setup{client: once(), server: []interceptors.ServerOption{byTable()}})
		w.handle = func(ctx context.Context, _ int, _ *demov1.ChargeRequest) (*demov1.ChargeResponse, error) {
			return middle.client.Charge(ctx, order())
		}
		_, err := w.client.Charge(t.Context(), order(), interceptors.WithKey("k"))
		require.ErrorIs(t, err, interceptors.ErrOutcomeUnknown, "something has happened")
		require.Equal(t, dedupv1.State_STATE_RELEASED, w.state(t, "k"))
		_, err = w.client.Charge(t.Context(), order(), interceptors.WithKey("k"))
		require.NoError(t, err)
		require.Equal(t, 1, last.ran(), "once in all")
	})
}

func TestNoRunSpeaksForThoseBeforeIt(t *testing.T) { // A04 A05
	t.Parallel()
	for name, c := range map[string]struct {
		rerun bool
		first func(ctx context.Context, down *world) error
	}{
		"one whose outcome is unknown": {true, func(context.Context, *world) error {
			return interceptors.OutcomeUnknown(status.Error(codes.Unavailable, "it may be done"))
		}},
		"one that left effects under child keys": {false, func(ctx context.Context, down *world) error {
			_, err := down.client.Charge(ctx, order())
			require.NoError(t, err)
			return status.Error(codes.Unavailable, "half done")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				down := newWorld(t, setup{})
				w := newWorld(t, setup{client: once(), server: []interceptors.ServerOption{withPolicy(&dedupv1.MethodPolicy{
					Keys: dedupv1.KeyRule_KEY_RULE_REQUIRED, Errors: dedupv1.ErrorRule_ERROR_RULE_TABLE, RerunSafe: c.rerun,
				})}})
				w.handle = func(ctx context.Context, n int, _ *demov1.ChargeRequest) (*demov1.ChargeResponse, error) {
					if n == 1 {
						return nil, c.first(ctx, down)
					}
					return nil, interceptors.NotApplied(status.Error(codes.NotFound, "no"))
				}
				for range 2 {
					_, err := w.client.Charge(t.Context(), order(), interceptors.WithKey("k"))
					require.ErrorIs(t, err, interceptors.ErrOutcomeUnknown)
					pass(time.Minute)
				}
				require.Equal(t, 2, w.ran())
			})
		})
	}
}

func TestAnErrorThatIsTooLargeToKeepIsNotKept(t *testing.T) { // A09
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{client: once(), server: []interceptors.ServerOption{byTable()}})
		w.handle = fails(status.Error(codes.NotFound, strings.Repeat("x", 100<<10)))
		_, err := w.client.Charge(t.Context(), order(), interceptors.WithKey("k"))
		require.Equal(t, codes.NotFound, status.Code(err))
		_, err = w.client.Charge(t.Context(), order(), interceptors.WithKey("k"))
		require.NoError(t, err, "it runs; nobody is told that the work was done")
	})
}

func TestAKeyProtectsNoCallWhoseServerWasFoundToLookAtNone(t *testing.T) { // C12
	t.Parallel()
	test := func(t *testing.T, options ...interceptors.ClientOption) {
		t.Helper()
		var ignored []string
		w := newWorld(t, setup{
			server: []interceptors.ServerOption{withPolicy(&dedupv1.MethodPolicy{Keys: dedupv1.KeyRule_KEY_RULE_OFF})},
			client: append(options, interceptors.WithCallObserver(interceptors.CallObserver{
				Ignored: func(_ context.Context, method string) { ignored = append(ignored, method) },
			})),
		})
		lost := func() error {
			before := w.ran()
			w.cutAfter = func(int) bool { return w.ran() == before+1 }
			_, err := w.client.Charge(t.Context(), order(), interceptors.WithFreshKey())
			return err
		}
		_, err := w.client.Charge(t.Context(), order(), interceptors.WithFreshKey())
		require.NoError(t, err)
		require.Equal(t, []string{charge}, ignored)
		require.ErrorIs(t, lost(), interceptors.ErrOutcomeUnknown)
		require.Equal(t, 2, w.ran(), "sent once: a second try would run too")
		pass(10 * time.Minute)
		require.NoError(t, lost(), "it may look at them by now")
	}
	synctest.Test(t, func(t *testing.T) { test(t) })
	synctest.Test(t, func(t *testing.T) { test(t, interceptors.WithoutBudget(), interceptors.WithoutBreaker()) })
}
