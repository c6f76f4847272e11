package storage

// broken is an invariant that does not hold; empty where all do.
type broken struct{ invariant, why string }

func breaks(invariant, why string) broken { return broken{invariant, why} }

// judgeState holds w against the invariants that a state alone can break.
func (s *stepper) judgeState(w *world) broken {
	state := w.rec.StateAt(w.now, 0)
	happened := w.effects > 0 || w.children > 0
	switch {
	case w.effects > 1:
		return breaks("I1", "the effect happened twice")
	case w.children&(w.children-1) != 0:
		return breaks("I1", "effects of two requests happened")
	case w.answered > operator:
		return breaks("I2", "two clients heard different answers")
	case state == StateReleased && happened && !w.rec.Bound && !s.inbox:
		return breaks("I9", "released, and the effect has happened")
	case state == StateCompleted && w.effects > 0 && valueOf(w.rec.Outcome) >= errOf && valueOf(w.rec.Outcome) < operator && !s.inbox:
		return breaks("I9", "completed with an error, and the effect has happened")
	}
	if bad := w.judgeLetters(state); bad.invariant != "" {
		return bad
	}
	if w.rec != nil && w.rec.State == StateReserved && w.rec.LeaseEnd <= w.now {
		if _, ans := s.rules(w.rec, Lookup{}, w.now, 0); ans.State == StateReserved {
			return breaks("I6", "a lease without an end")
		}
	}
	if w.rec != nil && state == StateCompleted {
		for _, f := range [...]Fingerprint{fpOne, fpTwo} {
			_, ans := s.rules(w.rec, Lookup{Fingerprint: f}, w.now, 0)
			if by := valueOf(ans.Outcome); s.belongsToOther(by, f) {
				return breaks("I8", "a look-up told another request's outcome")
			}
		}
	}
	return broken{}
}

// belongsToOther reports whether v is the outcome of another request than f.
func (s *stepper) belongsToOther(v value, f Fingerprint) bool {
	if v == noValue || v == operator {
		return false
	}
	return !s.attempts[(v-okOf)%maxProcs].fp.Same(f)
}

// judgeAnswer holds the answer to message m of attempt i against I4 and I8, and
// remembers grants in n.
func (s *stepper) judgeAnswer(w, n *world, i int, m message, ans Answer) broken {
	switch {
	case m == mBeginRun && ans.Verdict == VerdictOK && n.rec != w.rec:
		n.told[i], n.run = ModeRun, int8(i)
	case m == mReleaseRepeatable && ans.Verdict == VerdictOK:
		n.repeatable = true
	case m != mReserve:
	case ans.Verdict == VerdictGranted && n.rec != w.rec:
		return s.judgeGrant(w, n, i, ans.Record.Mode)
	case ans.Verdict == VerdictGranted:
		if w.granted[i] != ans.Record.Fence || w.told[i] != ans.Record.Mode {
			return breaks("I4", "the same attempt got another grant")
		}
	case w.rec != nil && w.rec.State == StateReserved && w.current == int8(i) &&
		ans.Verdict != VerdictKeyReused && ans.Verdict != VerdictCompleted && ans.Verdict != VerdictClaimInvalid:
		return breaks("I4", "the same attempt did not get its grant again")
	case ans.Verdict == VerdictCompleted && s.belongsToOther(valueOf(ans.Outcome), s.attempts[i].fp):
		return breaks("I8", "a request got another request's outcome")
	}
	return broken{}
}

func (s *stepper) judgeGrant(w, n *world, i int, told Mode) broken {
	corrected := s.attempts[i].corrected
	switch {
	case w.granted[i] != 0:
		return breaks("I4", "the same attempt was granted twice")
	case n.rec.Fence <= w.high:
		return breaks("I5", "the fence did not grow")
	case w.corrected && !corrected && !w.later:
		return breaks("I8", "the old request was granted after the corrected one")
	}
	n.granted[i], n.told[i] = n.rec.Fence, told
	n.current, n.high, n.corrected = int8(i), n.rec.Fence, w.corrected || corrected
	if told == ModeRun {
		n.run = int8(i)
	}
	return broken{}
}

// judgeWrite holds the step from w to n, by message m of attempt i (or -1),
// against the invariants about writes.
func (s *stepper) judgeWrite(w, n *world, i int, m message) broken {
	if bad := s.judgeLetterWrite(w, n, i, m); bad.invariant != "" {
		return bad
	}
	if n.rec == w.rec || len(s.claims) > 0 && onlyHeld(w.rec, n.rec) {
		return broken{}
	}
	before, after := w.rec.StateAt(w.now, 0), n.rec.StateAt(n.now, 0)
	if wasSuccess := w.rec != nil && w.rec.State == StateCompleted && before != StateAbsent &&
		valueOf(w.rec.Outcome).success(); wasSuccess && (n.rec.State != StateCompleted || n.rec.Outcome != w.rec.Outcome) {
		return breaks("I3", "a completed success was changed")
	}
	if i < 0 || w.rec == nil {
		return s.judgeState(n)
	}
	others := w.current >= 0 && w.current != int8(i)
	byHolder := w.current == int8(i) && m != mReserve
	frees := m == mReleaseNone || m == mGiveBack
	lastRun := m == mComplete && w.run == int8(i)
	switch {
	case frees && after == StateReleased && (others && w.rec.State == StateReserved || before == StateCompleted):
		return breaks("I7", "a Release freed what was not its own")
	case m != mReserve && m != mGiveBack && others && !lastRun:
		return breaks("I5", "an older fence wrote")
	case (m == mComplete || m == mExtend || m == mBeginRun) && before == StateAbsent:
		return breaks("I5", "a holder's call made a record")
	case byHolder && m != mComplete && m != mGiveBack && w.rec.State != StateReserved && before != StateAbsent:
		return breaks("I10", "a late message undid what was settled")
	}
	return s.judgeState(n)
}
