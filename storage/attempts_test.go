package storage

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// B01: a Reserve whose write was ambiguous is asked again under its attempt id.
func TestReserveRepeatedGetsTheSameGrant(t *testing.T) {
	t.Parallel()
	l := newLife(t)
	first := l.want(VerdictGranted, reserve(1))
	l.after(lease / 2)
	again := l.want(VerdictGranted, reserve(1, func(q *Reserve) { q.Lease = MaxLease }))
	require.Equal(t, first.Record, again.Record, "same fence, same mode, lease not renewed")
	require.Equal(t, lease/2, again.LeaseLeft())
	l.want(VerdictInProgress, reserve(2))

	l.lapse()
	again = l.want(VerdictGranted, reserve(1, rerun))
	require.Equal(t, first.Record, again.Record)
	require.Zero(t, again.LeaseLeft())
}

// A08: no lease asked for is the default lease, never none.
func TestReserveWithoutALeaseGetsTheDefault(t *testing.T) {
	t.Parallel()
	l := newLife(t)
	l.grant(1, func(q *Reserve) { q.Lease = 0 })
	require.Equal(t, DefaultLease, l.rec.Lease)
	l.after(DefaultLease-tick).want(VerdictInProgress, reserve(2, rerun))
	l.after(tick).grant(2, rerun)

	two := l.rec.Fence
	l.after(tick).want(VerdictOK, Extend{Attempt: attempt(2), Fence: two})
	require.Equal(t, l.now.Add(DefaultLease), l.rec.LeaseEnd)
}

func TestExtendNeverShortensALease(t *testing.T) {
	t.Parallel()
	l := newLife(t)
	one := l.grant(1)
	end := l.rec.LeaseEnd
	l.want(VerdictOK, Extend{Attempt: attempt(1), Fence: one, Lease: MinLease})
	require.Equal(t, end, l.rec.LeaseEnd)
}

func TestReserveThatWasReadByNobodyLeavesNoGhost(t *testing.T) {
	t.Parallel()
	t.Run("granted: given back", func(t *testing.T) {
		t.Parallel()
		l := newLife(t)
		l.grant(1)
		l.want(VerdictOK, release(1, 0, EffectNone))
		require.Equal(t, StateReleased, l.state())
		l.want(VerdictStaleHolder, reserve(1))
		l.grant(2)
	})
	t.Run("granted to reconcile: given back as unknown, free at once", func(t *testing.T) {
		t.Parallel()
		l := newLife(t)
		l.grant(1)
		l.lapse().grant(2, reconcile(BasisBounded))
		l.want(VerdictOK, release(2, 0, EffectNone))
		require.Equal(t, StateUnknown, l.state())
		l.grant(3, reconcile(BasisBounded))
	})
	t.Run("open: given back as unknown", func(t *testing.T) {
		t.Parallel()
		l := newLife(t)
		l.grant(1)
		l.lapse().grant(2, rerun)
		l.want(VerdictOK, release(2, 0, EffectNone))
		l.lapse().want(VerdictOutcomeUnknown, reserve(3))
	})
	t.Run("not yet there: a mark keeps it away for two minutes", func(t *testing.T) {
		t.Parallel()
		l := newLife(t)
		l.want(VerdictOK, release(1, 0, EffectNone))
		require.Equal(t, StateAbsent, l.state())
		l.after(markTime-tick).want(VerdictStaleHolder, reserve(1))
		l.want(VerdictOK, release(2, 0, EffectNone)) // a second one keeps the first
		l.want(VerdictStaleHolder, reserve(1))
		l.want(VerdictStaleHolder, reserve(2))
		l.after(markTime).grant(1)
	})
	t.Run("not yet there, granted to another meanwhile: the mark lives on in the record", func(t *testing.T) {
		t.Parallel()
		l := newLife(t)
		l.want(VerdictOK, release(1, 0, EffectNone))
		l.want(VerdictOK, release(2, l.grant(2), EffectNone))
		l.after(markTime).want(VerdictStaleHolder, reserve(1))
	})
	t.Run("another holds the key: it is kept away, the holder stays", func(t *testing.T) {
		t.Parallel()
		l := newLife(t)
		one := l.grant(1)
		l.want(VerdictOK, release(2, 0, EffectNone))
		require.Equal(t, StateReserved, l.state())
		l.want(VerdictOK, release(1, one, EffectNone))
		l.want(VerdictStaleHolder, reserve(2))
	})
	t.Run("a mark over a record whose time is over keeps the fence", func(t *testing.T) {
		t.Parallel()
		l := newLife(t)
		l.want(VerdictOK, release(1, l.grant(1), EffectNone))
		l.rec.Fence += 1 << 60 // a clock that ran far ahead once
		l.high = l.rec.Fence
		l.after(retention).want(VerdictOK, release(2, 0, EffectNone))
		l.grant(3) // l.do holds the fence against l.high
	})
}

