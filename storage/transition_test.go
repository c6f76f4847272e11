package storage

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// row is a rule in words of semantics.md: the first one that applies decides.
type row struct {
	when bool
	Verdict
}

func first(rows ...row) Verdict {
	for _, r := range rows {
		if r.when {
			return r.Verdict
		}
	}
	return 0
}

// moment is a situation at a time, and whose call is judged.
type moment struct {
	*situation
	now State
	at  time.Duration
}

func (m moment) is(states ...State) bool { return slices.Contains(states, m.now) }

// spent tells whether n may never be granted.
func (m moment) spent(n byte) bool {
	if m.is(StateAbsent) {
		return m.at < m.marked && slices.Contains(m.ended, n)
	}
	return slices.Contains(m.ended, n)
}

// otherRequest tells whether fp is refused as KEY_REUSED on every path.
func (m moment) otherRequest(fp Fingerprint) bool {
	return m.is(StateReserved, StateUnknown, StateCompleted, StateExpired) && !fp.Same(fpOne) ||
		m.is(StateReleased) && (m.bound && !fp.Same(fpOne) || m.old && fp.Same(fpOld))
}

// onReserve is section 5: the order of judgement and the table of answers.
func (m moment) onReserve(n byte, q Reserve) Verdict {
	mayStillLand := m.at < m.landed
	waived := q.Basis == BasisFenced || q.Basis == BasisInbox
	return first(
		row{m.otherRequest(q.Fingerprint), VerdictKeyReused},
		row{m.is(StateExpired), VerdictKeyExpired},
		row{m.is(StateCompleted), VerdictCompleted},
		row{m.live && n == m.current, VerdictGranted},
		row{m.is(StateReleased) && m.at < m.hold && q.Fingerprint.Same(fpOne), VerdictCompleted},
		row{m.spent(n), VerdictStaleHolder},
		row{m.is(StateAbsent, StateReleased), VerdictGranted},
		row{m.is(StateReserved), VerdictInProgress},
		row{q.OnUnknown == OnUnknownRefuse, VerdictOutcomeUnknown},
		row{mayStillLand && !waived, VerdictInProgress},
		row{true, VerdictGranted},
	)
}

// onComplete is the first row of the table of late calls, for anyone's call.
func (m moment) onComplete(n byte, own bool, o *Outcome) Verdict {
	accepted := own && !m.is(StateAbsent, StateExpired) && (n == m.current || n == m.runner)
	equal := m.outcome != nil && m.outcome.Hash() == o.Hash()
	return first(
		row{!accepted, VerdictStaleHolder},
		row{m.is(StateCompleted) && !equal, VerdictStaleHolder},
		row{true, VerdictOK},
	)
}

// onRelease is the second row; a reconciler that has not begun knows nothing.
func (m moment) onRelease(n byte, own bool, e Effect) Verdict {
	return first(
		row{!own || n != m.current || m.is(StateAbsent, StateExpired, StateCompleted), VerdictStaleHolder},
		row{m.live && m.reconciles && e != EffectUnknown, VerdictNotReconciled},
		row{m.live, VerdictOK},
		row{!m.operator && e == m.sentAs, VerdictOK},
		row{true, VerdictStaleHolder},
	)
}

// onLease is Extend and BeginRun: for a live lease only.
func (m moment) onLease(n byte, own bool) Verdict {
	return first(row{own && n == m.current && m.is(StateReserved), VerdictOK}, row{true, VerdictStaleHolder})
}

func (m moment) onResolve(right bool) Verdict {
	return first(
		row{!m.is(StateReserved, StateUnknown), VerdictRecordChanged},
		row{m.at < m.landed, VerdictInProgress},
		row{right, VerdictOK},
		row{true, VerdictRecordChanged},
	)
}

func (m moment) onLookup(fp Fingerprint) Verdict {
	return first(row{fp != nil && m.otherRequest(fp), VerdictKeyReused}, row{true, VerdictOK})
}

