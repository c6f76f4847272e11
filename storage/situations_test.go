package storage

import (
	"time"
)

const skew = time.Second

var fpOld = fingerprint("old")

// forEver is the length of a state that has no end.
const forEver = time.Duration(1 << 62)

// span is a state and when it ends, from the situation's last call on.
type span struct {
	state State
	until time.Duration
}

// situation is a record as a row of calls leaves it, and what semantics.md says
// about it in words of its own. The record's fingerprint is fpOne.
type situation struct {
	name    string
	arrange func(l *life)

	spans      []span
	current    byte          // attempt of the current or last grant, 0 none
	runner     byte          // attempt of the last grant that ran
	live       bool          // current has not ended: its grant is repeated
	reconciles bool          // current's mode is RECONCILE
	ended      []byte        // spent attempts
	marked     time.Duration // for how long `ended` counts without a record
	old        bool          // fpOld was replaced by a later grant
	bound      bool
	open       bool
	hold       time.Duration // of the kept error
	landed     time.Duration // no effect lands after it
	sentAs     Effect        // how current was released
	operator   bool          // an operator settled it
	outcome    *Outcome      // stored; the kept error too
}

func (s *situation) state(at time.Duration) State {
	for _, sp := range s.spans {
		if at < sp.until {
			return sp.state
		}
	}
	return StateAbsent
}

// limits are the instants around which a verdict may change.
func (s *situation) limits() []time.Duration {
	all := []time.Duration{s.hold, s.landed, s.marked}
	for _, sp := range s.spans {
		if sp.until < forEver {
			all = append(all, sp.until)
		}
	}
	return all
}

// The timelines of section 3.
var (
	leased      = []span{{StateReserved, lease + skew}, {StateUnknown, forEver}}
	unknown     = []span{{StateUnknown, forEver}}
	free        = []span{{StateReleased, retention}}
	boundSpans  = []span{{StateReleased, retention}, {StateExpired, retention + tombstone}}
	completed   = []span{{StateCompleted, retention}, {StateExpired, retention + tombstone}}
	leaseAndMax = lease + skew
)

