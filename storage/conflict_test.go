package storage

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A11: every refused Complete that may be the trace of a double effect is told.
func TestConflict(t *testing.T) {
	t.Parallel()
	done, other, failed := success("done"), success("other"), failure("failed")
	// begun leaves attempt 1 behind: it lapsed, and attempt 2 reconciled and ran.
	begun := func(l *life) (one, two Fence) {
		one = l.grant(1)
		two = l.lapse().grant(2, reconcile(BasisBounded))
		l.want(VerdictOK, beginRun(2, two))
		return one, two
	}
	for name, c := range map[string]struct {
		arrange  func(l *life) Complete
		conflict bool
	}{
		"success while a later run goes on": {func(l *life) Complete {
			one, _ := begun(l)
			return complete(1, one, done)
		}, true},
		"error while a later run goes on": {func(l *life) Complete {
			one, _ := begun(l)
			return complete(1, one, failed)
		}, true},
		"success after a later run completed with the same outcome": {func(l *life) Complete {
			one, two := begun(l)
			l.want(VerdictOK, complete(2, two, done))
			return complete(1, one, done)
		}, true},
		"the same, when the record has expired": {func(l *life) Complete {
			one, two := begun(l)
			l.want(VerdictOK, complete(2, two, done))
			l.after(retention)
			return complete(1, one, done)
		}, true},
		"an error that a later run completed with as well": {func(l *life) Complete {
			one, two := begun(l)
			l.want(VerdictOK, complete(2, two, failed))
			return complete(1, one, failed)
		}, false},
		"another error than the later run completed with": {func(l *life) Complete {
			one, two := begun(l)
			l.want(VerdictOK, complete(2, two, failed))
			return complete(1, one, failure("more"))
		}, true},
		"another outcome than an operator's": {func(l *life) Complete {
			one := l.grant(1)
			l.lapse().want(VerdictOK, resolveCompleted(l.rec.Version, done))
			return complete(1, one, other)
		}, true},
		"an outcome where an operator gave none": {func(l *life) Complete {
			one := l.grant(1)
			l.lapse().want(VerdictOK, resolveCompleted(l.rec.Version, nil))
			return complete(1, one, done)
		}, true},
		"a repeat of what has expired": {func(l *life) Complete {
			one := l.grant(1)
			l.want(VerdictOK, complete(1, one, done))
			l.after(retention)
			return complete(1, one, done)
		}, false},
		"another outcome than what has expired": {func(l *life) Complete {
			one := l.grant(1)
			l.want(VerdictOK, complete(1, one, done))
			l.after(retention)
			return complete(1, one, other)
		}, true},
		"anything on an absent record": {func(*life) Complete { return complete(1, 1, failed) }, true},
		"a reconciler overtaken by another reconciler": {func(l *life) Complete {
			l.grant(1)
			two := l.lapse().grant(2, reconcile(BasisBounded))
			l.lapse().grant(3, reconcile(BasisBounded))
			return complete(2, two, done)
		}, false},
		"a reconciler that agrees with what was stored": {func(l *life) Complete {
			one := l.grant(1)
			two := l.lapse().grant(2, reconcile(BasisBounded))
			l.lapse().grant(3, reconcile(BasisBounded))
			l.want(VerdictOK, complete(1, one, done))
			return complete(2, two, done)
		}, false},
		"a reconciler that differs from what was stored": {func(l *life) Complete {
			one := l.grant(1)
			two := l.lapse().grant(2, reconcile(BasisBounded))
			l.want(VerdictOK, complete(1, one, done))
			return complete(2, two, other)
		}, true},
		"a reconciler overtaken by a run": {func(l *life) Complete {
			l.grant(1)
			two := l.lapse().grant(2, reconcile(BasisBounded))
			three := l.lapse().grant(3, reconcile(BasisBounded))
			l.want(VerdictOK, beginRun(3, three))
			return complete(2, two, done)
		}, true},
		"a reconciler that saw the effect of what an operator released": {func(l *life) Complete {
			l.grant(1)
			two := l.lapse().grant(2, reconcile(BasisBounded))
			l.lapse().grant(3, reconcile(BasisBounded))
			l.lapse().want(VerdictOK, resolveReleased(l.rec.Version))
			return complete(2, two, done)
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLife(t)
			q := c.arrange(l)
			ans := l.want(VerdictStaleHolder, q)
			require.Equal(t, c.conflict, ans.Conflict != nil)
			if c.conflict {
				require.Equal(t, q.Fence, ans.Conflict.RefusedFence)
				require.Equal(t, q.Outcome.Hash(), ans.Conflict.RefusedHash)
				require.Equal(t, q.Outcome.Success(), ans.Conflict.Success)
				require.Equal(t, l.now, ans.Conflict.At)
				if l.rec != nil {
					require.Equal(t, l.rec.Fence, ans.Conflict.RecordFence)
					require.Equal(t, l.rec.Outcome.Hash(), ans.Conflict.RecordHash)
				}
			}
		})
	}
}
