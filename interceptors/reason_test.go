package interceptors

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors/policy"
)

// fieldOf returns the field that a refusal's BadRequest names.
func fieldOf(tb testing.TB, err error) string {
	tb.Helper()
	for _, d := range status.Convert(err).Details() {
		if bad, ok := d.(*errdetails.BadRequest); ok {
			require.Len(tb, bad.GetFieldViolations(), 1)
			return bad.GetFieldViolations()[0].GetField()
		}
	}
	return ""
}

func TestEveryReasonHasItsCode(t *testing.T) { // C04
	t.Parallel()
	want := map[dedupv1.Reason]codes.Code{
		dedupv1.Reason_REASON_IN_PROGRESS:        codes.Aborted,
		dedupv1.Reason_REASON_OUTCOME_UNKNOWN:    codes.FailedPrecondition,
		dedupv1.Reason_REASON_KEY_REUSED:         codes.FailedPrecondition,
		dedupv1.Reason_REASON_KEY_EXPIRED:        codes.FailedPrecondition,
		dedupv1.Reason_REASON_KEY_REQUIRED:       codes.InvalidArgument,
		dedupv1.Reason_REASON_KEY_INVALID:        codes.InvalidArgument,
		dedupv1.Reason_REASON_INPUT_INVALID:      codes.InvalidArgument,
		dedupv1.Reason_REASON_OUTCOME_NOT_STORED: codes.DataLoss,
		dedupv1.Reason_REASON_STALE_HOLDER:       codes.FailedPrecondition,
		dedupv1.Reason_REASON_NOT_RECONCILED:     codes.FailedPrecondition,
		dedupv1.Reason_REASON_STORE_UNAVAILABLE:  codes.Unavailable,
		dedupv1.Reason_REASON_RECORD_CHANGED:     codes.FailedPrecondition,
		dedupv1.Reason_REASON_BREAKER_OPEN:       codes.Unavailable,
		dedupv1.Reason_REASON_BUDGET_SPENT:       codes.Unknown,
		dedupv1.Reason_REASON_QUOTA_EXCEEDED:     codes.ResourceExhausted,
		dedupv1.Reason_REASON_ENTRY_NOT_FOUND:    codes.NotFound,
		dedupv1.Reason_REASON_ENTRY_CHANGED:      codes.FailedPrecondition,
	}
	require.Len(t, want, len(dedupv1.Reason_name)-1)
	for reason, code := range want {
		err := refusal{reason: reason, message: "no"}.err()
		requireRefusal(t, err, code, reason)
		_, hinted := RetryAfter(err)
		require.False(t, hinted)
		require.Empty(t, fieldOf(t, err))
	}
}

func TestARefusalCarriesWhatACallerNeeds(t *testing.T) {
	t.Parallel()
	record := []byte{0xde, 0xad, 0xbe, 0xef, 1, 2, 3, 4}
	err := refusal{
		reason: dedupv1.Reason_REASON_STORE_UNAVAILABLE, message: "the store cannot be reached, try again",
		operation: "/p.S/M", record: record, hint: true, retryAfter: 2 * time.Second, effect: policy.EffectNone,
	}.err()
	require.Equal(t, "the store cannot be reached, try again", status.Convert(err).Message())
	got, ok := policy.RefusalOf(err)
	require.True(t, ok)
	require.Equal(t, policy.Refusal{
		Reason: dedupv1.Reason_REASON_STORE_UNAVAILABLE, Effect: policy.EffectNone,
		Operation: "/p.S/M", Record: "deadbeef0102",
	}, got)
	after, ok := RetryAfter(err)
	require.True(t, ok)
	require.Equal(t, 2*time.Second, after)
	require.Equal(t, policy.EffectNone, policy.Default().Classify(policy.Try{Err: err}).Effect)

	negative, ok := RetryAfter(refusal{reason: dedupv1.Reason_REASON_IN_PROGRESS, hint: true, retryAfter: -time.Second}.err())
	require.True(t, ok, "a lease that is over asks for no wait")
	require.Zero(t, negative)
}

func TestARefusalHandedOnIsMarked(t *testing.T) { // C04
	t.Parallel()
	inner := status.Convert(refusal{reason: dedupv1.Reason_REASON_KEY_REUSED, message: "no", operation: "/p.S/M"}.err()).Proto()
	foreign := &anypb.Any{TypeUrl: "example.test/Unlinked", Value: []byte{0xff, 0x00}}
	other, err := anypb.New(&errdetails.ErrorInfo{Domain: "payments.example", Reason: "KEY_REUSED"})
	require.NoError(t, err)
	inner.Details = append([]*anypb.Any{foreign, other}, inner.GetDetails()...)
	handedOn := fmt.Errorf("calling the ledger: %w", status.FromProto(inner).Err())

	marked := markNested(handedOn)
	_, ours := ReasonOf(marked)
	require.False(t, ours)
	got, ok := policy.RefusalOf(marked)
	require.True(t, ok)
	require.Equal(t, policy.Refusal{Reason: dedupv1.Reason_REASON_KEY_REUSED, Nested: true, Operation: "/p.S/M"}, got)
	s := policy.StatusOf(marked)
	require.Equal(t, policy.StatusOf(handedOn).Code(), s.Code())
	require.Equal(t, policy.StatusOf(handedOn).Message(), s.Message())
	details := s.Proto().GetDetails()
	require.Len(t, details, 3)
	require.True(t, proto.Equal(foreign, details[0]))
	require.True(t, proto.Equal(other, details[1]))

	require.Equal(t, marked, markNested(marked), "once is enough")
	_, ours = ReasonOf(handedOn)
	require.True(t, ours, "the handler's own error stays as it was")
}

func TestErrorsWithoutARefusalAreHandedOnUnchanged(t *testing.T) {
	t.Parallel()
	broken := &statuspb.Status{Code: int32(codes.Aborted), Details: []*anypb.Any{
		{TypeUrl: "type.googleapis.com/google.rpc.ErrorInfo", Value: []byte{0xff}},
	}}
	for _, err := range []error{nil, errors.New("boom"), status.Error(codes.Aborted, strings.Repeat("x", 10)), status.FromProto(broken).Err()} {
		require.Equal(t, err, markNested(err))
	}
}
