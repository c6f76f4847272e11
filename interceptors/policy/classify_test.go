package policy

import (
	"context"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
)

func failure(tb testing.TB, code codes.Code, message string, details ...protoadapt.MessageV1) error {
	tb.Helper()
	s, err := status.New(code, message).WithDetails(details...)
	require.NoError(tb, err)
	return s.Err()
}

func retryInfo(d time.Duration) *errdetails.RetryInfo {
	return &errdetails.RetryInfo{RetryDelay: durationpb.New(d)}
}

func ours(reason string, metadata ...string) *errdetails.ErrorInfo {
	info := &errdetails.ErrorInfo{Reason: reason, Domain: Domain, Metadata: map[string]string{}}
	for i := 0; i < len(metadata); i += 2 {
		info.Metadata[metadata[i]] = metadata[i+1]
	}
	return info
}

func TestDedupdsOwnReasons(t *testing.T) { // C04, C05, E06
	t.Parallel()
	seen := map[dedupv1.Reason]bool{}
	for _, tt := range []struct {
		reason dedupv1.Reason
		code   codes.Code
		hint   bool
		retry  Retry
		effect Effect
		ending Ending // of a handler that hands it on
	}{
		{dedupv1.Reason_REASON_IN_PROGRESS, codes.Aborted, true, Wait, EffectUnknown, Unknown},
		{dedupv1.Reason_REASON_OUTCOME_UNKNOWN, codes.FailedPrecondition, true, Wait, EffectUnknown, Unknown},
		{dedupv1.Reason_REASON_OUTCOME_UNKNOWN, codes.FailedPrecondition, false, Permanent, EffectUnknown, Unknown},
		{dedupv1.Reason_REASON_KEY_REUSED, codes.FailedPrecondition, false, Permanent, EffectNone, ReleasedKept},
		{dedupv1.Reason_REASON_KEY_EXPIRED, codes.FailedPrecondition, false, Permanent, EffectNone, ReleasedKept},
		{dedupv1.Reason_REASON_KEY_REQUIRED, codes.InvalidArgument, false, Permanent, EffectNone, ReleasedKept},
		{dedupv1.Reason_REASON_KEY_INVALID, codes.InvalidArgument, false, Permanent, EffectNone, ReleasedKept},
		{dedupv1.Reason_REASON_INPUT_INVALID, codes.InvalidArgument, false, Permanent, EffectNone, ReleasedKept},
		{dedupv1.Reason_REASON_OUTCOME_NOT_STORED, codes.DataLoss, false, Permanent, EffectApplied, Unknown},
		{dedupv1.Reason_REASON_STALE_HOLDER, codes.FailedPrecondition, false, Permanent, EffectUnknown, Unknown},
		{dedupv1.Reason_REASON_NOT_RECONCILED, codes.FailedPrecondition, false, Permanent, EffectNone, ReleasedKept},
		{dedupv1.Reason_REASON_STORE_UNAVAILABLE, codes.Unavailable, true, Transient, EffectUnknown, Unknown},
		{dedupv1.Reason_REASON_RECORD_CHANGED, codes.FailedPrecondition, false, Permanent, EffectNone, ReleasedKept},
		{dedupv1.Reason_REASON_BREAKER_OPEN, codes.Unavailable, true, Transient, EffectNone, Released},
		{dedupv1.Reason_REASON_QUOTA_EXCEEDED, codes.ResourceExhausted, true, Transient, EffectNone, Released},
		{dedupv1.Reason_REASON_ENTRY_NOT_FOUND, codes.NotFound, false, Permanent, EffectNone, ReleasedKept},
		{dedupv1.Reason_REASON_ENTRY_CHANGED, codes.FailedPrecondition, false, Permanent, EffectNone, ReleasedKept},
		{dedupv1.Reason_REASON_BUDGET_SPENT, codes.Unavailable, false, Transient, EffectUnknown, Unknown},
	} {
		seen[tt.reason] = true
		t.Run(fmt.Sprint(tt.reason, " hint ", tt.hint), func(t *testing.T) {
			t.Parallel()
			details := []protoadapt.MessageV1{ours(tt.reason.String()[len(reasonPrefix):])}
			if tt.hint {
				details = append(details, retryInfo(time.Second))
			}
			err := failure(t, tt.code, "refused", details...)
			answer := Default().Classify(Try{Err: err})
			require.Equal(t, tt.retry, answer.Retry)
			require.Equal(t, tt.effect, answer.Effect)
			require.Equal(t, tt.reason, answer.Reason)
			require.Equal(t, tt.hint, answer.HasHint)
			require.Equal(t, tt.ending, Default().Ending(err))
		})
	}
	require.Len(t, seen, len(dedupv1.Reason_name)-1, "every reason but UNSPECIFIED has a row")
}

