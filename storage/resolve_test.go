package storage

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A06: the verdict of an operator needs a look that no effect can follow.
func TestResolveTakesOnlyALookFromAfterTheLease(t *testing.T) {
	t.Parallel()
	for name, unfinished := range map[string]func(*life){
		"running":              func(l *life) { l.grant(1) },
		"released as unknown":  func(l *life) { l.want(VerdictOK, release(1, l.grant(1), EffectUnknown)) },
		"reconciled too early": func(l *life) { releasedThenReconciled(l) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLife(t)
			l.skew = time.Second
			unfinished(l)
			last := max(l.rec.LeaseEnd, l.rec.RunEnd).Add(l.skew)

			l.now = last.Add(-tick)
			early := l.rec.VersionAt(l.now, l.skew)
			require.Zero(t, early)
			ans := l.want(VerdictInProgress, resolveReleased(l.rec.Version))
			require.Positive(t, ans.RetryAfter)

			l.now = last
			l.want(VerdictRecordChanged, resolveReleased(early))
			version := l.rec.VersionAt(l.now, l.skew)
			l.want(VerdictOK, resolveReleased(version))
			l.want(VerdictOK, resolveReleased(version)) // a repeat finds its own verdict
			require.Equal(t, StateReleased, l.state())
			require.True(t, l.rec.ByOperator())
		})
	}
}

// releasedThenReconciled leaves a reconciler whose lease ends before the lease
// of the run that it was let past.
func releasedThenReconciled(l *life) {
	l.Helper()
	l.want(VerdictOK, release(1, l.grant(1), EffectUnknown))
	l.grant(2, reconcile(BasisFenced), func(q *Reserve) { q.Lease = time.Second })
}

func TestResolveIsHeldToTheVersionThatWasLookedAt(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(l *life, one Fence){
		"completed":    func(l *life, one Fence) { l.want(VerdictOK, complete(1, one, success("a"))) },
		"released":     func(l *life, one Fence) { l.want(VerdictOK, release(1, one, EffectNone)) },
		"said unknown": func(l *life, one Fence) { l.want(VerdictOK, release(1, one, EffectUnknown)) },
		"reconciled":   func(l *life, _ Fence) { l.grant(2, reconcile(BasisBounded)); l.lapse() },
		"run again":    func(l *life, _ Fence) { l.grant(2, rerun); l.lapse() },
		"forgotten":    func(l *life, _ Fence) { l.rec = nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLife(t)
			one := l.grant(1)
			version := l.lapse().rec.VersionAt(l.now, 0)
			change(l, one)
			l.want(VerdictRecordChanged, resolveReleased(version))
			l.want(VerdictRecordChanged, resolveCompleted(version, nil))
		})
	}
}

func TestResolveRepeatedFindsItsOwnVerdictOnly(t *testing.T) {
	t.Parallel()
	lapsed := func(t *testing.T) (*life, Fence, int64) {
		t.Helper()
		l := newLife(t)
		one := l.grant(1)
		l.lapse()
		return l, one, l.rec.Version
	}
	t.Run("completed with an outcome", func(t *testing.T) {
		t.Parallel()
		l, _, v := lapsed(t)
		l.want(VerdictOK, resolveCompleted(v, success("a")))
		l.want(VerdictOK, resolveCompleted(v, success("a")))
		l.want(VerdictRecordChanged, resolveCompleted(v, success("b")))
		l.want(VerdictRecordChanged, resolveCompleted(v, nil))
		l.want(VerdictRecordChanged, resolveReleased(v))
		require.Equal(t, success("a"), l.want(VerdictCompleted, reserve(2)).Outcome)
	})
	t.Run("completed with none", func(t *testing.T) {
		t.Parallel()
		l, _, v := lapsed(t)
		l.want(VerdictOK, resolveCompleted(v, nil))
		l.want(VerdictOK, resolveCompleted(v, nil))
		ans := l.want(VerdictCompleted, reserve(2))
		require.Nil(t, ans.Outcome)
		require.True(t, ans.Record.ByOperator())
	})
	t.Run("released, then granted again", func(t *testing.T) {
		t.Parallel()
		l, _, v := lapsed(t)
		l.want(VerdictOK, resolveReleased(v))
		l.grant(2)
		l.lapse().want(VerdictRecordChanged, resolveReleased(v))
	})
	t.Run("released, then completed by the late holder", func(t *testing.T) {
		t.Parallel()
		l, one, v := lapsed(t)
		l.want(VerdictOK, resolveReleased(v))
		require.True(t, l.want(VerdictOK, complete(1, one, success("a"))).Late)
		require.False(t, l.rec.ByOperator())
		l.want(VerdictRecordChanged, resolveReleased(v))
	})
}

func TestResolveDoesNotRaiseTheFence(t *testing.T) {
	t.Parallel()
	l := newLife(t)
	one := l.grant(1)
	l.lapse().want(VerdictOK, resolveReleased(l.rec.Version))
	require.Equal(t, one, l.rec.Fence)
	require.Greater(t, l.grant(2), one)
}
