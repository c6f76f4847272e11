package storage

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// column is one column of the table of late and repeated calls: what became of
// the record since attempt 1, the last running holder, was granted. The cells
// say what its calls get now; after them nothing is left to be guessed.
type column struct {
	name    string
	arrange func(l *life, one Fence)

	// Complete with success("one"), and with another outcome.
	complete, completeOther verdict
	// Release as it was sent before (NONE where it was not), and as another kind.
	sent                  Effect
	release, releaseOther Verdict
	extend                Verdict
	// Reserve with its attempt id; what it is told.
	reserve Verdict
	told    *Outcome
	left    time.Duration
}

// verdict is what a Complete gets.
type verdict struct {
	Verdict
	late, conflict bool
}

var (
	completeOK       = verdict{Verdict: VerdictOK}
	completeCounted  = verdict{Verdict: VerdictOK, late: true}
	completeConflict = verdict{Verdict: VerdictStaleHolder, conflict: true}
	completeStale    = verdict{Verdict: VerdictStaleHolder}
)

const stale = VerdictStaleHolder

func lateTable() []column {
	return []column{
		{
			name: "RESERVED by it", arrange: func(*life, Fence) {},
			complete: completeOK, completeOther: completeOK,
			sent: EffectNone, release: VerdictOK, releaseOther: VerdictOK,
			extend: VerdictOK, reserve: VerdictGranted, left: lease,
		},
		{
			name: "lapsed, nobody since", arrange: func(l *life, _ Fence) { l.lapse() },
			complete: completeOK, completeOther: completeOK,
			sent: EffectNone, release: VerdictOK, releaseOther: VerdictOK,
			extend: stale, reserve: VerdictGranted, left: 0,
		},
		{
			name: "UNKNOWN by its Release",
			arrange: func(l *life, one Fence) {
				l.want(VerdictOK, release(1, one, EffectUnknown))
			},
			complete: completeOK, completeOther: completeOK,
			sent: EffectUnknown, release: VerdictOK, releaseOther: stale,
			extend: stale, reserve: stale,
		},
		{
			name: "RELEASED by it",
			arrange: func(l *life, one Fence) {
				l.want(VerdictOK, release(1, one, EffectNone))
			},
			complete: completeCounted, completeOther: completeCounted,
			sent: EffectNone, release: VerdictOK, releaseOther: stale,
			extend: stale, reserve: stale,
		},
		{
			name: "RELEASED by it with a kept error",
			arrange: func(l *life, one Fence) {
				l.want(VerdictOK, releaseKept(1, one, time.Second))
			},
			complete: completeCounted, completeOther: completeCounted,
			sent: EffectNone, release: VerdictOK, releaseOther: stale,
			extend: stale, reserve: VerdictCompleted, told: failure("kept"),
		},
		{
			name: "RELEASED by Resolve",
			arrange: func(l *life, _ Fence) {
				l.lapse().want(VerdictOK, resolveReleased(l.rec.Version))
			},
			complete: completeCounted, completeOther: completeCounted,
			sent: EffectNone, release: stale, releaseOther: stale,
			extend: stale, reserve: stale,
		},
		{
			name: "COMPLETED by it",
			arrange: func(l *life, one Fence) {
				l.want(VerdictOK, complete(1, one, success("one")))
			},
			complete: completeOK, completeOther: completeConflict,
			sent: EffectNone, release: stale, releaseOther: stale,
			extend: stale, reserve: VerdictCompleted, told: success("one"),
		},
		{
			name: "COMPLETED by Resolve",
			arrange: func(l *life, _ Fence) {
				l.lapse().want(VerdictOK, resolveCompleted(l.rec.Version, success("one")))
			},
			complete: completeOK, completeOther: completeConflict,
			sent: EffectNone, release: stale, releaseOther: stale,
			extend: stale, reserve: VerdictCompleted, told: success("one"),
		},
		{
			name: "granted to another, RECONCILE not begun",
			arrange: func(l *life, _ Fence) {
				l.lapse().grant(2, reconcile(BasisBounded))
				l.lapse().grant(3, reconcile(BasisBounded))
			},
			complete: completeOK, completeOther: completeOK,
			sent: EffectNone, release: stale, releaseOther: stale,
			extend: stale, reserve: stale,
		},
		{
			name: "granted to another, RUN", arrange: func(l *life, _ Fence) {
				two := l.lapse().grant(2, reconcile(BasisBounded))
				l.want(VerdictOK, beginRun(2, two))
			},
			complete: completeConflict, completeOther: completeConflict,
			sent: EffectNone, release: stale, releaseOther: stale,
			extend: stale, reserve: stale,
		},
		{
			name: "absent or EXPIRED: absent", arrange: func(l *life, one Fence) {
				l.want(VerdictOK, complete(1, one, success("one")))
				l.after(retention + tombstone)
			},
			complete: completeConflict, completeOther: completeConflict,
			sent: EffectNone, release: stale, releaseOther: stale,
			extend: stale, reserve: VerdictGranted, left: lease,
		},
		{
			name: "absent or EXPIRED: absent with a spent mark",
			arrange: func(l *life, one Fence) {
				l.want(VerdictOK, complete(1, one, success("one")))
				l.after(retention+tombstone).want(VerdictOK, release(1, 0, EffectNone))
			},
			complete: completeConflict, completeOther: completeConflict,
			sent: EffectNone, release: stale, releaseOther: stale,
			extend: stale, reserve: stale,
		},
		{
			name: "absent or EXPIRED: EXPIRED",
			arrange: func(l *life, one Fence) {
				l.want(VerdictOK, complete(1, one, success("one")))
				l.after(retention)
			},
			complete: completeStale, completeOther: completeConflict,
			sent: EffectNone, release: stale, releaseOther: stale,
			extend: stale, reserve: VerdictKeyExpired,
		},
	}
}