func TestARefusalMayStateItsEffect(t *testing.T) {
	t.Parallel()
	for metadata, want := range map[string]Effect{
		"none": EffectNone, "unknown": EffectUnknown, "applied": EffectApplied,
		"a word of a later version": EffectUnknown,
	} {
		t.Run(metadata, func(t *testing.T) {
			t.Parallel()
			err := failure(t, codes.Unavailable, "", ours("STORE_UNAVAILABLE", MetaEffect, metadata))
			require.Equal(t, want, Default().Classify(Try{Err: err}).Effect)
		})
	}
	later := failure(t, codes.ResourceExhausted, "", ours("A_LATER_REASON"))
	require.Equal(t, Answer{Retry: Transient, Effect: EffectUnknown}, Default().Classify(Try{Err: later}),
		"a reason of a later version: its code, and no promise")
}

func TestANestedRefusalIsTheApplicationsPlainCode(t *testing.T) { // C04
	t.Parallel()
	err := failure(t, codes.Aborted, "", ours("IN_PROGRESS", MetaNested, "true"), retryInfo(time.Second))
	answer := Default().Classify(Try{Err: err})
	require.Equal(t, Transient, answer.Retry, "it uses up an attempt")
	require.Zero(t, answer.Reason)
	require.Equal(t, EffectUnknown, answer.Effect, "what is unknown further down is unknown here")
	_, ok := ReasonOf(err)
	require.False(t, ok)

	both := failure(t, codes.FailedPrecondition, "", ours("KEY_REUSED", MetaNested, "true"), ours("KEY_EXPIRED"))
	reason, ok := ReasonOf(both)
	require.True(t, ok)
	require.Equal(t, dedupv1.Reason_REASON_KEY_EXPIRED, reason)
}

func TestApplicationsOwnErrorsAreNotOurs(t *testing.T) { // C04
	t.Parallel()
	foreign := ours("IN_PROGRESS")
	foreign.Domain = "payments.example"
	for name, err := range map[string]error{
		"nil":             nil,
		"plain":           status.Error(codes.Aborted, "IN_PROGRESS"),
		"another domain":  failure(t, codes.Aborted, "", foreign),
		"no status":       context.Canceled,
		"unreadable info": brokenInfo(t),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, ok := ReasonOf(err)
			require.False(t, ok)
			_, ok = RefusalOf(err)
			require.False(t, ok)
		})
	}
	r, ok := RefusalOf(fmt.Errorf("wrapped: %w", failure(t, codes.Aborted, "", ours("IN_PROGRESS", MetaOperation, "op", MetaRecord, "0123456789ab"))))
	require.True(t, ok)
	require.Equal(t, Refusal{Reason: dedupv1.Reason_REASON_IN_PROGRESS, Operation: "op", Record: "0123456789ab"}, r)
}

func brokenInfo(tb testing.TB) error {
	tb.Helper()
	s, _ := status.FromError(failure(tb, codes.Aborted, "", ours("IN_PROGRESS")))
	p := s.Proto()
	p.Details[0].Value = []byte{0xff}
	return status.FromProto(p).Err()
}

