package storage

import (
	"time"
)

// rules is Apply, or Apply with one rule broken.
type rules func(rec *Record, req Request, now Instant, skew time.Duration) (*Record, Answer)

// attemptSpec is one attempt: what it asks, and under which policy.
type attemptSpec struct {
	fp        Fingerprint
	onUnknown OnUnknown
	basis     Basis
	corrected bool // starts once a client has heard a definite error
	claim     int  // it replays under this claim of the scenario, from 1 on; 0: it is no replay
}

// scenario is what a search explores.
type scenario struct {
	name     string
	attempts []attemptSpec

	bounded  bool // E1: no effect lands after its grant's lease
	fenced   bool // the resource refuses fences below the highest seen
	inbox    bool // E3: effect and row commit together, a second row is refused
	async    bool // effects are sent and land later
	children bool // effects are under child keys: a repeat of one request is harmless
	operator bool
	errors   bool // handlers also fail, before any effect
	extends  bool
	outlives bool // messages and processes outlive the retention of a free record
	twoStep  bool // the store reads, decides and writes apart, guarded

	// Dead letters, where there are claims.
	claims   []claimSpec
	prepare  func(*world) // instead of the first world
	cases    caseRules    // ApplyCase, where it is nil
	discards bool         // a person discards the entry

	// What goes wrong outside of the rules, for the mutations.
	lookUnfenced bool // a reconciler's look registers no fence
	answerUnread bool // the first caller gets its answer before Complete is acknowledged
	runLapsed    bool // a grant that comes back lapsed is run
	rowBlind     bool // the inbox row has no fingerprint
	lookEarly    bool // an operator's look while effects may still land counts
	guard        func(read, now *Record) bool
}

// action is one step, for the trace. Without a message it is the doing of an
// attempt, or of the world where who is -1.
type action struct {
	what    string
	who     int8
	msg     message
	message way
}

// way is what happens to a message.
type way uint8

const (
	noMessage way = iota
	sent
	decided // by a two-step store
	arrives
)

// stepper lists what can happen next.
type stepper struct {
	*scenario
	rules rules
	emit  func(action, world, broken)
}

// steps emits every next state of w.
func (s *stepper) steps(w *world) {
	for i := range s.attempts {
		s.messageSteps(w, i)
		s.procSteps(w, i)
	}
	s.flightSteps(w)
	if s.operator {
		s.operatorSteps(w)
	}
	if s.twoStep && w.slow != nil {
		s.slowWriteSteps(w)
	}
	if len(s.claims) > 0 {
		s.letterSteps(w)
	}
	s.timeStep(w)
}

func (s *stepper) local(w *world, i int, what string, change func(*world, *proc)) {
	n := *w
	change(&n, &n.procs[i])
	s.emit(action{what: what, who: int8(i)}, n, s.judgeState(&n))
}

// send puts a message on its way and moves the attempt on.
func (s *stepper) send(w *world, i int, m message, then pc) {
	n := *w
	n.procs[i].sent |= 1 << m
	n.procs[i].pc = then
	s.emit(action{who: int8(i), msg: m, message: sent}, n, s.judgeState(&n))
}

// procSteps are an attempt's own steps; that it takes none is a crash or a pause.
func (s *stepper) procSteps(w *world, i int) {
	p := &w.procs[i]
	switch p.pc {
	case idle:
		if (!s.attempts[i].corrected || w.definite) && s.mayReplay(w, i) {
			s.send(w, i, mReserve, reserving)
		}
	case reserving:
		if s.attempts[i].claim == 0 { // a replay does not know whose record it would give back
			s.send(w, i, mGiveBack, done)
		}
	case looking:
		s.local(w, i, "looks", func(n *world, p *proc) { s.look(n, p, i) })
		s.send(w, i, mReleaseUnknown, done)
		if s.errors {
			s.send(w, i, mReleaseNone, done) // the reconciler's own failure
		}
	case sawApplied:
		s.local(w, i, "sends the response it found", func(n *world, p *proc) {
			p.pc, p.out = completing, n.happened
			p.sent |= 1 << mComplete
		})
	case sawNothing:
		s.send(w, i, mBeginRun, beginning)
	case running:
		s.runSteps(w, i)
	case sending:
		if p.out != noValue {
			s.local(w, i, "hears of its effect", func(_ *world, p *proc) { p.pc = applied })
		}
		s.send(w, i, mReleaseUnknown, done)
	case applied:
		s.local(w, i, "sends Complete", func(n *world, p *proc) {
			p.pc = completing
			p.sent |= 1 << mComplete
			if s.answerUnread {
				n.answer(p.out)
			}
		})
		s.send(w, i, mReleaseUnknown, done)
		if s.children {
			s.send(w, i, mReleaseRepeatable, releasing)
		}
	case beginning, completing, releasing, done:
	}
}

func (s *stepper) runSteps(w *world, i int) {
	if s.async {
		s.local(w, i, "sends its effect", func(_ *world, p *proc) {
			p.pc, p.flying, p.flightEnd = sending, true, p.end
		})
	} else if !s.bounded || w.now < w.procs[i].end {
		s.local(w, i, "applies", func(n *world, p *proc) {
			s.land(n, p, i)
			p.pc = applied
			if p.out == noValue {
				p.pc = done
			}
		})
	}
	if s.errors {
		s.send(w, i, mReleaseNone, releasing)
		s.local(w, i, "sends Complete with an error", func(_ *world, p *proc) {
			p.pc, p.out = completing, errOf+value(i)
			p.sent |= 1 << mComplete
		})
	}
	if s.extends {
		s.send(w, i, mExtend, running)
	}
}

