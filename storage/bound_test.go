package storage

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// bound leaves a record that only the same request may run again.
func bound(l *life) {
	l.Helper()
	l.want(VerdictOK, release(1, l.grant(1), EffectRepeatable))
	require.True(l, l.rec.Bound)
}

func TestBoundTakesTheSameRequestOnly(t *testing.T) {
	t.Parallel()
	l := newLife(t)
	bound(l)
	l.want(VerdictKeyReused, reserve(2, as(fpTwo)))
	l.grant(2)
}

func TestBoundOutlivesLaterReleasesAndVerdicts(t *testing.T) {
	t.Parallel()
	for name, again := range map[string]func(*life){
		"released with nothing applied": func(l *life) { l.want(VerdictOK, release(2, l.grant(2), EffectNone)) },
		"given back unread":             func(l *life) { l.grant(2); l.want(VerdictOK, release(2, 0, EffectNone)) },
		"released by an operator": func(l *life) {
			l.grant(2)
			l.lapse().want(VerdictOK, resolveReleased(l.rec.Version))
		},
		"reconciled as not applied": func(l *life) {
			l.grant(2)
			three := l.lapse().grant(3, reconcile(BasisBounded))
			l.want(VerdictOK, beginRun(3, three))
			l.want(VerdictOK, release(3, three, EffectNone))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLife(t)
			bound(l)
			again(l)
			require.Equal(t, StateReleased, l.state())
			l.want(VerdictKeyReused, reserve(9, as(fpTwo)))
		})
	}
}

func TestBoundIsLearntFromAnOpenRunToo(t *testing.T) {
	t.Parallel()
	l := newLife(t)
	l.grant(1)
	two := l.lapse().grant(2, rerun)
	l.want(VerdictOK, release(2, two, EffectRepeatable))
	require.Equal(t, StateUnknown, l.state())
	l.lapse().want(VerdictOK, resolveReleased(l.rec.Version))
	l.want(VerdictKeyReused, reserve(3, as(fpTwo)))
}

func TestBoundEndsInExpiredFreeInAbsent(t *testing.T) {
	t.Parallel()
	l := newLife(t)
	l.want(VerdictOK, release(1, l.grant(1), EffectNone))
	require.Equal(t, StateReleased, l.after(retention-tick).state())
	require.Equal(t, StateAbsent, l.after(tick).state())

	l = newLife(t)
	bound(l)
	require.Equal(t, StateReleased, l.after(retention-tick).state())
	require.Equal(t, StateExpired, l.after(tick).state())
	l.want(VerdictKeyExpired, reserve(2))
	l.want(VerdictKeyReused, reserve(2, as(fpTwo)))
	require.Equal(t, StateExpired, l.after(tombstone-tick).state())
	require.Equal(t, StateAbsent, l.after(tick).state())
	l.grant(2, as(fpTwo))
}

func TestBoundIsClearedByACompletionOnly(t *testing.T) {
	t.Parallel()
	l := newLife(t)
	bound(l)
	l.want(VerdictOK, complete(2, l.grant(2), success("a")))
	require.False(t, l.rec.Bound)
}

func TestUnfinishedRecordsHaveNoEnd(t *testing.T) {
	t.Parallel()
	l := newLife(t)
	one := l.grant(1)
	require.Equal(t, StateUnknown, l.after(1000*retention).state())
	l.want(VerdictOK, release(1, one, EffectUnknown))
	require.Equal(t, StateUnknown, l.after(1000*retention).state())
}

func TestKeptErrorAnswersTheSameRequestForTheHold(t *testing.T) {
	t.Parallel()
	const hold = 10 * time.Second
	kept := func(t *testing.T) *life {
		t.Helper()
		l := newLife(t)
		l.want(VerdictOK, releaseKept(1, l.grant(1), hold))
		return l
	}
	l := kept(t).after(hold - tick)
	for _, n := range []byte{1, 2} { // also to the attempt that made it
		ans := l.want(VerdictCompleted, reserve(n))
		require.True(t, ans.Kept)
		require.Equal(t, failure("kept"), ans.Outcome)
	}
	ans := l.want(VerdictOK, Lookup{Fingerprint: fpOne})
	require.True(t, ans.Kept)
	require.Equal(t, failure("kept"), ans.Outcome)
	require.Nil(t, l.want(VerdictOK, Lookup{Fingerprint: fpTwo}).Outcome)
	l.grant(3, as(fpTwo)) // a corrected request runs at once

	l = kept(t).after(hold)
	l.want(VerdictStaleHolder, reserve(1))
	require.Nil(t, l.want(VerdictOK, Lookup{Fingerprint: fpOne}).Outcome)
	l.grant(2)
}