// A11: the table of late and repeated calls of semantics section 5.
func TestLateCallsCellByCell(t *testing.T) {
	t.Parallel()
	for _, c := range lateTable() {
		// cell runs one call against a record of its own.
		cell := func(name string, check func(l *life, one Fence)) {
			t.Run(c.name+"/"+name, func(t *testing.T) {
				t.Parallel()
				l := newLife(t)
				one := l.grant(1)
				c.arrange(l, one)
				check(l, one)
			})
		}
		completes := func(o *Outcome, want verdict) func(*life, Fence) {
			return func(l *life, one Fence) {
				ans := l.want(want.Verdict, complete(1, one, o))
				require.Equal(l, want.late, ans.Late)
				require.Equal(l, want.conflict, ans.Conflict != nil)
				if want.Verdict == VerdictOK {
					require.Equal(l, o, l.rec.Outcome)
					require.Equal(l, StateCompleted, l.state())
				}
			}
		}
		releases := func(e Effect, want Verdict) func(*life, Fence) {
			return func(l *life, one Fence) {
				was := l.state()
				ans := l.want(want, release(1, one, e))
				if c.release == VerdictOK && c.releaseOther == VerdictOK { // unfinished
					was = map[Effect]State{EffectNone: StateReleased, EffectUnknown: StateUnknown}[e]
				}
				require.Equal(l, was, ans.State)
			}
		}
		other := map[Effect]Effect{EffectNone: EffectUnknown, EffectUnknown: EffectNone}[c.sent]
		cell("Complete", completes(success("one"), c.complete))
		cell("Complete with another outcome", completes(failure("other"), c.completeOther))
		cell("Release as before", releases(c.sent, c.release))
		cell("Release as another kind", releases(other, c.releaseOther))
		cell("Extend", func(l *life, one Fence) {
			if l.after(tick).want(c.extend, extend(1, one)); c.extend == VerdictOK {
				require.Equal(l, l.now.Add(lease), l.rec.LeaseEnd)
			}
		})
		cell("Reserve with the same attempt id", func(l *life, one Fence) {
			ans := l.want(c.reserve, reserve(1))
			require.Equal(l, c.told, ans.Outcome)
			if c.reserve == VerdictGranted {
				require.Equal(l, c.left, ans.LeaseLeft())
				require.Equal(l, c.name == "absent or EXPIRED: absent", ans.Record.Fence > one)
			}
		})
	}
}

// A11: an operator's COMPLETED without an outcome equals no outcome.
func TestCompleteAfterAVerdictWithoutOutcomeIsAConflict(t *testing.T) {
	t.Parallel()
	l := newLife(t)
	one := l.grant(1)
	l.lapse().want(VerdictOK, resolveCompleted(l.rec.Version, nil))
	require.NotNil(t, l.want(stale, complete(1, one, success("one"))).Conflict)
}

// A11: with both ids checked, neither alone opens anything.
func TestEveryHoldersCallComparesAttemptAndFence(t *testing.T) {
	t.Parallel()
	l := newLife(t)
	one := l.grant(1)
	for _, q := range []Request{
		complete(1, one+1, success("a")), complete(2, one, success("a")),
		extend(1, one+1), extend(2, one), beginRun(1, one+1), beginRun(2, one),
		release(1, one+1, EffectNone), release(2, one, EffectNone),
	} {
		l.want(stale, q)
	}
	require.Equal(t, StateReserved, l.state())
}