func TestHintsAndPushback(t *testing.T) { // E06
	t.Parallel()
	aborted := func(details ...protoadapt.MessageV1) error { return failure(t, codes.Aborted, "", details...) }
	tooLong := &errdetails.RetryInfo{RetryDelay: &durationpb.Duration{Seconds: math.MaxInt64}}
	for _, tt := range []struct {
		name     string
		err      error
		pushback []string
		retry    Retry
		hint     time.Duration
		has      bool
	}{
		{"none", aborted(), nil, Transient, 0, false},
		{"RetryInfo", aborted(retryInfo(3 * time.Second)), nil, Transient, 3 * time.Second, true},
		{"RetryInfo of zero", aborted(retryInfo(0)), nil, Transient, 0, true},
		{"RetryInfo without a delay", aborted(&errdetails.RetryInfo{}), nil, Transient, 0, false},
		{"negative RetryInfo", aborted(retryInfo(-time.Second)), nil, Transient, 0, false},
		{"RetryInfo out of range", aborted(tooLong), nil, Transient, 0, false},
		{"pushback", aborted(), []string{"1500"}, Transient, 1500 * time.Millisecond, true},
		{"pushback of zero", aborted(), []string{"0"}, Transient, 0, true},
		{"the longer of both", aborted(retryInfo(time.Second)), []string{"1500"}, Transient, 1500 * time.Millisecond, true},
		{"the longer of both, the other way", aborted(retryInfo(2 * time.Second)), []string{"1500"}, Transient, 2 * time.Second, true},
		{"negative pushback", aborted(), []string{"-1"}, Stop, 0, false},
		{"unreadable pushback", aborted(), []string{"soon"}, Stop, 0, false},
		{"empty pushback", aborted(), []string{""}, Stop, 0, false},
		{"pushback beyond 32 bits", aborted(), []string{"2147483648"}, Stop, 0, false},
		{"two pushbacks", aborted(), []string{"1", "2"}, Stop, 0, false},
		{"pushback on an IN_PROGRESS", aborted(ours("IN_PROGRESS")), []string{"-1"}, Stop, 0, false},
		{"a hint makes no permanent error transient", failure(t, codes.AlreadyExists, "", retryInfo(time.Second)), []string{"5"}, Permanent, time.Second, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			answer := Default().Classify(Try{Err: tt.err, Pushback: tt.pushback})
			require.Equal(t, tt.retry, answer.Retry)
			require.Equal(t, tt.hint, answer.Hint)
			require.Equal(t, tt.has, answer.HasHint)
		})
	}
}

func TestMessagesLargerThanALimit(t *testing.T) { // E06, D01
	t.Parallel()
	send := "trying to send message larger than max (5000000 vs. 4194304)"
	for _, tt := range []struct {
		name    string
		code    codes.Code
		message string
		sent    Sent
		retry   Retry
		effect  Effect
	}{
		{"raised before anything was sent", codes.ResourceExhausted, send, SentNothing, Permanent, EffectNone},
		{"raised after the header", codes.ResourceExhausted, send, SentHeader, Permanent, EffectNone},
		{"raised by a server whose answer is too large", codes.ResourceExhausted, send, SentMessage, Permanent, EffectUnknown},
		{"raised where nobody watched", codes.ResourceExhausted, send, SentUnseen, Permanent, EffectUnknown},
		{"of an older grpc-go", codes.ResourceExhausted, "grpc: " + send, SentMessage, Permanent, EffectUnknown},
		{"received", codes.ResourceExhausted, "grpc: received message larger than max (5 vs. 4)", SentMessage, Permanent, EffectUnknown},
		{"received, this machine's limit", codes.ResourceExhausted, "grpc: received message larger than max length allowed on current machine (5 vs. 4)", SentMessage, Permanent, EffectUnknown},
		{"decompressed", codes.ResourceExhausted, "grpc: received message after decompression larger than max 4", SentMessage, Permanent, EffectUnknown},
		{"decompressed by an old codec", codes.ResourceExhausted, "grpc: message after decompression larger than max (5 vs. 4)", SentMessage, Permanent, EffectUnknown},
		{"over 4 GiB", codes.ResourceExhausted, "grpc: message too large (5000000000 bytes)", SentMessage, Permanent, EffectUnknown},
		{"C core", codes.ResourceExhausted, "CLIENT: Received message larger than max (5 vs. 4)", SentMessage, Permanent, EffectUnknown},
		{"grpc-java", codes.ResourceExhausted, "gRPC message exceeds maximum size 4: 5", SentMessage, Permanent, EffectUnknown},
		{"grpc-dotnet", codes.ResourceExhausted, "Sending message exceeds the maximum configured message size.", SentMessage, Permanent, EffectUnknown},
		{"tonic", codes.OutOfRange, "Error, encoded message length too large: found 5 bytes, the limit is: 4 bytes", SentMessage, Permanent, EffectUnknown},
		{"connect", codes.ResourceExhausted, "message size 5 exceeds sendMaxBytes 4", SentMessage, Permanent, EffectUnknown},
		{"a quota", codes.ResourceExhausted, "come back later", SentMessage, Transient, EffectNone},
		{"an application's own words", codes.InvalidArgument, "avatar exceeds maximum size", SentMessage, Permanent, EffectNone},
		{"an application's own range", codes.OutOfRange, "amount is too large", SentMessage, Permanent, EffectNone},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			err := status.Error(tt.code, tt.message)
			answer := Default().Classify(Try{Err: err, Sent: tt.sent})
			require.Equal(t, tt.retry, answer.Retry)
			require.Equal(t, tt.effect, answer.Effect)
			wrapped := fmt.Errorf("calling the ledger: %w", err)
			require.Equal(t, answer, Default().Classify(Try{Err: wrapped, Sent: tt.sent}))
			if tt.retry == Permanent && tt.code != codes.InvalidArgument && tt.message != "amount is too large" {
				require.Equal(t, Unknown, Default().Ending(wrapped), "a handler that hands it on cannot tell")
			}
		})
	}
}

