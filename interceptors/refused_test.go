package interceptors_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protowire"

	demov1 "github.com/dedupd/dedupd/gen/dedup/demo/v1"
	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors"
)

// What no repeat will cure is asked for once, by a client that would ask five
// times, and nothing runs.
func TestARefusalForGoodIsAskedForOnce(t *testing.T) { // B11, C04, E06
	t.Parallel()
	other := order()
	other.Amount++
	for name, c := range map[string]struct {
		after  time.Duration
		repeat *demov1.ChargeRequest
		answer int // bytes of the first one
		code   codes.Code
		reason dedupv1.Reason
	}{
		"the key was used for another request": {
			repeat: other, code: codes.FailedPrecondition, reason: dedupv1.Reason_REASON_KEY_REUSED,
		},
		"the answer is past its retention": {
			after: 90 * time.Second, repeat: order(), code: codes.FailedPrecondition, reason: dedupv1.Reason_REASON_KEY_EXPIRED,
		},
		"another request, and past the retention": {
			after: 90 * time.Second, repeat: other, code: codes.FailedPrecondition, reason: dedupv1.Reason_REASON_KEY_REUSED,
		},
		"the answer was too large to keep": {
			repeat: order(), answer: 100, code: codes.DataLoss, reason: dedupv1.Reason_REASON_OUTCOME_NOT_STORED,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, setup{maxOutcome: 64, retention: time.Minute})
				w.handle = fails()
				if c.answer > 0 {
					w.handle = takes(0)
					w.runs = c.answer // receipt's length
				}
				_, err := w.client.Charge(t.Context(), order(), interceptors.WithKey("k"))
				require.NoError(t, err)
				ran := w.ran()
				pass(c.after)
				_, err = w.client.Charge(t.Context(), c.repeat, interceptors.WithKey("k"))
				requireReason(t, err, c.code, c.reason)
				require.Equal(t, 2, w.called())
				require.Equal(t, ran, w.ran())

				pass(2 * time.Minute) // past the tombstone too
				_, err = w.client.Charge(t.Context(), c.repeat, interceptors.WithKey("k"))
				require.NoError(t, err, "it runs as new")
				require.Equal(t, ran+1, w.ran())
			})
		})
	}
}

// A replica that does not know a new field sees bytes of it that may differ from
// attempt to attempt: maps have no order. What the client says of its own message
// then tells, and only then.
func TestReplicasOfAnOlderBuildTakeARetryForTheSameRequest(t *testing.T) { // C01, C02
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{})
		client := w.bare(t)
		send := func(key, digest string, newField ...byte) error {
			req := order()
			if newField != nil { // a message with a map of two entries, encoded in either order
				raw := protowire.AppendTag(nil, 99, protowire.BytesType)
				req.ProtoReflect().SetUnknown(protowire.AppendBytes(raw, newField))
			}
			ctx := metadata.AppendToOutgoingContext(t.Context(), interceptors.HeaderKey, key)
			if digest != "" {
				ctx = metadata.AppendToOutgoingContext(ctx, interceptors.HeaderFingerprint, "1:"+digest)
			}
			_, err := client.Charge(ctx, req)
			return err
		}
		one, two := []byte{0x0a, 2, 8, 1, 0x0a, 2, 8, 2}, []byte{0x0a, 2, 8, 2, 0x0a, 2, 8, 1}
		a, b := strings.Repeat("a", 64), strings.Repeat("b", 64)

		require.NoError(t, send("k", a, one...))
		require.NoError(t, send("k", a, two...), "the other encoding of the same message")
		require.Equal(t, 1, w.ran())
		requireReason(t, send("k", b, two...), codes.FailedPrecondition, dedupv1.Reason_REASON_KEY_REUSED)
		requireReason(t, send("k", "", two...), codes.FailedPrecondition, dedupv1.Reason_REASON_KEY_REUSED)
		require.NoError(t, send("k", b, one...), "equal bytes are the same, whatever the client says")
		require.NoError(t, send("k", a), "a replica that drops what it does not know, beside one that keeps it")

		require.NoError(t, send("known", a))
		other := order()
		other.Amount++
		ctx := metadata.AppendToOutgoingContext(t.Context(), interceptors.HeaderKey, "known", interceptors.HeaderFingerprint, "1:"+a)
		_, err := client.Charge(ctx, other)
		requireReason(t, err, codes.FailedPrecondition, dedupv1.Reason_REASON_KEY_REUSED)
		require.Equal(t, 2, w.ran(), "where everything is known a client cannot claim that two requests are one")
	})
}