// look is a reconciler's accurate look at the effect. It registers its fence
// with a resource that checks fences.
func (s *stepper) look(n *world, p *proc, i int) {
	if s.fenced && !s.lookUnfenced {
		n.mark = max(n.mark, p.fence)
	}
	p.pc = sawNothing
	if n.happened != noValue && s.attempts[i].fp.Same(s.attempts[n.happened-okOf].fp) {
		p.pc = sawApplied
	}
}

// land applies the effect of attempt i, unless the resource refuses it.
func (s *stepper) land(n *world, p *proc, i int) {
	own := okOf + value(i)
	switch {
	case s.fenced && p.fence < n.mark:
		return
	case s.inbox && n.row:
		if s.rowBlind || s.attempts[i].fp.Same(s.attempts[n.happened-okOf].fp) {
			p.out = n.happened // the row holds the response
		}
		return
	case s.children:
		n.children |= 1 << (s.attempts[i].fp[0].Server[0] & 7)
	case s.attempts[i].onUnknown != OnUnknownRerun:
		n.effects++
	}
	n.mark, n.row = max(n.mark, p.fence), true
	p.out = own
	if n.happened == noValue {
		n.happened = own
	}
}

func (s *stepper) flightSteps(w *world) {
	for i := range s.attempts {
		if p := &w.procs[i]; p.flying && (!s.bounded || w.now < p.flightEnd) {
			s.local(w, i, "sees its effect land", func(n *world, p *proc) {
				p.flying = false
				s.land(n, p, i)
			})
		}
	}
}

// timeStep lets time pass up to the next instant that any rule knows of.
func (s *stepper) timeStep(w *world) {
	var next Instant
	consider := func(at Instant) {
		if at > w.now && (next == 0 || at < next) {
			next = at
		}
	}
	if r := w.rec; r != nil {
		for _, at := range [...]Instant{r.LeaseEnd, r.RunEnd, r.HoldEnd, r.ExpiresAt, r.DropAt} {
			consider(at)
		}
	}
	for i := range w.procs {
		consider(w.procs[i].end)
	}
	for _, e := range w.letters {
		if e.Kind == EntryExhausted {
			consider(e.ClaimEnd)
			consider(e.LastParkedAt.Add(searchRetention))
		}
	}
	if next == 0 {
		return
	}
	n := *w
	n.now = next
	s.endLife(w, &n)
	s.emit(action{what: "time passes", who: -1}, n, s.judgeState(&n))
}

// endLife starts a new life where that of the record has ended by this step.
func (s *stepper) endLife(w, n *world) {
	if n.rec.StateAt(n.now, 0) == StateAbsent && w.rec.StateAt(w.now, 0) != StateAbsent {
		s.newLife(w, n)
	}
}

// newLife forgets what belonged to a life of the record that has ended.
func (s *stepper) newLife(w, n *world) {
	n.history = history{current: -1, run: -1, high: w.high, later: true}
	if s.outlives && n.now < w.rec.ExpiresAt.Add(searchTombstone) || w.rec.State != StateCompleted && w.rec.State != StateReleased {
		return
	}
	// R13: nothing outlives retention + tombstone, neither process nor message,
	// nor the retention of a free record.
	*n = world{rec: n.rec, now: n.now, history: n.history}
	for i := range s.attempts {
		if w.procs[i].pc != idle {
			n.procs[i].pc = done
		}
	}
}

// operatorSteps are a careful operator's: look up, look at the effect, resolve.
func (s *stepper) operatorSteps(w *world) {
	n := *w
	switch w.opPC {
	case idle:
		version := w.rec.VersionAt(w.now, 0)
		if s.lookEarly && w.rec != nil {
			version = w.rec.Version
		}
		if version == 0 || w.rec.State != StateReserved && w.rec.State != StateUnknown {
			return
		}
		n.opPC, n.opVersion = looking, version
		s.emit(action{what: "operator looks the record up", who: -1}, n, broken{})
	case looking:
		n.opPC, n.opSaw = sawApplied, w.happened != noValue && !w.repeatable
		s.emit(action{what: "operator looks at the effect", who: -1}, n, broken{})
	case sawApplied:
		n.opPC = completing
		s.emit(action{what: "operator sends Resolve", who: -1}, n, broken{})
	case completing:
		q := Resolve{Version: w.opVersion, Completed: w.opSaw, Terms: searchTerms}
		if w.opSaw {
			q.Outcome = outcomes[operator]
		}
		change, ans := s.apply(w, q)
		if change.Record != nil {
			n.take(change)
			s.emit(action{what: "Resolve arrives: " + ans.Verdict.String(), who: -1}, n, s.judgeWrite(w, &n, -1, 0))
		}
	case reserving, sawNothing, beginning, running, sending, applied, releasing, done: // an attempt's
	}
}

func (s *stepper) slowWriteSteps(w *world) {
	n, slow := *w, w.slow
	n.slow = nil
	var bad broken
	if s.guard == nil && slow.read == w.rec || s.guard != nil && slow.read != nil && s.guard(slow.read, w.rec) {
		n.rec = slow.next
		bad = s.judgeAnswer(w, &n, slow.who, slow.msg, Answer{Verdict: slow.verdict, Record: slow.next})
		if bad.invariant == "" {
			bad = s.judgeWrite(w, &n, slow.who, slow.msg)
		}
	}
	s.emit(action{what: "the store makes its write", who: -1}, n, bad)
}
