package main

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
)

func TestWhatOthersWroteCannotMoveTheCursor(t *testing.T) {
	t.Parallel()
	info := &dedupv1.RecordInfo{
		RecordId: make([]byte, 32), State: dedupv1.State_STATE_RELEASED, Bound: true, ByOperator: true,
		Identity: &dedupv1.Identity{Namespace: "n", Operation: "o", Caller: []byte("\x1b[2Jgone"), Key: []byte{0xff, 0}},
		Note:     "line\nbreak",
	}
	var out strings.Builder
	require.NoError(t, display{Output: outputTable, ShowKeys: true}.one(&out, info))
	require.NotContains(t, out.String(), "\x1b")
	require.Contains(t, out.String(), `"\x1b[2Jgone"`)
	require.Contains(t, out.String(), `"\xff\x00"`)
	require.Contains(t, out.String(), `"line\nbreak"`)
	require.Contains(t, out.String(), "released (by operator, only the same request may run again)")
}

func TestARecordOfWhichOnlyTheIdIsKnownIsShown(t *testing.T) {
	t.Parallel()
	for _, format := range []outputFormat{outputTable, outputJSON} {
		var out strings.Builder
		d := display{Output: format}
		require.NoError(t, d.one(&out, &dedupv1.RecordInfo{}))
		rows := d.rows(&out)
		require.NoError(t, rows.add(&dedupv1.RecordInfo{}))
		require.NoError(t, rows.end(false))
		require.NotEmpty(t, out.String())
	}
}

func TestTheNextStepOfAnUnknownRecordDependsOnItsLease(t *testing.T) {
	t.Parallel()
	info := &dedupv1.RecordInfo{RecordId: make([]byte, 32), State: dedupv1.State_STATE_UNKNOWN}
	require.Contains(t, nextStep(info), "keys resolve --id 000000000000")
	info.LeaseLeft = durationpb.New(time.Second)
	require.Contains(t, nextStep(info), "wait for the lease to end")
}

// A conflict's record may be gone when it is refused, and then there is no fence.
func TestAConflictTellsWhatItMet(t *testing.T) {
	t.Parallel()
	c := &dedupv1.ConflictInfo{RefusedFence: 3, RecordFence: 4}
	require.Contains(t, conflictText(c), "when the record had fence 4")
	c.RecordFence = 0
	require.Contains(t, conflictText(c), "when its record was gone: forgotten, or past its time")
	require.NotContains(t, conflictText(c), "fence 0")
}

func TestTimesAreRoundedForPeople(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		1500 * time.Microsecond: "2ms", 1600 * time.Millisecond: "2s", 90 * time.Second: "1m30s", 25*time.Hour + 29*time.Second: "25h0m", 7*day - time.Second: "7d0h", 7*day - time.Hour: "6d23h",
	} {
		require.Equal(t, want, rough(durationpb.New(d)))
	}
	require.Empty(t, rough(nil))
}
