package interceptors_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors"
)

func TestAnUnknownOutcomeNamesItsRecord(t *testing.T) {
	t.Parallel()
	requireNamed := func(t *testing.T, err error, trailer metadata.MD, text string) {
		t.Helper()
		require.Len(t, trailer[interceptors.TrailerRecord], 1)
		require.Equal(t, text+" (record "+trailer[interceptors.TrailerRecord][0][:12]+")", status.Convert(err).Message())
	}
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{client: once()})
		w.handle = fails(interceptors.OutcomeUnknown(errDown))
		_, err := w.client.Charge(t.Context(), order(), interceptors.WithKey("k"))
		require.Error(t, err)
		var trailer metadata.MD
		_, err = w.client.Charge(t.Context(), order(), interceptors.WithKey("k"), grpc.Trailer(&trailer))
		requireReason(t, err, codes.FailedPrecondition, dedupv1.Reason_REASON_OUTCOME_UNKNOWN)
		requireNamed(t, err, trailer, "nobody knows whether the effect happened; ask again with the same key")
		require.Equal(t, 1, w.ran())
	})
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{client: once(), server: []interceptors.ServerOption{withPolicy(&dedupv1.MethodPolicy{RerunSafe: true})}})
		w.ask = func(_ context.Context, method string) error {
			if method == "Complete" {
				return errDown
			}
			return nil
		}
		var trailer metadata.MD
		_, err := w.client.Charge(t.Context(), order(), interceptors.WithKey("k"), grpc.Trailer(&trailer))
		requireReason(t, err, codes.Unavailable, dedupv1.Reason_REASON_STORE_UNAVAILABLE)
		requireNamed(t, err, trailer, "dedupd cannot be reached; ask again later; the outcome is unknown, ask again with the same key")
	})
}
