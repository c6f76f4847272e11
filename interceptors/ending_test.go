package interceptors_test

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	demov1 "github.com/dedupd/dedupd/gen/dedup/demo/v1"
	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors"
)

const (
	completed = dedupv1.State_STATE_COMPLETED
	released  = dedupv1.State_STATE_RELEASED
	unknown   = dedupv1.State_STATE_UNKNOWN
)

func byTable() interceptors.ServerOption {
	return interceptors.WithMethod(charge, interceptors.Method{Policy: &dedupv1.MethodPolicy{Errors: dedupv1.ErrorRule_ERROR_RULE_TABLE}})
}

func TestWhatAnErrorMeansForItsRecord(t *testing.T) { // A04, D05
	t.Parallel()
	table := map[codes.Code]dedupv1.State{
		codes.Canceled: unknown, codes.Unknown: unknown, codes.DeadlineExceeded: unknown, codes.Internal: unknown,
		codes.DataLoss: unknown, codes.Unavailable: released, codes.Aborted: released, codes.ResourceExhausted: released,
		codes.InvalidArgument: released, codes.NotFound: released, codes.AlreadyExists: released,
		codes.FailedPrecondition: released, codes.OutOfRange: released, codes.Unimplemented: released,
		codes.PermissionDenied: released, codes.Unauthenticated: released,
	}
	require.Len(t, table, 16)
	states := map[string]struct {
		say     func(ctx context.Context, err error) error
		ends    func(byTable dedupv1.State) dedupv1.State
		byTable bool
	}{
		"unmarked, by the table": {
			say: func(_ context.Context, err error) error { return err }, byTable: true,
			ends: func(s dedupv1.State) dedupv1.State { return s },
		},
		"unmarked, where the method says that errors are unknown": {
			say:  func(_ context.Context, err error) error { return err },
			ends: func(dedupv1.State) dedupv1.State { return unknown },
		},
		"not applied": {
			say:  func(_ context.Context, err error) error { return fmt.Errorf("so: %w", interceptors.NotApplied(err)) },
			ends: func(dedupv1.State) dedupv1.State { return released },
		},
		"outcome unknown": {
			say: func(_ context.Context, err error) error { return interceptors.OutcomeUnknown(err) }, byTable: true,
			ends: func(dedupv1.State) dedupv1.State { return unknown },
		},
		"final": {
			say:  func(_ context.Context, err error) error { return interceptors.Final(err) },
			ends: func(dedupv1.State) dedupv1.State { return completed },
		},
		"after an effect": {
			say: func(ctx context.Context, err error) error {
				interceptors.MarkEffect(ctx)
				return err
			}, byTable: true,
			ends: func(dedupv1.State) dedupv1.State { return unknown },
		},
		"after an effect, undone": {
			say: func(ctx context.Context, err error) error {
				interceptors.MarkEffect(ctx)
				return interceptors.NotApplied(err)
			}, byTable: true,
			ends: func(dedupv1.State) dedupv1.State { return released },
		},
	}
	for name, c := range states {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := setup{client: once()}
				if c.byTable {
					s.server = append(s.server, byTable())
				}
				w := newWorld(t, s)
				for code, state := range table {
					w.handle = func(ctx context.Context, _ int, _ *demov1.ChargeRequest) (*demov1.ChargeResponse, error) {
						return nil, c.say(ctx, status.Error(code, "no"))
					}
					_, err := w.client.Charge(t.Context(), order(), interceptors.WithKey(strconv.Itoa(int(code))))
					require.Equal(t, code, status.Code(err))
					require.Equal(t, c.ends(state).String(), w.state(t, strconv.Itoa(int(code))).String(), code)
				}
			})
		})
	}
}

func TestAPassingErrorIsNotTheAnswerForGood(t *testing.T) { // D05
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{client: once(), server: []interceptors.ServerOption{byTable()}})
		w.handle = fails(status.Error(codes.Unavailable, "the database is away"))
		_, err := w.client.Charge(t.Context(), order(), interceptors.WithKey("k"))
		require.Equal(t, codes.Unavailable, status.Code(err))
		for range 2 {
			resp, err := w.client.Charge(t.Context(), order(), interceptors.WithKey("k"))
			require.NoError(t, err)
			require.Equal(t, "xx", resp.GetChargeId())
		}
		require.Equal(t, 2, w.ran())
	})
}

func TestAPermanentErrorIsKeptForItsRepeatsAndNotForACorrectedRequest(t *testing.T) { // D05
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{client: once(), server: []interceptors.ServerOption{byTable()}})
		w.handle = fails(status.Error(codes.InvalidArgument, "no such currency"))
		var trailer metadata.MD
		for range 2 {
			_, err := w.client.Charge(t.Context(), order(), interceptors.WithKey("k"), grpc.Trailer(&trailer))
			require.Equal(t, codes.InvalidArgument, status.Code(err))
		}
		require.Equal(t, []string{"true"}, trailer["idempotency-replayed"])
		require.Equal(t, 1, w.ran())
		corrected := order()
		corrected.Currency = "USD"
		_, err := w.client.Charge(t.Context(), corrected, interceptors.WithKey("k"))
		require.NoError(t, err)
		_, err = w.client.Charge(t.Context(), order(), interceptors.WithKey("k"))
		requireReason(t, err, codes.FailedPrecondition, dedupv1.Reason_REASON_KEY_REUSED)
		require.Equal(t, 2, w.ran())
	})
}

func TestACallFurtherDownIsAnEffect(t *testing.T) { // A04
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		down := newWorld(t, setup{})
		w := newWorld(t, setup{client: once(), server: []interceptors.ServerOption{byTable()}})
		w.handle = func(ctx context.Context, n int, _ *demov1.ChargeRequest) (*demov1.ChargeResponse, error) {
			var err error
			if n == 1 {
				_, err = down.client.GetCharge(ctx, &demov1.GetChargeRequest{})
			} else {
				_, err = down.client.Charge(ctx, order(), interceptors.WithKey("inner"))
			}
			require.NoError(t, err)
			return nil, status.Error(codes.InvalidArgument, "no")
		}
		_, err := w.client.Charge(t.Context(), order(), interceptors.WithKey("reads"))
		require.Error(t, err)
		require.Equal(t, released, w.state(t, "reads"))
		_, err = w.client.Charge(t.Context(), order(), interceptors.WithKey("writes"))
		require.Error(t, err)
		require.Equal(t, unknown, w.state(t, "writes"))
	})
}

func TestMarksKeepCodeMessageAndDetails(t *testing.T) { // D04
	t.Parallel()
	err := declined(t)
	for _, marked := range []error{interceptors.NotApplied(err), interceptors.OutcomeUnknown(err), interceptors.Final(err)} {
		require.Equal(t, status.Convert(err).Proto().String(), status.Convert(marked).Proto().String())
		require.ErrorIs(t, marked, err)
	}
	require.ErrorIs(t, fmt.Errorf("so: %w", interceptors.OutcomeUnknown(err)), interceptors.ErrOutcomeUnknown)
	require.NotErrorIs(t, interceptors.Final(err), interceptors.ErrOutcomeUnknown)
	require.NoError(t, interceptors.NotApplied(nil))
}
