package policy_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/dedupd/dedupd/interceptors/policy"
)

func refused(t *testing.T, c codes.Code, reason string, metadata map[string]string) error {
	t.Helper()
	s, err := status.New(c, "refused").WithDetails(&errdetails.ErrorInfo{
		Domain: policy.Domain, Reason: reason, Metadata: metadata,
	})
	require.NoError(t, err)
	return s.Err()
}

// tries is every kind of end, and what it says about the server.
func tries(t *testing.T) map[string]struct {
	try  policy.Try
	want policy.Verdict
} {
	t.Helper()
	type row = struct {
		try  policy.Try
		want policy.Verdict
	}
	sent := func(err error) policy.Try { return policy.Try{Err: err, Sent: policy.SentMessage} }
	unsent := func(err error) policy.Try { return policy.Try{Err: err, Sent: policy.SentNothing} }
	rows := map[string]row{
		"success": {sent(nil), policy.Well},

		"unavailable":                          {sent(status.Error(codes.Unavailable, "")), policy.Ill},
		"unavailable, nothing sent":            {unsent(status.Error(codes.Unavailable, "refused")), policy.Ill},
		"the server's deadline":                {sent(status.Error(codes.DeadlineExceeded, "")), policy.Ill},
		"a deadline, nobody watched":           {policy.Try{Err: context.DeadlineExceeded}, policy.Ill},
		"internal":                             {sent(status.Error(codes.Internal, "")), policy.Ill},
		"unknown":                              {sent(errors.New("boom")), policy.Ill},
		"a code of the future":                 {sent(status.Error(99, "")), policy.Ill},
		"a store that failed, further down":    {sent(refused(t, codes.Unavailable, "STORE_UNAVAILABLE", map[string]string{policy.MetaNested: "true"})), policy.Ill},
		"a breaker that is open, further down": {sent(refused(t, codes.Unavailable, "BREAKER_OPEN", map[string]string{policy.MetaNested: "true"})), policy.Ill},
		"another domain's reason":              {sent(status.Error(codes.Unavailable, "IN_PROGRESS")), policy.Ill},
		"the caller's deadline, after it was sent": {policy.Try{
			Err: context.DeadlineExceeded, Sent: policy.SentMessage, CallerDone: true,
		}, policy.Ill},

		"the caller's cancel":                         {policy.Try{Err: context.Canceled, Sent: policy.SentMessage, CallerDone: true}, policy.Neutral},
		"the caller's cancel, wrapped":                {policy.Try{Err: fmt.Errorf("call: %w", context.Canceled), CallerDone: true}, policy.Neutral},
		"the server's cancel":                         {sent(status.Error(codes.Canceled, "")), policy.Neutral},
		"a deadline gone before sending":              {policy.Try{Err: context.DeadlineExceeded, Sent: policy.SentNothing, CallerDone: true}, policy.Neutral},
		"internal, after the caller had left":         {policy.Try{Err: status.Error(codes.Internal, ""), Sent: policy.SentMessage, CallerDone: true}, policy.Neutral},
		"internal, made on this side":                 {unsent(status.Error(codes.Internal, "cannot marshal")), policy.Neutral},
		"unknown, made on this side":                  {unsent(errors.New("no token")), policy.Neutral},
		"unauthenticated, on this side":               {unsent(status.Error(codes.Unauthenticated, "no token")), policy.Neutral},
		"a gateway's 403":                             {sent(status.Error(codes.PermissionDenied, "unexpected HTTP status code received from server: 403 (Forbidden)")), policy.Neutral},
		"too large to send":                           {unsent(status.Error(codes.ResourceExhausted, "trying to send message larger than max (5 vs. 4)")), policy.Neutral},
		"too large to receive":                        {sent(status.Error(codes.ResourceExhausted, "grpc: received message larger than max (5 vs. 4)")), policy.Neutral},
		"data loss":                                   {sent(status.Error(codes.DataLoss, "")), policy.Neutral},
		"our breaker":                                 {unsent(refused(t, codes.Unavailable, "BREAKER_OPEN", nil)), policy.Neutral},
		"a guard's store that failed, nobody watched": {policy.Try{Err: refused(t, codes.Unavailable, "STORE_UNAVAILABLE", nil)}, policy.Neutral},
		"in progress, a guard's":                      {unsent(refused(t, codes.Aborted, "IN_PROGRESS", nil)), policy.Neutral},
		"in progress":                                 {sent(refused(t, codes.Aborted, "IN_PROGRESS", nil)), policy.Well},
		"key reused":                                  {sent(refused(t, codes.FailedPrecondition, "KEY_REUSED", nil)), policy.Well},
		"store unavailable":                           {sent(refused(t, codes.Unavailable, "STORE_UNAVAILABLE", nil)), policy.Well},
		"not stored":                                  {sent(refused(t, codes.DataLoss, "OUTCOME_NOT_STORED", nil)), policy.Well},
		"a reason of the future":                      {sent(refused(t, codes.Internal, "NEW", nil)), policy.Well},
	}
	for _, c := range []codes.Code{
		codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.PermissionDenied, codes.FailedPrecondition,
		codes.OutOfRange, codes.Unimplemented, codes.Unauthenticated, codes.Aborted, codes.ResourceExhausted,
	} {
		rows["answered "+c.String()] = row{sent(status.Error(c, "")), policy.Well}
	}
	return rows
}

// F01: what counts, what does not, and the same in half-open.
func TestOnlySignsOfAnIllServerOpenTheBreaker(t *testing.T) {
	t.Parallel()
	for name, row := range tries(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, row.want, policy.VerdictOf(row.try))
			synctest.Test(t, func(t *testing.T) {
				b := newBreaker(t, policy.BreakerSettings{})
				sent := calls(b, 1000, policy.VerdictOf(row.try))
				if row.want == policy.Ill {
					require.Equal(t, 20, sent)
					pass(6 * time.Second)
					require.Equal(t, 1, calls(b, 1000, policy.VerdictOf(row.try)))
					require.Equal(t, policy.BreakerOpen, b.State(service))
					return
				}
				require.Equal(t, 1000, sent)
				require.Equal(t, policy.BreakerClosed, b.State(service))

				calls(b, 1000, policy.Ill)
				pass(6 * time.Second)
				require.Equal(t, 1000, calls(b, 1000, policy.VerdictOf(row.try)), "none opens it")
				want := policy.BreakerHalfOpen
				if row.want == policy.Well {
					want = policy.BreakerClosed
				}
				require.Equal(t, want, b.State(service), "an answer of any kind closes, silence does not")
				calls(b, 3, policy.Well)
				require.Equal(t, policy.BreakerClosed, b.State(service))
			})
		})
	}
}