// TestEveryCallInEverySituation judges each call of each kind of caller, before,
// at and after every time limit.
func TestEveryCallInEverySituation(t *testing.T) {
	t.Parallel()
	for _, s := range situations() {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			l := newLife(t)
			l.skew = skew
			fences := map[byte]Fence{}
			s.arrange(l)
			if l.rec != nil {
				fences[l.rec.Attempt[0]], fences[l.rec.RunAttempt[0]] = l.rec.Fence, l.rec.RunFence
			}
			rec, start := l.rec, l.now
			for _, limit := range append(s.limits(), 0) {
				for _, at := range []time.Duration{limit - tick, limit, limit + tick} {
					if at >= 0 {
						j := judge{TB: t, moment: moment{&s, s.state(at), at}, rec: rec, clock: start.Add(at), fences: fences}
						j.everyCall()
					}
				}
			}
		})
	}
}

// judge holds Apply against a moment.
type judge struct {
	testing.TB
	moment
	rec    *Record
	clock  Instant
	fences map[byte]Fence
}

func (j judge) expect(want Verdict, q Request) (*Record, Answer) {
	j.Helper()
	next, ans := Apply(j.rec, q, j.clock, skew)
	require.Equal(j, want.String(), ans.Verdict.String(), "%s after %v: %+v", j.now, j.at, q)
	checkStep(j, j.rec, next, ans)
	require.Equal(j, j.clock, ans.Now)
	return next, ans
}

func (j judge) everyCall() {
	require.Equal(j, j.now.String(), j.rec.StateAt(j.clock, skew).String(), "after %v", j.at)
	for _, n := range []byte{1, 2, 3, 7, 9} {
		j.reserves(n)
		for _, fence := range []Fence{j.fences[n], j.fences[n] + 1, 1} {
			own := fence != 0 && fence == j.fences[n]
			j.expect(j.onLease(n, own), extend(n, max(fence, 1)))
			j.expect(j.onLease(n, own), beginRun(n, max(fence, 1)))
			for _, o := range []*Outcome{success("done"), success("other"), failure("done")} {
				j.completes(n, max(fence, 1), own, o)
			}
			for _, e := range []Effect{EffectNone, EffectRepeatable, EffectUnknown} {
				j.releases(n, max(fence, 1), own, e)
			}
		}
		next, _ := j.expect(VerdictOK, release(n, 0, EffectNone))
		if next != nil {
			require.True(j, next.hasEnded(attempt(n)), "what was given back is never granted")
		}
	}
	for _, fp := range []Fingerprint{nil, fpOne, fpTwo, fpOld} {
		next, ans := j.expect(j.onLookup(fp), Lookup{Fingerprint: fp})
		require.Nil(j, next)
		told := fp.Same(fpOne) && (j.is(StateCompleted) || j.is(StateReleased) && j.at < j.hold)
		require.Equal(j, told && j.outcome != nil, ans.Outcome != nil)
	}
	version := int64(1)
	if j.rec != nil {
		version = j.rec.Version
	}
	for _, q := range []Resolve{resolveReleased(0), resolveCompleted(0, success("op"))} {
		q.Version = version
		j.expect(j.onResolve(true), q)
		q.Version++
		j.expect(j.onResolve(false), q)
	}
}

func (j judge) reserves(n byte) {
	for _, fp := range []Fingerprint{fpOne, fpTwo, fpOld} {
		for _, policy := range []func(*Reserve){
			func(*Reserve) {}, rerun, reconcile(BasisBounded), reconcile(BasisFenced), reconcile(BasisInbox),
		} {
			q := reserve(n, as(fp), policy)
			next, ans := j.expect(j.onReserve(n, q), q)
			switch ans.Verdict {
			case VerdictGranted:
				j.grant(next, ans, q)
			case VerdictCompleted:
				require.Equal(j, j.outcome, ans.Outcome)
				require.Equal(j, j.is(StateReleased), ans.Kept)
			case VerdictInProgress:
				require.Equal(j, j.retryInProgress(), ans.RetryAfter)
			case VerdictOutcomeUnknown:
				require.Equal(j, max(0, min(j.landed+30*time.Second-j.at, time.Second)), ans.RetryAfter)
			case VerdictOK, VerdictKeyReused, VerdictKeyExpired, VerdictStaleHolder, VerdictNotReconciled, VerdictRecordChanged,
				VerdictNotFound, VerdictEntryChanged, VerdictClaimInvalid, VerdictFull:
				require.Zero(j, ans.RetryAfter)
			}
		}
	}
}

