package storage

// judgeLetters holds w against what is true of a record and its entries.
func (w *world) judgeLetters(state State) broken {
	pins := 0
	for _, e := range w.letters {
		if e.Pinned {
			pins++
		}
		switch {
		case e.Pinned && !e.Open():
			return breaks("I11", "a closed entry pins the record")
		case e.Kind == EntryExhausted && e.State == EntryResolved && w.happened == noValue:
			return breaks("I13", "a call is resolved that was never done")
		}
	}
	switch {
	case pins == 0 && w.rec == nil:
	case w.rec == nil || int(w.rec.Pins) != pins:
		return breaks("I11", "the pins are not those of the open entries")
	case pins > 0 && (state == StateExpired || state == StateAbsent && w.rec.State != StateAbsent):
		return breaks("I12", "a pinned record expired")
	case w.reopened != noValue && state == StateReleased && !w.rec.Bound:
		return breaks("I14", "a final error that a replay opened was lost")
	}
	return broken{}
}

// judgeLetterWrite holds the step from w to n against the invariants about
// entries, and remembers in n what was opened again.
func (s *stepper) judgeLetterWrite(w, n *world, i int, m message) broken {
	for k, e := range w.letters {
		if !e.Open() && n.letters[k] != e {
			return breaks("I15", "a closed entry was written")
		}
	}
	if n.rec == w.rec || w.rec == nil {
		return broken{}
	}
	before := w.rec.StateAt(w.now, 0)
	switch after := n.rec.State; {
	case before == StateCompleted && after == StateReserved:
		n.reopened = valueOf(w.rec.Outcome)
		if !s.holdsClaim(w, i) || m != mReserve {
			return breaks("I16", "a final error was opened without an operator's live claim")
		}
	case after != StateCompleted || w.reopened == noValue:
	case m == mComplete && i >= 0:
		n.reopened = noValue
	case valueOf(n.rec.Outcome) != w.reopened && valueOf(n.rec.Outcome) != operator:
		return breaks("I14", "another outcome than the final error came back")
	default:
		n.reopened = noValue
	}
	if m == mComplete && i >= 0 && before != StateCompleted && n.rec.State == StateCompleted && valueOf(n.rec.Outcome).success() {
		for _, e := range n.letters {
			if e.Kind == EntryExhausted && e.Open() {
				return breaks("I17", "the work is done, and its entry is open")
			}
		}
	}
	return broken{}
}

// holdsClaim reports whether attempt i replays under an operator's claim that is
// live, by the world's own reckoning.
func (s *stepper) holdsClaim(w *world, i int) bool {
	if i < 0 || s.attempts[i].claim == 0 {
		return false
	}
	c := s.attempts[i].claim - 1
	for _, e := range w.letters {
		if e.State == EntryReplaying && e.Claim == replayToken(c) && w.now < e.ClaimEnd && s.claims[c].operator {
			return true
		}
	}
	return false
}

// onlyHeld reports whether a step wrote no more of the record than what holds it.
func onlyHeld(a, b *Record) bool {
	if a == nil {
		return b.State == StateAbsent
	}
	return a.Pins != b.Pins && a.State == b.State && a.Fence == b.Fence && a.LeaseEnd == b.LeaseEnd && a.Mode == b.Mode &&
		a.Outcome == b.Outcome && a.ReleasedAs == b.ReleasedAs && a.RunFence == b.RunFence && len(a.Ended) == len(b.Ended)
}
