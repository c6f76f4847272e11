package storage

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// given breaks a rule by changing what ApplyCase is given: copies, which are
// written only where ApplyCase writes.
func given(change func(c *Case, q Request, now Instant) Request) caseRules {
	return func(c Case, q Request, now Instant, skew time.Duration) (Change, Answer) {
		if c.Record != nil {
			c.Record = c.Record.clone()
		}
		c.Entries = slices.Clone(c.Entries)
		for i, e := range c.Entries {
			d := *e
			c.Entries[i] = &d
		}
		q = change(&c, q, now)
		return ApplyCase(c, q, now, skew)
	}
}

// written breaks a rule by changing what ApplyCase wrote.
func written(change func(c Case, w *Change, q Request)) caseRules {
	return func(c Case, q Request, now Instant, skew time.Duration) (Change, Answer) {
		w, ans := ApplyCase(c, q, now, skew)
		change(c, &w, q)
		return w, ans
	}
}

// replaysOnly changes what a Reserve under a claim is given.
func replaysOnly(change func(c *Case, r Reserve, now Instant)) caseRules {
	return given(func(c *Case, q Request, now Instant) Request {
		if r, ok := q.(Reserve); ok && r.Claim != nil {
			change(c, r, now)
		}
		return q
	})
}

// notPutBack leaves a record free that had a final error.
func notPutBack(c Case, w *Change) {
	if r := w.Record; r != nil && c.Record != nil && c.Record.Reopened != nil && r.State == StateCompleted && r.Outcome == c.Record.Reopened {
		r.State, r.Outcome = StateReleased, nil
	}
}

type letterMutation struct {
	rules    caseRules
	scenario string
	catch    string
}

// letterMutations are the rules about dead letters, each broken in one way, and
// which invariants catch it.
func letterMutations() map[string]letterMutation {
	const (
		one        = "a replay of a failed call"
		owned      = "an owner's replay of a failed call"
		reconciled = "two replays that reconcile a final error"
		operated   = "a replay beside an operator's verdict"
		two        = "two replays of a final error"
	)
	return map[string]letterMutation{
		"pins are not counted": {written(func(_ Case, w *Change, _ Request) {
			if w.Record != nil {
				w.Record.Pins = 0
			}
		}), one, "I11"},
		"a closed entry still pins": {written(func(_ Case, w *Change, q Request) {
			for _, e := range w.Entries {
				e.Pinned = true
			}
		}), one, "I11"},
		"any claim holds": {replaysOnly(func(c *Case, r Reserve, now Instant) {
			for _, e := range c.Entries {
				e.State, e.Claim, e.ClaimEnd, e.ByOperator = EntryReplaying, r.Claim.Token, now+1, true
			}
		}), one, "I15 I16"},
		"a claim that lapsed holds": {replaysOnly(func(c *Case, _ Reserve, now Instant) {
			for _, e := range c.Entries {
				e.ClaimEnd = now + 1
			}
		}), one, "I16"},
		"an owner's claim opens a final error": {replaysOnly(func(c *Case, _ Reserve, _ Instant) {
			for _, e := range c.Entries {
				e.ByOperator = true
			}
		}), owned, "I16"},
		"a claim opens its own run's error": {replaysOnly(func(c *Case, _ Reserve, _ Instant) {
			if r := c.Record; r != nil && r.State == StateCompleted {
				r.Attempt, r.RunAttempt, r.Ended = AttemptID{99}, AttemptID{99}, nil
				for _, e := range c.Entries {
					e.ClaimFence = 0
				}
			}
		}), one, "I4"},
		"a success is opened": {replaysOnly(func(c *Case, _ Reserve, _ Instant) {
			if r := c.Record; r != nil && r.State == StateCompleted && r.Outcome.Success() {
				r.Outcome = outcomes[errOf]
			}
		}), one, "I3"},
		"an opened error is not kept": {written(func(_ Case, w *Change, _ Request) {
			if w.Record != nil {
				w.Record.Reopened = nil
			}
		}), one, "I14"},
		"an opened error does not come back from a release": {written(func(c Case, w *Change, q Request) {
			if _, ok := q.(Release); ok {
				notPutBack(c, w)
			}
		}), one, "I14"},
		"an opened error does not come back from a verdict": {written(func(c Case, w *Change, q Request) {
			if _, ok := q.(Resolve); ok {
				notPutBack(c, w)
			}
		}), operated, "I14"},
		"a completion resolves nothing": {written(func(c Case, w *Change, q Request) {
			if _, ok := q.(Complete); ok && len(w.Entries) > 0 {
				w.Record.Pins, w.Entries = c.Record.Pins, nil
			}
		}), one, "I17"},
		"a failed replay resolves": {given(func(_ *Case, q Request, _ Instant) Request {
			if s, ok := q.(Settle); ok {
				s.Result = ResultReplayed
				return s
			}
			return q
		}), one, "I13"},
		"a closed entry is settled again": {given(func(c *Case, q Request, _ Instant) Request {
			for _, e := range c.Entries {
				if _, ok := q.(Settle); ok {
					e.State = EntryReplaying
				}
			}
			return q
		}), one, "I15"},
		"a closed entry is claimed again": {given(func(c *Case, q Request, _ Instant) Request {
			for _, e := range c.Entries {
				if _, ok := q.(Claim); ok && !e.Open() {
					e.State, e.Claim = EntryParked, ClaimToken{}
				}
			}
			return q
		}), two, "I15"},
		"a final error forgets the attempts that ended": {written(func(_ Case, w *Change, q Request) {
			if _, ok := q.(Complete); ok && w.Record != nil {
				w.Record.Ended = nil
			}
		}), reconciled, "I4"},
	}
}

func TestSearchCatchesEveryBrokenRuleAboutDeadLetters(t *testing.T) {
	t.Parallel()
	scenarios := map[string]scenario{}
	for _, sc := range replays(maxProcs) {
		scenarios[sc.name] = sc
	}
	for name, m := range letterMutations() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sc, ok := scenarios[m.scenario]
			require.True(t, ok)
			sc.cases = m.rules
			want := strings.Fields(m.catch)
			f := search(sc, Apply, want...)
			require.Subset(t, slices.Collect(maps.Keys(f.broken)), want)
			t.Logf("%d states, %v", f.states, f.broken[want[0]])
		})
	}
}