func TestACodeThatTheTransportMadeProvesNothing(t *testing.T) { // E07
	t.Parallel()
	for code, message := range map[codes.Code]string{
		codes.ResourceExhausted: "stream terminated by RST_STREAM with error code: ENHANCE_YOUR_CALM",
		codes.PermissionDenied:  "unexpected HTTP status code received from server: 403 (Forbidden)",
		codes.Unimplemented:     "unexpected HTTP status code received from server: 404 (Not Found)",
	} {
		t.Run(message, func(t *testing.T) {
			t.Parallel()
			err := status.Error(code, message)
			answer := Default().Classify(Try{Err: err, Sent: SentMessage})
			require.Equal(t, EffectUnknown, answer.Effect)
			require.Equal(t, Default().Row(code).Retry, answer.Retry)
			require.Equal(t, Unknown, Default().Ending(err))
		})
	}
}

func TestNothingSentIsNothingApplied(t *testing.T) {
	t.Parallel()
	for _, code := range []codes.Code{codes.Unavailable, codes.Canceled, codes.DeadlineExceeded, codes.Internal} {
		err := status.Error(code, "before the stream")
		require.Equal(t, EffectNone, Default().Classify(Try{Err: err, Sent: SentNothing}).Effect)
		for _, sent := range []Sent{SentUnseen, SentHeader, SentMessage} {
			require.Equal(t, EffectUnknown, Default().Classify(Try{Err: err, Sent: sent}).Effect)
		}
	}
	// A refusal speaks of the key, not of this try.
	err := failure(t, codes.FailedPrecondition, "", ours("OUTCOME_UNKNOWN"))
	require.Equal(t, EffectUnknown, Default().Classify(Try{Err: err, Sent: SentNothing}).Effect)
}

func TestAnEndedCallerStopsTheRetries(t *testing.T) { // E03
	t.Parallel()
	for name, tt := range map[string]struct {
		err   error
		retry Retry
	}{
		"canceled":      {status.Error(codes.Canceled, ""), Stop},
		"bare canceled": {context.Canceled, Stop},
		"deadline":      {fmt.Errorf("x: %w", context.DeadlineExceeded), Stop},
		"unavailable":   {status.Error(codes.Unavailable, ""), Stop},
		"in progress":   {failure(t, codes.Aborted, "", ours("IN_PROGRESS"), retryInfo(0)), Stop},
		"permanent":     {status.Error(codes.NotFound, ""), Permanent},
		"success":       {nil, Permanent},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, tt.retry, Default().Classify(Try{Err: tt.err, CallerDone: true}).Retry)
		})
	}
}

type okClaimError struct{}

func (okClaimError) Error() string              { return "failed after all" }
func (okClaimError) GRPCStatus() *status.Status { return status.New(codes.OK, "") }

func TestStatusOfIsWhatAServerSends(t *testing.T) { // D04
	t.Parallel()
	bare := failure(t, codes.NotFound, "no such order", retryInfo(time.Second))
	for _, tt := range []struct {
		name    string
		err     error
		code    codes.Code
		message string
		details int
	}{
		{"nil", nil, codes.OK, "", 0},
		{"bare", bare, codes.NotFound, "no such order", 1},
		{"wrapped", fmt.Errorf("charge: %w", bare), codes.NotFound, "charge: rpc error: code = NotFound desc = no such order", 1},
		{"a context's end", fmt.Errorf("db: %w", context.DeadlineExceeded), codes.DeadlineExceeded, "db: context deadline exceeded", 0},
		{"any other error", fmt.Errorf("boom"), codes.Unknown, "boom", 0},
		{"a failure that claims OK", okClaimError{}, codes.Unknown, "failed after all", 0},
		{"no UTF-8", failure(t, codes.NotFound, "a\xff\xfeb", retryInfo(time.Second)), codes.NotFound, "a\ufffd\ufffdb", 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := StatusOf(tt.err)
			require.Equal(t, tt.code, s.Code())
			require.Equal(t, tt.message, s.Message())
			require.Len(t, s.Proto().GetDetails(), tt.details)
		})
	}
}
