package policy

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// wantTable is the table as people read it, one line per code.
var wantTable = []struct {
	code   codes.Code
	retry  Retry
	effect Effect
	ending Ending
}{
	{codes.OK, Permanent, EffectApplied, Completed},
	{codes.Canceled, Transient, EffectUnknown, Unknown},
	{codes.Unknown, Transient, EffectUnknown, Unknown},
	{codes.InvalidArgument, Permanent, EffectNone, ReleasedKept},
	{codes.DeadlineExceeded, Transient, EffectUnknown, Unknown},
	{codes.NotFound, Permanent, EffectNone, ReleasedKept},
	{codes.AlreadyExists, Permanent, EffectNone, ReleasedKept},
	{codes.PermissionDenied, Permanent, EffectNone, Released},
	{codes.ResourceExhausted, Transient, EffectNone, Released},
	{codes.FailedPrecondition, Permanent, EffectNone, ReleasedKept},
	{codes.Aborted, Transient, EffectNone, Released},
	{codes.OutOfRange, Permanent, EffectNone, ReleasedKept},
	{codes.Unimplemented, Permanent, EffectNone, ReleasedKept},
	{codes.Internal, Transient, EffectUnknown, Unknown},
	{codes.Unavailable, Transient, EffectUnknown, Released},
	{codes.DataLoss, Permanent, EffectUnknown, Unknown},
	{codes.Unauthenticated, Permanent, EffectNone, Released},
}

func TestEveryCodeHasItsRow(t *testing.T) { // D05, E06
	t.Parallel()
	require.Len(t, wantTable, 17)
	for i, want := range wantTable {
		require.Equal(t, want.code, codes.Code(i))
		t.Run(want.code.String(), func(t *testing.T) {
			t.Parallel()
			table := Default()
			err := status.Error(want.code, "as the application says")
			require.Equal(t, Row{want.retry, want.effect, want.ending}, table.Row(want.code))
			answer := table.Classify(Try{Err: err})
			require.Equal(t, want.retry, answer.Retry)
			require.Equal(t, want.effect, answer.Effect)
			require.Zero(t, answer.Reason)
			require.False(t, answer.HasHint)
			require.Equal(t, want.ending, table.Ending(err))
			if want.code != codes.OK {
				require.Equal(t, want.ending, table.Ending(fmt.Errorf("wrapped: %w", err)))
				require.Equal(t, Unknown, table.ErrorsUnknown().Ending(err))
				require.NotEqual(t, Completed, want.ending, "no error is stored as a result") // D05
			}
		})
	}
	require.Equal(t, Completed, Default().ErrorsUnknown().Ending(nil))
	require.Equal(t, Default().Row(codes.Unknown), Default().Row(codes.Code(99)), "a code that nobody knows")
}

func TestOneMethodMayOverrideARow(t *testing.T) {
	t.Parallel()
	table, err := Default().With(codes.ResourceExhausted, Row{Retry: Permanent, Effect: EffectUnknown})
	require.NoError(t, err)
	require.Equal(t, Row{Permanent, EffectUnknown, Released}, table.Row(codes.ResourceExhausted), "zero fields stay")
	table, err = table.With(codes.ResourceExhausted, Row{Ending: Unknown})
	require.NoError(t, err)
	require.Equal(t, Row{Permanent, EffectUnknown, Unknown}, table.Row(codes.ResourceExhausted))
	require.Equal(t, Row{Transient, EffectNone, Released}, Default().Row(codes.ResourceExhausted), "other methods keep theirs")

	for name, bad := range map[string]struct {
		code codes.Code
		row  Row
	}{
		"OK stays applied":               {codes.OK, Row{Effect: EffectNone}},
		"no such code":                   {codes.Code(17), Row{}},
		"wait is for dedupd's own":       {codes.Aborted, Row{Retry: Wait}},
		"stop is for the caller's end":   {codes.Aborted, Row{Retry: Stop}},
		"no such effect":                 {codes.Aborted, Row{Effect: 4}},
		"an error is never a completion": {codes.Aborted, Row{Ending: Completed}},
		"no such ending":                 {codes.Aborted, Row{Ending: 5}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := Default().With(bad.code, bad.row)
			require.Error(t, err)
			require.Equal(t, Default(), got)
		})
	}
}

func TestNamesAreWords(t *testing.T) {
	t.Parallel()
	require.Equal(t, "as table permanent transient wait stop invalid(5)",
		fmt.Sprint(AsTable, " ", Permanent, " ", Transient, " ", Wait, " ", Stop, " ", Retry(5)))
	require.Equal(t, "as table none unknown applied invalid(4)",
		fmt.Sprint(EffectAsTable, " ", EffectNone, " ", EffectUnknown, " ", EffectApplied, " ", Effect(4)))
	require.Equal(t, "as table completed released released, kept unknown invalid(5)",
		fmt.Sprint(EndingAsTable, " ", Completed, " ", Released, " ", ReleasedKept, " ", Unknown, " ", Ending(5)))
	require.Equal(t, "unseen nothing header message invalid(4)",
		fmt.Sprint(SentUnseen, " ", SentNothing, " ", SentHeader, " ", SentMessage, " ", Sent(4)))
}
