package storage

import (
	"slices"
	"time"
)

// The part of the search that is about dead letters: a client that parks its
// call, replayers that claim the entry, run attempts under their claims and
// settle it, and a person who discards it. Their messages too arrive late, never
// or many times.

const maxClaims = 2

// mostClaims bounds the claims of a world: late copies of two replayers' Claims
// could take turns for ever.
const mostClaims = maxClaims + 1

// caseRules is ApplyCase, or ApplyCase with one rule broken.
type caseRules func(c Case, req Request, now Instant, skew time.Duration) (Change, Answer)

// claimSpec is one claim that a replayer may make.
type claimSpec struct {
	operator bool
	lease    time.Duration
}

// replayer is who makes a claim.
type replayer struct {
	pc        pc   // idle, reserving (the claim), running, done
	entry     int8 // which of the world's letters, from 1 on
	sent      uint8
	succeeded bool // it heard a success
}

// What a replayer sends; each may arrive again.
const (
	sentClaim = 1 << iota
	sentReplayed
	sentFailed
	sentGivenBack
)

func replayToken(c int) ClaimToken { return ClaimToken{byte(c + 1)} }

// apply judges a request by the rules that the scenario is about.
func (s *stepper) apply(w *world, q Request) (Change, Answer) {
	if len(s.claims) == 0 {
		next, ans := s.rules(w.rec, q, w.now, 0)
		return Change{Record: next}, ans
	}
	rules := s.cases
	if rules == nil {
		rules = ApplyCase
	}
	return rules(Case{Record: w.rec, Entries: w.letters}, q, w.now, 0)
}

// take makes a change.
func (w *world) take(c Change) {
	if c.Record != nil {
		w.rec = c.Record
	}
	for _, e := range c.Entries {
		i := slices.IndexFunc(w.letters, func(o *DeadLetter) bool { return o.ID == e.ID })
		w.letters = slices.Clone(w.letters)
		if i < 0 {
			w.letters = append(w.letters, e)
		} else {
			w.letters[i] = e
		}
	}
}

// mayReplay reports whether attempt i may start: a replay does under its claim.
func (s *stepper) mayReplay(w *world, i int) bool {
	c := s.attempts[i].claim
	return c == 0 || w.replayers[c-1].pc == running
}

// claimOf is what attempt i proves its claim with.
func (s *stepper) claimOf(w *world, i int) *ReplayClaim {
	c := s.attempts[i].claim
	if c == 0 {
		return nil
	}
	return &ReplayClaim{Entry: w.letters[w.replayers[c-1].entry-1].ID, Token: replayToken(c - 1)}
}

// letterSteps emits what can happen next to the dead letters.
func (s *stepper) letterSteps(w *world) {
	exhausted := -1
	for i, e := range w.letters {
		if e.Kind == EntryExhausted && e.Open() {
			exhausted = i
		}
	}
	if !w.parked {
		s.doing(w, "the client sends Park", func(n *world) { n.parked = true })
	} else if exhausted >= 0 || len(w.letters) < maxClaims {
		s.letterArrives(w, "Park", parkCall(s.attempts[0].fp), nil)
	}
	for c := range s.claims {
		s.replayerSteps(w, c, exhausted)
	}
	if s.discards && exhausted >= 0 {
		s.letterArrives(w, "Discard", Discard{Entry: w.letters[exhausted].ID, Terms: searchTerms}, nil)
	}
}

func parkCall(fp Fingerprint) Park {
	return Park{Entry: DeadLetter{Kind: EntryExhausted, Identity: identity, ParkID: attempt(1), HasRequest: true, Fingerprint: fp}, Terms: searchTerms}
}

func (s *stepper) doing(w *world, what string, change func(*world)) {
	n := *w
	change(&n)
	s.emit(action{what: what, who: -1}, n, broken{})
}

// replayerSteps are those of the replayer of claim c: its doings, and its
// messages' arrivals.
func (s *stepper) replayerSteps(w *world, c, exhausted int) {
	r, who := &w.replayers[c], "replayer "+string(rune('1'+c))
	send := func(what string, m uint8, then pc) {
		if r.sent&m == 0 {
			s.doing(w, who+" sends "+what, func(n *world) { n.replayers[c].sent |= m; n.replayers[c].pc = then })
		}
	}
	if r.pc == idle && exhausted >= 0 {
		s.doing(w, who+" sends Claim", func(n *world) {
			n.replayers[c] = replayer{pc: reserving, entry: int8(exhausted + 1), sent: sentClaim}
		})
	}
	if r.pc == running {
		send("Settle(FAILED)", sentFailed, done)
		send("Settle(GIVEN_BACK)", sentGivenBack, done)
		if r.succeeded {
			send("Settle(REPLAYED)", sentReplayed, done)
		}
	}
	if r.entry == 0 {
		return
	}
	id, token := w.letters[r.entry-1].ID, replayToken(c)
	if r.sent&sentClaim != 0 && (w.claimed < mostClaims || w.letters[r.entry-1].Claim == token) {
		q := Claim{Entry: id, Token: token, Operator: s.claims[c].operator, Lease: s.claims[c].lease, Terms: searchTerms}
		s.letterArrives(w, who+"'s Claim", q, func(n *world, ans Answer) {
			if n.replayers[c].pc == reserving && ans.Verdict == VerdictOK {
				n.replayers[c].pc = running
			}
		})
	}
	for m, result := range map[uint8]EntryResult{sentReplayed: ResultReplayed, sentFailed: ResultFailed, sentGivenBack: ResultGivenBack} {
		if r.sent&m != 0 {
			s.letterArrives(w, who+"'s Settle", Settle{Entry: id, Token: token, Result: result, Terms: searchTerms}, nil)
		}
	}
}