func situations() []situation {
	lapsed := func(l *life) Fence {
		one := l.grant(1)
		l.lapse()
		return one
	}
	reconciling := func(l *life) Fence {
		lapsed(l)
		return l.grant(2, reconcile(BasisBounded))
	}
	rerunning := func(l *life) Fence {
		lapsed(l)
		return l.grant(2, rerun)
	}
	corrected := func(l *life) {
		l.want(VerdictOK, release(7, l.grant(7, as(fpOld)), EffectNone))
	}
	return []situation{
		{name: "nothing", arrange: func(*life) {}},
		{
			name: "a mark", arrange: func(l *life) { l.want(VerdictOK, release(7, 0, EffectNone)) },
			ended: []byte{7}, marked: 2 * time.Minute,
		},
		{
			name: "running", arrange: func(l *life) { l.grant(1) },
			spans: leased, current: 1, runner: 1, live: true, landed: leaseAndMax,
		},
		{
			name: "running a corrected request", arrange: func(l *life) { corrected(l); l.grant(1) },
			spans: leased, current: 1, runner: 1, live: true, landed: leaseAndMax, ended: []byte{7}, old: true,
		},
		{
			name: "running, bound", arrange: func(l *life) { l.want(VerdictOK, release(7, l.grant(7), EffectRepeatable)); l.grant(1) },
			spans: leased, current: 1, runner: 1, live: true, landed: leaseAndMax, ended: []byte{7}, bound: true,
		},
		{
			name: "reconciling", arrange: func(l *life) { reconciling(l) },
			spans: leased, current: 2, runner: 1, live: true, reconciles: true, landed: leaseAndMax, ended: []byte{1},
		},
		{
			name: "reconciling before the run's lease ended", arrange: releasedThenReconciled,
			spans:   []span{{StateReserved, time.Second + skew}, {StateUnknown, forEver}},
			current: 2, runner: 1, live: true, reconciles: true, landed: leaseAndMax, ended: []byte{1},
		},
		{
			name: "reconciling after an open run", arrange: func(l *life) {
				rerunning(l)
				l.lapse().grant(3, reconcile(BasisBounded))
			},
			spans: leased, current: 3, runner: 2, live: true, reconciles: true, open: true, landed: leaseAndMax, ended: []byte{1, 2},
		},
		{
			name: "begun", arrange: func(l *life) { l.want(VerdictOK, beginRun(2, reconciling(l))) },
			spans: leased, current: 2, runner: 2, live: true, landed: leaseAndMax, ended: []byte{1},
		},
		{
			name: "begun after an open run", arrange: func(l *life) {
				rerunning(l)
				l.want(VerdictOK, beginRun(3, l.lapse().grant(3, reconcile(BasisBounded))))
			},
			spans: leased, current: 3, runner: 3, live: true, landed: leaseAndMax, ended: []byte{1, 2},
		},
		{
			name: "open", arrange: func(l *life) { rerunning(l) },
			spans: leased, current: 2, runner: 2, live: true, open: true, landed: leaseAndMax, ended: []byte{1},
		},
		{
			name: "said unknown", arrange: func(l *life) { l.want(VerdictOK, release(1, l.grant(1), EffectUnknown)) },
			spans: unknown, current: 1, runner: 1, landed: leaseAndMax, ended: []byte{1}, sentAs: EffectUnknown,
		},
		{
			name: "an open run's release", arrange: func(l *life) { l.want(VerdictOK, release(2, rerunning(l), EffectNone)) },
			spans: unknown, current: 2, runner: 2, open: true, landed: leaseAndMax, ended: []byte{1, 2}, sentAs: EffectNone,
		},
		{
			name: "an open run's error", arrange: func(l *life) { l.want(VerdictOK, complete(2, rerunning(l), failure("x"))) },
			spans: unknown, current: 2, runner: 2, open: true, landed: leaseAndMax, ended: []byte{1, 2}, sentAs: EffectUnknown,
		},
		{
			name: "a reconciler found nothing out", arrange: func(l *life) { l.want(VerdictOK, release(2, reconciling(l), EffectUnknown)) },
			spans: unknown, current: 2, runner: 1, ended: []byte{1, 2}, sentAs: EffectUnknown,
		},
		{
			name: "released", arrange: func(l *life) { l.want(VerdictOK, release(1, l.grant(1), EffectNone)) },
			spans: free, current: 1, runner: 1, landed: leaseAndMax, ended: []byte{1}, sentAs: EffectNone,
		},
		{
			name: "released, corrected before", arrange: func(l *life) { corrected(l); l.want(VerdictOK, release(1, l.grant(1), EffectNone)) },
			spans: free, current: 1, runner: 1, landed: leaseAndMax, ended: []byte{1, 7}, old: true, sentAs: EffectNone,
		},
		{
			name: "released with a kept error", arrange: func(l *life) { l.want(VerdictOK, releaseKept(1, l.grant(1), 10*time.Second)) },
			spans: free, current: 1, runner: 1, landed: leaseAndMax, ended: []byte{1}, sentAs: EffectNone,
			hold: 10 * time.Second, outcome: failure("kept"),
		},
		{
			name: "bound", arrange: bound,
			spans: boundSpans, current: 1, runner: 1, landed: leaseAndMax, ended: []byte{1}, sentAs: EffectRepeatable, bound: true,
		},
		{
			name: "released by an operator", arrange: func(l *life) { lapsed(l); l.want(VerdictOK, resolveReleased(l.rec.Version)) },
			spans: free, current: 1, runner: 1, ended: []byte{1}, operator: true,
		},
		{
			name: "a reconciler's, released by an operator", arrange: func(l *life) {
				reconciling(l)
				l.lapse().want(VerdictOK, resolveReleased(l.rec.Version))
			},
			spans: free, current: 2, runner: 1, ended: []byte{1, 2}, operator: true,
		},
		{
			name: "an open run's, released by an operator", arrange: func(l *life) {
				rerunning(l)
				l.lapse().want(VerdictOK, resolveReleased(l.rec.Version))
			},
			spans: free, current: 2, runner: 2, ended: []byte{1, 2}, operator: true,
		},
		{
			name: "completed", arrange: func(l *life) { l.want(VerdictOK, complete(1, l.grant(1), success("done"))) },
			spans: completed, current: 1, runner: 1, landed: leaseAndMax, outcome: success("done"),
		},
		{
			name: "completed with an error", arrange: func(l *life) { l.want(VerdictOK, complete(1, l.grant(1), failure("done"))) },
			spans: completed, current: 1, runner: 1, landed: leaseAndMax, outcome: failure("done"),
		},
		{
			name: "completed by the earlier run while another reconciles", arrange: func(l *life) {
				one := lapsed(l)
				l.grant(2, reconcile(BasisBounded))
				l.want(VerdictOK, complete(1, one, success("done")))
			},
			spans: completed, current: 2, runner: 1, landed: leaseAndMax, outcome: success("done"),
		},
		{
			name: "completed by an operator", arrange: func(l *life) {
				lapsed(l)
				l.want(VerdictOK, resolveCompleted(l.rec.Version, success("done")))
			},
			spans: completed, current: 1, runner: 1, operator: true, outcome: success("done"),
		},
		{
			name: "completed by an operator with none", arrange: func(l *life) {
				lapsed(l)
				l.want(VerdictOK, resolveCompleted(l.rec.Version, nil))
			},
			spans: completed, current: 1, runner: 1, operator: true,
		},
	}
}
