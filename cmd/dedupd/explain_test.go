package main

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
)

func TestEveryRemoteErrorSaysWhatToDo(t *testing.T) {
	t.Parallel()
	refusal := func(code codes.Code, reason, state string) error {
		st, err := status.New(code, "the lease is still running").WithDetails(
			&errdetails.ErrorInfo{Domain: "dedup.v1", Reason: reason, Metadata: map[string]string{"state": state}},
			&errdetails.RetryInfo{RetryDelay: durationpb.New(1500 * time.Millisecond)},
		)
		require.NoError(t, err)
		return st.Err()
	}
	foreign, err := status.New(codes.Internal, "oops").WithDetails(&errdetails.ErrorInfo{Domain: "other", Reason: "RECORD_CHANGED"})
	require.NoError(t, err)
	for name, test := range map[string]struct {
		err  error
		want string
	}{
		"nobody listens":    {status.Error(codes.Unavailable, "connection refused"), "cannot reach dedupd at host:1; start it with `dedupd serve`, or name another address with --addr"},
		"another service":   {status.Error(codes.Unimplemented, "unknown service"), "what listens at host:1 is not dedupd, or one of another version; --addr takes its gRPC address"},
		"too slow":          {status.Error(codes.DeadlineExceeded, "x"), "no answer from host:1 in time; try again, or wait longer with --timeout"},
		"changed":           {refusal(codes.FailedPrecondition, "RECORD_CHANGED", "completed"), "the record has changed since it was looked at and is completed now; nothing was written: look again with `dedupd keys get` and decide anew"},
		"store gone":        {refusal(codes.Unavailable, "STORE_UNAVAILABLE", ""), "the server cannot reach its store, and its log says why; try again once it can, a verdict too: whether it was written is not known"},
		"lease still runs":  {refusal(codes.FailedPrecondition, "OUTCOME_UNKNOWN", ""), "refused with OUTCOME_UNKNOWN: the lease is still running; try again in 1.5s"},
		"somebody else's":   {foreign.Err(), "host:1 answered Internal: oops"},
		"of our own making": {fmt.Errorf("odd"), "odd"},
		"cancelled by hand": {status.Error(codes.Canceled, "x"), "interrupted"},
	} {
		require.Equal(t, test.want, explain(overWire("host:1", test.err)), name)
	}
	require.NoError(t, overWire("host:1", nil))
}

func TestExitCodesAreThoseOfTheHelp(t *testing.T) {
	t.Parallel()
	require.Equal(t, 0, exitCode(nil))
	require.Equal(t, 1, exitCode(overWire("host:1", status.Error(codes.Unavailable, "x"))))
	require.Equal(t, 2, exitCode(fmt.Errorf("x: %w", usagef("y"))))
	require.Equal(t, 3, exitCode(fmt.Errorf("x: %w", errNoRecord)))
	require.Equal(t, 130, exitCode(overWire("host:1", context.Canceled)))
}
