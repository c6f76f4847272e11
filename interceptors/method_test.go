package interceptors_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	demov1 "github.com/dedupd/dedupd/gen/dedup/demo/v1"
	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors"
	"github.com/dedupd/dedupd/interceptors/policy"
)

func TestAMethodsTimesAreItsOwnElseTheServersElseTheDefaults(t *testing.T) { // A09 c
	t.Parallel()
	type times struct{ lease, wait, retention, run time.Duration }
	servers := []interceptors.ServerOption{
		interceptors.WithLease(5 * time.Second), interceptors.WithWait(2 * time.Second), interceptors.WithMaxRun(time.Minute),
	}
	own := interceptors.WithMethod(charge, interceptors.Method{
		Policy: &dedupv1.MethodPolicy{Lease: durationpb.New(7 * time.Second), Retention: durationpb.New(240 * time.Hour)},
		Wait:   3 * time.Second, MaxRun: 10 * time.Second,
	})
	for name, c := range map[string]struct {
		opts []interceptors.ServerOption
		want times
	}{
		"defaults":         {nil, times{lease: 30 * time.Second, wait: 10 * time.Second, run: 5 * time.Minute}},
		"the server's":     {servers, times{lease: 5 * time.Second, wait: 2 * time.Second, run: time.Minute}},
		"the method's own": {append(servers[:3:3], own), times{lease: 7 * time.Second, wait: 3 * time.Second, retention: 240 * time.Hour, run: 10 * time.Second}},
		"the method's own, refusing at once": {
			[]interceptors.ServerOption{interceptors.WithMethod(charge, interceptors.Method{RefuseAtOnce: true})},
			times{lease: 30 * time.Second, run: 5 * time.Minute},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, setup{server: c.opts})
				var got times
				w.told = func(args any) {
					switch req := args.(type) {
					case *dedupv1.ReserveRequest:
						got.lease, got.wait = req.GetLease().AsDuration(), req.GetWait().AsDuration()
					case *dedupv1.ExtendRequest:
						require.Equal(t, got.lease, req.GetLease().AsDuration())
					case *dedupv1.CompleteRequest:
						got.retention = req.GetRetention().AsDuration()
					}
				}
				w.handle = func(ctx context.Context, n int, _ *demov1.ChargeRequest) (*demov1.ChargeResponse, error) {
					began := time.Now()
					<-ctx.Done()
					got.run = time.Since(began)
					return receipt(n), nil
				}
				_, err := w.bare(t).Charge(metadata.AppendToOutgoingContext(t.Context(), interceptors.HeaderKey, "k"), order())
				require.NoError(t, err)
				require.Equal(t, c.want, got)
			})
		})
	}
}

func TestWhatAnErrorMeansIsSetByMethodAndHowLongItIsKeptByServer(t *testing.T) { // D05
	t.Parallel()
	none := status.Error(codes.NotFound, "no such card")
	strict, err := policy.Default().With(codes.NotFound, policy.Row{Ending: policy.Unknown})
	require.NoError(t, err)
	table := &dedupv1.MethodPolicy{Errors: dedupv1.ErrorRule_ERROR_RULE_TABLE}
	for name, c := range map[string]struct {
		opts  []interceptors.ServerOption
		kept  []time.Duration // after which the repeat gets the first error
		state dedupv1.State
	}{
		"kept for ten seconds": {[]interceptors.ServerOption{byTable()}, []time.Duration{0, 9 * time.Second}, released},
		"kept as the server says": {
			[]interceptors.ServerOption{byTable(), interceptors.WithErrorHold(time.Minute)}, []time.Duration{50 * time.Second}, released,
		},
		"not kept": {[]interceptors.ServerOption{byTable(), interceptors.WithErrorHold(0)}, nil, released},
		"unknown by the method's table": {
			[]interceptors.ServerOption{interceptors.WithMethod(charge, interceptors.Method{Policy: table, Errors: &strict})}, nil, unknown,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, setup{client: once(), server: c.opts})
				w.handle = fails(none)
				ask := func() error {
					_, err := w.client.Charge(t.Context(), order(), interceptors.WithKey("k"))
					return err
				}
				require.Equal(t, codes.NotFound, status.Code(ask()))
				require.Equal(t, c.state.String(), w.state(t, "k").String())
				for _, after := range c.kept {
					pass(after)
					require.Equal(t, codes.NotFound, status.Code(ask()))
				}
				require.Equal(t, 1, w.ran())
				if c.kept != nil {
					pass(11 * time.Second)
				}
				if c.state == unknown {
					requireReason(t, ask(), codes.FailedPrecondition, dedupv1.Reason_REASON_OUTCOME_UNKNOWN)
					return
				}
				require.NoError(t, ask())
				require.Equal(t, 2, w.ran())
			})
		})
	}
}

func TestInterceptorsAroundTheHandlerBelongToTheRun(t *testing.T) { // A04, G05
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		before, after := 0, 0
		w := newWorld(t, setup{client: once(), server: []interceptors.ServerOption{
			interceptors.After(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
				after++
				_, err := handler(ctx, req)
				if err == nil {
					err = interceptors.Final(status.Error(codes.NotFound, "made of the handler's answer"))
				}
				return nil, err
			}),
			interceptors.Before(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
				before++
				return handler(ctx, req)
			}),
		}})
		for range 3 {
			_, err := w.client.Charge(t.Context(), order(), interceptors.WithKey("k"))
			require.Equal(t, codes.NotFound, status.Code(err))
		}
		require.Equal(t, 3, before, "sees repeats too")
		require.Equal(t, 1, after, "runs with the handler only")
		require.Equal(t, 1, w.ran())
		require.Equal(t, completed, w.state(t, "k"))
	})
}