// letterArrives lets a call on an entry arrive, with its reply heard or lost.
func (s *stepper) letterArrives(w *world, what string, q Request, hear func(*world, Answer)) {
	change, ans := s.apply(w, q)
	n := *w
	n.take(change)
	if _, ok := q.(Claim); ok && len(change.Entries) > 0 {
		n.claimed++
	}
	bad := s.judgeLetterWrite(w, &n, -1, 0)
	s.endLife(w, &n)
	if bad.invariant == "" {
		bad = s.judgeState(&n)
	}
	what += " arrives: " + ans.Verdict.String()
	if change.Record != nil || len(change.Entries) > 0 || bad.invariant != "" {
		s.emit(action{what: what + ", reply lost", who: -1}, n, bad)
	}
	if hear != nil {
		heard := n
		if hear(&heard, ans); heard.replayers != n.replayers {
			s.emit(action{what: what, who: -1}, heard, bad)
		}
	}
}

// letters adds the entries and who is about them to the world's key.
func (e *encoder) letters() {
	w := e.w
	e.bytes(uint8(len(w.letters)), bit(w.parked), w.claimed)
	for _, l := range w.letters {
		e.bytes(uint8(l.Kind), uint8(l.State), l.Claim[0], bit(l.ByOperator), bit(l.Pinned), uint8(l.Result), e.fence(l.ClaimFence), l.ParkID[0])
		if l.Conflict != nil {
			e.bytes(l.Conflict.RefusedHash[:2]...)
		}
		if l.Open() && l.Kind == EntryExhausted { // nobody claims a conflict
			e.times(l.ClaimEnd, l.LastParkedAt.Add(searchRetention))
		}
	}
	for _, r := range w.replayers {
		e.bytes(uint8(r.pc), uint8(r.entry), r.sent, bit(r.succeeded))
	}
}

// replays are the searches with replays, of n attempts at most.
func replays(n int) []scenario {
	operator := claimSpec{operator: true, lease: searchLease / 2}
	person := claimSpec{operator: true, lease: searchRetention}
	owner := claimSpec{lease: 2 * searchLease}
	replaying := func(a attemptSpec, claim int) attemptSpec {
		a.claim = claim
		return a
	}
	all := []scenario{
		{name: "a replay of a failed call", attempts: []attemptSpec{refuses, replaying(refuses, 1)}, claims: []claimSpec{operator}, errors: true, discards: true},
		{name: "an owner's replay of a failed call", attempts: []attemptSpec{refuses, replaying(refuses, 1)}, claims: []claimSpec{owner}, errors: true},
		{name: "a replay that reconciles", attempts: []attemptSpec{bounds, replaying(bounds, 1)}, claims: []claimSpec{operator}, bounded: true, errors: true},
		{name: "a replay beside an operator's verdict", attempts: []attemptSpec{refuses, replaying(refuses, 1)}, claims: []claimSpec{operator}, bounded: true, operator: true, errors: true, prepare: finalError},
		{name: "two replays of a final error", attempts: []attemptSpec{refuses, replaying(refuses, 1), replaying(refuses, 2)}, claims: []claimSpec{person, person}, prepare: finalError},
		{name: "a replay beside the caller's own retry", attempts: []attemptSpec{refuses, replaying(refuses, 1), refuses}, claims: []claimSpec{operator}, errors: true, prepare: finalError},
	}
	if n < maxProcs {
		return all
	}
	return append(all,
		scenario{name: "a failed call, its replay and an operator's verdict", attempts: []attemptSpec{refuses, replaying(refuses, 1)}, claims: []claimSpec{operator}, bounded: true, operator: true, errors: true},
		scenario{name: "two replays of a final error, whose claims lapse", attempts: []attemptSpec{refuses, replaying(refuses, 1), replaying(refuses, 2)}, claims: []claimSpec{operator, operator}, prepare: finalError},
		scenario{name: "an operator's and an owner's replay of a final error", attempts: []attemptSpec{refuses, replaying(refuses, 1), replaying(refuses, 2)}, claims: []claimSpec{operator, owner}, prepare: finalError, discards: true},
		scenario{name: "two replays that reconcile a final error", attempts: []attemptSpec{bounds, replaying(bounds, 1), replaying(bounds, 2)}, claims: []claimSpec{operator, operator}, bounded: true, errors: true, prepare: finalError},
	)
}

// finalError is a world where the first attempt has ended with a final error and
// its call was parked.
func finalError(w *world) {
	var ans Answer
	w.rec, ans = Apply(nil, Reserve{Identity: identity, Fingerprint: fpOne, Attempt: attempt(1), Lease: searchLease}, w.now, 0)
	w.procs[0] = proc{pc: done, out: errOf, sent: 1<<mReserve | 1<<mComplete, fence: ans.Record.Fence, end: ans.Record.LeaseEnd}
	w.granted[0], w.told[0], w.current, w.run, w.high = ans.Record.Fence, ModeRun, 0, 0, ans.Record.Fence
	w.rec, _ = Apply(w.rec, Complete{Attempt: attempt(1), Fence: ans.Record.Fence, Outcome: outcomes[errOf], Terms: searchTerms}, w.now, 0)
	w.definite, w.parked = true, true
	change, _ := ApplyCase(Case{Record: w.rec}, parkCall(fpOne), w.now, 0)
	w.take(change)
}