func TestEndedAttemptsAreNeverGrantedAgain(t *testing.T) {
	t.Parallel()
	l := newLife(t)
	for n := byte(1); n <= 12; n++ {
		l.want(VerdictOK, release(n, l.grant(n), EffectNone))
	}
	for n := byte(5); n <= 12; n++ {
		l.want(VerdictStaleHolder, reserve(n))
	}
}

// The last run is remembered apart from the bounded list.
func TestTheLastRunIsNotGrantedAgainAfterManyReconcilers(t *testing.T) {
	t.Parallel()
	l := newLife(t)
	one := l.grant(1)
	for n := byte(2); n <= 20; n++ {
		l.lapse().grant(n, reconcile(BasisBounded))
	}
	l.lapse().want(VerdictStaleHolder, reserve(1, rerun))
	l.want(VerdictOK, complete(1, one, success("a")))
}

func TestUnknownIsSaidToSettleForOneLongLeaseAfterTheLapse(t *testing.T) {
	t.Parallel()
	l := newLife(t)
	l.grant(1, func(q *Reserve) { q.Lease = 5 * time.Minute })
	l.lapse().after(5*time.Minute - time.Second)
	require.Equal(t, time.Second, l.want(VerdictOutcomeUnknown, reserve(2)).RetryAfter)
	require.Zero(t, l.after(time.Second).want(VerdictOutcomeUnknown, reserve(2)).RetryAfter)
}

func TestAnExtendedRunMayStillLandUntilItsNewEnd(t *testing.T) {
	t.Parallel()
	l := newLife(t)
	one := l.grant(1)
	l.after(lease/2).want(VerdictOK, extend(1, one))
	end := l.rec.LeaseEnd
	l.want(VerdictOK, release(1, one, EffectUnknown))
	l.grant(2, reconcile(BasisFenced), func(q *Reserve) { q.Lease = time.Second })
	l.now = end.Add(-tick)
	l.want(VerdictInProgress, reserve(3, reconcile(BasisBounded)))
	l.after(tick).grant(3, reconcile(BasisBounded))
}

func TestAGrantTellsTheOnesBeforeIt(t *testing.T) {
	t.Parallel()
	l := newLife(t)
	l.grant(1)
	require.Equal(t, int64(1), l.rec.Grants)
	require.Zero(t, l.rec.PrevGrant)
	granted := l.now
	l.lapse().grant(2, reconcile(BasisBounded))
	require.Equal(t, int64(2), l.rec.Grants)
	require.Equal(t, granted, l.rec.PrevGrant)
	require.Equal(t, granted.Add(lease), l.rec.RunEnd, "when the last running lease ended")
	l.want(VerdictOK, release(2, l.rec.Fence, EffectUnknown))
	require.Equal(t, int64(1), l.rec.Grants, "it only looked")
	l.grant(3, reconcile(BasisBounded))
	l.want(VerdictOK, beginRun(3, l.rec.Fence))
	l.want(VerdictOK, release(3, l.rec.Fence, EffectUnknown))
	require.Equal(t, int64(2), l.rec.Grants, "it ran")
}
