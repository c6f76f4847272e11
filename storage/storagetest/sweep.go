package storagetest

import (
	"fmt"

	"github.com/stretchr/testify/require"

	"github.com/dedupd/dedupd/storage"
)

func sweepCases() []testCase {
	return []testCase{
		{name: "a sweep deletes what is over, in bounded steps, and nothing else", clock: true, run: sweepBounded},
		{name: "a sweep changes no answer", clock: true, run: sweepChangesNoAnswer},
		{name: "a record written anew after its end is not swept", clock: true, run: sweepRejudges},
		{name: "marks are swept", clock: true, run: sweepMarks},
		{name: "sweeping an empty store does nothing", run: func(f *fixture) { require.Zero(f, f.sweep(10)) }},
	}
}

func sweepBounded(f *fixture) {
	const over = 10
	for i := range over {
		f.completed(fmt.Sprintf("over%d", i), success("x"))
	}
	f.Advance(terms().Retention + terms().Tombstone + margin)
	f.completed("completed", success("x"))
	f.grant("reserved")
	f.unknown("unknown")
	n, err := f.Store.Sweep(f.Context(), 3)
	require.NoError(f, err)
	require.LessOrEqual(f, n, 3)
	require.Equal(f, over, n+f.sweep(3))
	require.Zero(f, f.sweep(3))
	require.Equal(f, storage.StateCompleted, f.look("completed").State)
	require.Equal(f, storage.StateReserved, f.look("reserved").State)
	require.Equal(f, storage.StateUnknown, f.look("unknown").State)
}

func sweepChangesNoAnswer(f *fixture) {
	tombstoned := f.completed("expired", success("x"))
	gone, fence := f.grant("absent")
	f.release(gone, fence, storage.EffectNone)
	f.Advance(terms().Retention + margin)
	for range 2 {
		require.Equal(f, storage.StateAbsent, f.look("absent").State)
		requireVerdict(f, storage.VerdictStaleHolder, f.complete(gone, fence, success("x")))
		requireVerdict(f, storage.VerdictKeyExpired, f.reserve(f.request("expired")))
		requireVerdict(f, storage.VerdictKeyExpired, f.reserve(tombstoned))
		f.sweep(100)
	}
}

func sweepRejudges(f *fixture) {
	q, fence := f.grant("k")
	f.release(q, fence, storage.EffectNone)
	f.Advance(terms().Retention - margin)
	f.completed("k", success("x"))
	other, fence := f.grant("again")
	f.release(other, fence, storage.EffectNone)
	f.Advance(margin + margin)
	require.Zero(f, f.sweep(100), "the end that counts is that of the last write")
	require.Equal(f, storage.StateCompleted, f.look("k").State)
	f.Advance(terms().Retention)
	require.Equal(f, 1, f.sweep(100))
	require.Equal(f, storage.StateExpired, f.look("k").State)
}

func sweepMarks(f *fixture) {
	f.giveBack(f.request("k"))
	require.Zero(f, f.sweep(10))
	f.Advance(terms().Retention)
	require.Equal(f, 1, f.sweep(10))
}
