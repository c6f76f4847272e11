package policy

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// readTable reads the table as people do, from README.md: what each code means.
func readTable(t *testing.T) map[codes.Code][3]string {
	t.Helper()
	page, err := os.ReadFile("README.md")
	require.NoError(t, err)
	_, rows, found := strings.Cut(string(page), "| --- | --- | --- | --- |\n")
	require.True(t, found)
	rows, _, _ = strings.Cut(rows, "\n\n")
	table := map[codes.Code][3]string{}
	for row := range strings.Lines(rows) {
		cells := strings.Split(strings.Trim(row, "|\n "), " | ")
		for name := range strings.SplitSeq(cells[0], ", ") {
			var code codes.Code
			require.NoError(t, code.UnmarshalJSON([]byte(strconv.Quote(name))))
			require.NotContains(t, table, code)
			table[code] = [3]string(cells[1:])
		}
	}
	return table
}

func TestEveryCodeHasItsRow(t *testing.T) { // D05, E06
	t.Parallel()
	want := readTable(t)
	require.Len(t, want, 17)
	for code, row := range want {
		t.Run(code.String(), func(t *testing.T) {
			t.Parallel()
			table := Default()
			err := status.Error(code, "as the application says")
			got := table.Row(code)
			said := [3]string{got.Retry.String(), got.Effect.String(), got.Ending.String()}
			require.Equal(t, row, said)
			answer := table.Classify(Try{Err: err})
			require.Equal(t, got.Retry, answer.Retry)
			require.Equal(t, got.Effect, answer.Effect)
			require.Zero(t, answer.Reason)
			require.False(t, answer.HasHint)
			require.Equal(t, got.Ending, table.Ending(err))
			if code != codes.OK {
				require.Equal(t, got.Ending, table.Ending(fmt.Errorf("wrapped: %w", err)))
				require.Equal(t, Unknown, table.ErrorsUnknown().Ending(err))
				require.NotEqual(t, Completed, got.Ending, "no error is stored as a result") // D05
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
