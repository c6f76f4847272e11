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

	demov1 "github.com/dedupd/dedupd/gen/dedup/demo/v1"
	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors"
)

// asking is a world whose client can ask dedupd, and whose service is gone right
// after its first run.
func asking(t *testing.T, opts ...interceptors.ClientOption) (*world, demov1.PaymentsServiceClient) {
	t.Helper()
	w := newWorld(t, setup{})
	w.cutAfter = func(int) bool {
		w.refuse()
		return false
	}
	conn := w.dial(t, append(opts, interceptors.WithDedupd(dedupv1.NewDedupServiceClient(w))))
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	return w, demov1.NewPaymentsServiceClient(conn)
}

func TestAnUnknownOutcomeIsLookedUp(t *testing.T) { // A02
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, client := asking(t, interceptors.WithIdentity("test", "ada"))
		w.handle = func(ctx context.Context, n int, _ *demov1.ChargeRequest) (*demov1.ChargeResponse, error) {
			return receipt(n), grpc.SetHeader(ctx, metadata.Pairs("x-receipt", "r1", "x-other", "o"))
		}
		var header, trailer metadata.MD
		resp, err := client.Charge(t.Context(), order(), interceptors.WithKey("k"), grpc.Header(&header), grpc.Trailer(&trailer))
		require.NoError(t, err, "the service is still down, its answer is known")
		require.Equal(t, "x", resp.GetChargeId())
		require.Equal(t, 1, w.ran())
		require.Equal(t, metadata.Pairs("x-receipt", "r1"), header)
		require.Equal(t, []string{"true"}, trailer[interceptors.TrailerReplayed])
	})
}

func TestALookUpFindsTheStoredError(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, client := asking(t, interceptors.WithIdentity("test", "ada"))
		w.handle = fails(interceptors.Final(declined(t)))
		_, err := client.Charge(t.Context(), order(), interceptors.WithKey("k"))
		require.Equal(t, codes.NotFound, status.Code(err))
		require.Len(t, status.Convert(err).Proto().GetDetails(), 2)
		require.NotErrorIs(t, err, interceptors.ErrOutcomeUnknown)
	})
}

func TestWhatCannotBeLookedUpStaysUnknown(t *testing.T) {
	t.Parallel()
	unknownTo := func(t *testing.T, w *world, client demov1.PaymentsServiceClient, opts ...grpc.CallOption) error {
		t.Helper()
		_, err := client.Charge(t.Context(), order(), append(opts, interceptors.WithKey("k"))...)
		require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
		require.ErrorIs(t, err, interceptors.ErrOutcomeUnknown)
		require.Equal(t, 1, w.ran())
		return err
	}
	t.Run("without an identity", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			w, client := asking(t)
			_, known := interceptors.RecordIDOf(unknownTo(t, w, client))
			require.False(t, known)
		})
	})
	t.Run("of another caller", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			w, client := asking(t, interceptors.WithIdentity("test", "ada"))
			id, known := interceptors.RecordIDOf(unknownTo(t, w, client, interceptors.WithIdentity("test", "eve")))
			require.True(t, known)
			require.Len(t, id, 64)
		})
	})
	t.Run("dedupd down", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			w, client := asking(t, interceptors.WithIdentity("test", "ada"))
			cut := w.cutAfter
			w.cutAfter = func(n int) bool {
				w.down.Store(true)
				return cut(n)
			}
			_, known := interceptors.RecordIDOf(unknownTo(t, w, client))
			require.True(t, known, "for people, when dedupd is back")
		})
	})
	t.Run("an error that is kept for a moment", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			w, client := asking(t, interceptors.WithIdentity("test", "ada"))
			// A try that is still on its way might run yet.
			w.handle = fails(interceptors.NotApplied(status.Error(codes.NotFound, "no such order")))
			require.Error(t, unknownTo(t, w, client))
		})
	})
}

func TestTheRecordThatTheServiceNamedIsLookedUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{server: []interceptors.ServerOption{
			interceptors.WithMethod(charge, interceptors.Method{RefuseAtOnce: true}),
		}})
		conn := w.dial(t, []interceptors.ClientOption{ // no identity: the refusal of the second try tells
			interceptors.WithDedupd(dedupv1.NewDedupServiceClient(w)), interceptors.WithPerTryTimeout(time.Second),
		})
		defer func() { require.NoError(t, conn.Close()) }()
		finish := make(chan struct{})
		w.handle = func(_ context.Context, n int, _ *demov1.ChargeRequest) (*demov1.ChargeResponse, error) {
			<-finish
			return receipt(n), nil
		}
		w.cutAfter = func(n int) bool {
			if n == 2 {
				time.AfterFunc(100*time.Millisecond, func() {
					w.refuse()
					close(finish)
				})
			}
			return false
		}
		resp, err := demov1.NewPaymentsServiceClient(conn).Charge(t.Context(), order(), interceptors.WithKey("k"))
		require.NoError(t, err)
		require.Equal(t, "x", resp.GetChargeId())
		require.Equal(t, 1, w.ran())
	})
}

func TestAStoredAnswerThatIsGoneIsKnownToBeApplied(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{maxOutcome: 64 << 10})
		w.cutAfter = func(int) bool {
			w.refuse()
			return false
		}
		conn := w.dial(t, []interceptors.ClientOption{
			interceptors.WithDedupd(dedupv1.NewDedupServiceClient(w)), interceptors.WithIdentity("test", "ada"),
		})
		defer func() { require.NoError(t, conn.Close()) }()
		w.handle = func(context.Context, int, *demov1.ChargeRequest) (*demov1.ChargeResponse, error) {
			return &demov1.ChargeResponse{ChargeId: string(make([]byte, 200<<10))}, nil
		}
		_, err := demov1.NewPaymentsServiceClient(conn).Charge(t.Context(), order(), interceptors.WithKey("k"))
		requireReason(t, err, codes.DataLoss, dedupv1.Reason_REASON_OUTCOME_NOT_STORED)
		require.NotErrorIs(t, err, interceptors.ErrOutcomeUnknown)
	})
}
