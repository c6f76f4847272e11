package storage

var searchTerms = Terms{Retention: searchRetention, Tombstone: searchTombstone}

// messageSteps lets every message that attempt i ever sent arrive, with its
// reply heard or lost.
func (s *stepper) messageSteps(w *world, i int) {
	p := &w.procs[i]
	for m := range messages {
		if p.sent&(1<<m) == 0 {
			continue
		}
		change, ans := s.apply(w, s.request(w, i, m))
		next := change.Record
		if s.twoStep && next != nil && w.slow == nil {
			n := *w
			n.slow = &slowWrite{read: w.rec, next: next, who: i, msg: m, verdict: ans.Verdict}
			s.emit(action{who: int8(i), msg: m, message: decided}, n, broken{})
		}
		n := *w
		n.take(change)
		bad := s.judgeAnswer(w, &n, i, m, ans)
		if bad.invariant == "" {
			bad = s.judgeWrite(w, &n, i, m)
		}
		s.endLife(w, &n)
		if next != nil || len(change.Entries) > 0 || bad.invariant != "" {
			s.emit(action{what: ans.Verdict.String() + ", reply lost", who: int8(i), msg: m, message: arrives}, n, bad)
		}
		if heard := n; s.hear(&heard, i, m, ans) {
			bad := s.judgeState(&heard)
			s.emit(action{what: ans.Verdict.String(), who: int8(i), msg: m, message: arrives}, heard, bad)
		}
	}
}

// request builds message m of attempt i.
func (s *stepper) request(w *world, i int, m message) Request {
	p, id, spec := &w.procs[i], attempt(byte(i+1)), &s.attempts[i]
	free := Release{Identity: identity, Attempt: id, Fence: p.fence, Terms: searchTerms}
	switch m {
	case mReserve:
		return Reserve{
			Identity: identity, Fingerprint: spec.fp, Attempt: id, Lease: searchLease,
			OnUnknown: spec.onUnknown, Basis: spec.basis, Claim: s.claimOf(w, i), Terms: searchTerms,
		}
	case mBeginRun:
		return BeginRun{Attempt: id, Fence: p.fence}
	case mExtend:
		return Extend{Attempt: id, Fence: p.fence, Lease: searchLease}
	case mComplete:
		return Complete{Identity: identity, Attempt: id, Fence: p.fence, Outcome: outcomes[p.out], Terms: searchTerms}
	case mGiveBack:
		free.Fence, free.Effect = 0, EffectNone
	case mReleaseNone:
		free.Effect, free.Error, free.Hold = EffectNone, outcomes[errOf+value(i)], searchHold
	case mReleaseRepeatable:
		free.Effect = EffectRepeatable
	case mReleaseUnknown, messages:
		free.Effect = EffectUnknown
	}
	return free
}

// hear moves attempt i on by the reply to m; false where it waits for another.
func (s *stepper) hear(n *world, i int, m message, ans Answer) bool {
	p := &n.procs[i]
	switch {
	case m == mReserve && p.pc == reserving:
		return s.hearReserve(n, i, ans)
	case m == mBeginRun && p.pc == beginning:
		p.pc = done
		if ans.Verdict == VerdictOK && ans.LeaseLeft() > 0 {
			p.pc, p.end = running, ans.Record.LeaseEnd
		}
	case m == mExtend && p.pc == running && ans.Verdict == VerdictOK:
		p.end = ans.Record.LeaseEnd
	case m == mComplete && p.pc == completing:
		p.pc = done
		if ans.Verdict == VerdictOK && ans.State == StateCompleted {
			s.tell(n, i, p.out)
		}
	case (m == mReleaseNone || m == mReleaseRepeatable) && p.pc == releasing:
		p.pc = done
		n.definite = n.definite || ans.Verdict == VerdictOK && ans.State == StateReleased
	default:
		return false
	}
	return true
}

func (s *stepper) hearReserve(n *world, i int, ans Answer) bool {
	p := &n.procs[i]
	if ans.Verdict == VerdictGranted {
		s.begin(n, p, ans)
		return true
	}
	if ans.Verdict == VerdictInProgress || ans.Verdict == VerdictOutcomeUnknown {
		return false // it asks again
	}
	p.pc = done
	s.tell(n, i, valueOf(ans.Outcome)) // of VerdictCompleted; the others have none
	return true
}

// tell answers whoever sent attempt i.
func (s *stepper) tell(n *world, i int, v value) {
	n.answer(v)
	if c := s.attempts[i].claim; c > 0 {
		n.replayers[c-1].succeeded = n.replayers[c-1].succeeded || v.success()
	}
}

// begin starts on a grant; one that comes back lapsed is released, and reserved
// anew under another attempt id.
func (s *stepper) begin(n *world, p *proc, ans Answer) {
	unused := mReleaseNone
	p.fence, p.end, p.pc = ans.Record.Fence, ans.Record.LeaseEnd, running
	if ans.Record.Mode == ModeReconcile {
		p.pc, unused = looking, mReleaseUnknown
	}
	switch {
	case ans.LeaseLeft() > 0:
	case s.runLapsed:
		p.end = n.now.Add(searchLease)
	default:
		p.pc = done
		p.sent |= 1 << unused
	}
}

// answer tells a client v; a second, different success breaks I2.
func (w *world) answer(v value) {
	switch {
	case v == noValue:
	case !v.success():
		w.definite = true
	case w.answered == noValue:
		w.answered = v
	case w.answered != v:
		w.answered = operator + 1
	}
}
