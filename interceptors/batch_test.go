package interceptors_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	demov1 "github.com/dedupd/dedupd/gen/dedup/demo/v1"
	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors"
)

func TestABatchIsHarmlessToRepeatWithAKeyForEachItem(t *testing.T) { // H04
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{client: once()})
		sent := map[string]int{}
		away := true
		w.handle = func(_ context.Context, n int, req *demov1.ChargeRequest) (*demov1.ChargeResponse, error) {
			if req.GetOrder() == "recipient 7" && away {
				away = false
				return nil, interceptors.NotApplied(status.Error(codes.Unavailable, "not now"))
			}
			sent[req.GetOrder()]++
			return receipt(n), nil
		}
		job := func(key func(item string) (string, error)) error {
			for i := range 10 {
				req := order()
				req.Order = fmt.Sprintf("recipient %d", i+1)
				k, err := key(req.GetOrder())
				require.NoError(t, err)
				if _, err := w.client.Charge(t.Context(), req, interceptors.WithKey(k)); err != nil {
					return err
				}
			}
			return nil
		}
		perItem := func(item string) (string, error) { return interceptors.Key("mailing 12", item) }
		require.Equal(t, codes.Unavailable, status.Code(job(perItem)), "it fails at the seventh")
		for range 2 {
			require.NoError(t, job(perItem))
		}
		require.Len(t, sent, 10)
		for item, n := range sent {
			require.Equal(t, 1, n, item)
		}

		perBatch := func(string) (string, error) { return interceptors.Key("mailing 13") }
		requireReason(t, job(perBatch), codes.FailedPrecondition, dedupv1.Reason_REASON_KEY_REUSED)
		require.Equal(t, 2, sent["recipient 1"])
		require.Equal(t, 1, sent["recipient 2"], "a key for the batch is refused at its second item, not taken for it")
	})
}