// retryInProgress is the lease left, and a second at most while it is held.
func (j judge) retryInProgress() time.Duration {
	if j.is(StateUnknown) {
		return max(j.landed-j.at, time.Millisecond)
	}
	return max(min(j.spans[0].until-j.at, time.Second), time.Millisecond)
}

// grant judges a grant: a repeat is told as it was, a new one is written.
func (j judge) grant(next *Record, ans Answer, q Reserve) {
	if next == nil {
		require.Same(j, j.rec, ans.Record)
		return
	}
	fromUnknown := j.is(StateUnknown)
	mode := ModeRun
	if fromUnknown && q.OnUnknown == OnUnknownReconcile {
		mode = ModeReconcile
	}
	require.Equal(j, mode, next.Mode)
	require.Equal(j, q.Attempt, next.Attempt)
	require.Equal(j, j.clock.Add(lease), next.LeaseEnd)
	require.Equal(j, fromUnknown && (mode == ModeRun || j.open), next.Open, "open")
	require.Equal(j, !j.is(StateAbsent) && j.bound, next.Bound, "bound")
	require.True(j, next.Fingerprint.Same(q.Fingerprint))
	require.Equal(j, mode == ModeRun, next.RunAttempt == q.Attempt, "the running holder is kept over reconcilers")
	if j.rec != nil {
		require.Greater(j, next.Fence, j.rec.Fence)
	}
}

func (j judge) completes(n byte, fence Fence, own bool, o *Outcome) {
	next, ans := j.expect(j.onComplete(n, own, o), complete(n, fence, o))
	settlesNothing := j.open && n == j.runner && !o.Success()
	if ans.Verdict == VerdictOK && next == nil {
		require.True(j, settlesNothing || j.is(StateCompleted), "an accepted outcome is stored")
	}
	if next == nil {
		return
	}
	if settlesNothing {
		require.Equal(j, StateUnknown, ans.State)
		return
	}
	require.Equal(j, StateCompleted, ans.State)
	require.Equal(j, o, next.Outcome)
	require.Equal(j, j.is(StateReleased), ans.Late)
	require.Equal(j, j.clock.Add(retention), next.ExpiresAt)
	require.Equal(j, j.clock.Add(retention+tombstone), next.DropAt)
}

func (j judge) releases(n byte, fence Fence, own bool, e Effect) {
	next, ans := j.expect(j.onRelease(n, own, e), release(n, fence, e))
	if next == nil {
		return
	}
	want := StateReleased
	if e == EffectUnknown || j.open {
		want = StateUnknown
	}
	require.Equal(j, want.String(), ans.State.String(), "%+v", e)
	require.Equal(j, j.bound || e == EffectRepeatable, next.Bound)
	if want == StateUnknown && !j.reconciles {
		require.Equal(j, j.rec.LeaseEnd, next.LeaseEnd, "Release(UNKNOWN) does not shorten the lease")
	}
}

func TestALongerRetentionIsTakenAShorterIsNot(t *testing.T) {
	t.Parallel()
	for asked, want := range map[time.Duration]time.Duration{0: retention, time.Minute: retention, 2 * retention: 2 * retention} {
		l := newLife(t)
		q := complete(1, l.grant(1), success("a"))
		q.Retention = asked
		l.want(VerdictOK, q)
		require.Equal(t, l.now.Add(want), l.rec.ExpiresAt)
	}
	l := newLife(t)
	l.want(VerdictOK, Complete{Attempt: attempt(1), Fence: l.grant(1), Outcome: success("a")})
	require.Equal(t, l.now.Add(DefaultRetention), l.rec.ExpiresAt)
	require.Equal(t, l.rec.ExpiresAt, l.rec.DropAt, "no tombstone asked for is none")
}
