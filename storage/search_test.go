package storage

import (
	"flag"
	"fmt"
	"hash/maphash"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var searchLarge = flag.Bool("search.large", false, "search with three attempts and everything on; takes minutes and gigabytes")

// node is a state that the search has seen: how it got there.
type node struct {
	parent int32
	by     action
}

// found is a broken invariant and a shortest way to it.
type found struct {
	broken
	trace []string
}

func (f found) String() string {
	return fmt.Sprintf("%s: %s, after %d steps:\n  %s", f.invariant, f.why, len(f.trace), strings.Join(f.trace, "\n  "))
}

// findings is what a search ends with.
type findings struct {
	states int
	broken map[string]found
}

// search explores sc breadth first, until it has seen every state, or one broken
// invariant, or all of those hunted: states that break others are passed by.
func search(sc scenario, apply rules, hunted ...string) findings {
	seed := maphash.MakeSeed()
	first := firstWorld()
	if sc.prepare != nil {
		sc.prepare(&first)
	}
	seen := map[[2]uint64]struct{}{first.key(seed): {}}
	nodes := []node{{parent: -1}}
	level, from := []world{first}, int32(0)
	result := findings{broken: map[string]found{}}
	over := func() bool {
		for _, invariant := range hunted {
			if _, ok := result.broken[invariant]; !ok {
				return false
			}
		}
		return len(result.broken) > 0
	}
	for len(level) > 0 && !over() {
		var next []world
		for k := range level {
			s := stepper{scenario: &sc, rules: apply}
			s.emit = func(a action, n world, bad broken) {
				step := node{parent: from + int32(k), by: a}
				if _, known := result.broken[bad.invariant]; bad.invariant != "" && !known {
					result.broken[bad.invariant] = found{bad, trace(append(nodes, step))}
				}
				id := n.key(seed)
				if _, known := seen[id]; known {
					return
				}
				seen[id] = struct{}{}
				next, nodes = append(next, n), append(nodes, step)
			}
			s.steps(&level[k])
		}
		level, from = next, from+int32(len(level))
	}
	result.states = len(seen)
	return result
}

// trace tells how the last node was reached, a line a step.
func trace(nodes []node) []string {
	var lines []string
	for k := int32(len(nodes) - 1); k > 0; k = nodes[k].parent {
		lines = append(lines, nodes[k].by.String())
	}
	slices.Reverse(lines)
	return lines
}

func (a action) String() string {
	if a.who < 0 {
		return a.what
	}
	who := string(rune('A' + a.who))
	names := [...]string{
		mReserve: "Reserve", mGiveBack: "Release(NONE, unread)", mBeginRun: "BeginRun", mExtend: "Extend", mComplete: "Complete",
		mReleaseNone: "Release(NONE)", mReleaseRepeatable: "Release(REPEATABLE)", mReleaseUnknown: "Release(UNKNOWN)",
	}
	switch a.message {
	case sent:
		return who + " sends " + names[a.msg]
	case decided:
		return "the store decides on " + who + "'s " + names[a.msg]
	case arrives:
		return who + "'s " + names[a.msg] + " arrives: " + a.what
	case noMessage:
	}
	return who + " " + a.what
}

var (
	refuses  = attemptSpec{fp: fpOne}
	reruns   = attemptSpec{fp: fpOne, onUnknown: OnUnknownRerun}
	bounds   = attemptSpec{fp: fpOne, onUnknown: OnUnknownReconcile, basis: BasisBounded}
	fences   = attemptSpec{fp: fpOne, onUnknown: OnUnknownReconcile, basis: BasisFenced}
	inboxes  = attemptSpec{fp: fpOne, onUnknown: OnUnknownReconcile, basis: BasisInbox}
	corrects = attemptSpec{fp: fpTwo, corrected: true}
)

func times(n int, a attemptSpec) []attemptSpec { return slices.Repeat([]attemptSpec{a}, n) }

// scenarios are the searches with n attempts.
func scenarios(n int) []scenario {
	return []scenario{
		{name: "REFUSE, no condition on effects", attempts: times(n, refuses), errors: true},
		{name: "REFUSE, effects land later", attempts: times(n, refuses), errors: true, async: true},
		{name: "REFUSE with an operator, BOUNDED", attempts: times(n, refuses), bounded: true, async: true, operator: true, extends: true},
		{name: "REFUSE with an operator, messages outlive a free record", attempts: times(n, refuses), bounded: true, operator: true, errors: true, outlives: true},
		{name: "RECONCILE, BOUNDED", attempts: times(n, bounds), bounded: true, errors: true, extends: true},
		{name: "RECONCILE, BOUNDED, effects land later", attempts: times(n, bounds), bounded: true, async: true, errors: true},
		{name: "RECONCILE with an operator, BOUNDED", attempts: times(n, bounds), bounded: true, async: true, operator: true},
		{name: "RECONCILE, FENCED", attempts: times(n, fences), fenced: true, async: true, errors: true},
		{name: "RECONCILE, INBOX", attempts: times(n, inboxes), inbox: true, async: true, errors: true},
		{name: "RERUN beside REFUSE", attempts: append(times(n-1, refuses), reruns), errors: true},
		{name: "a corrected request", attempts: append(times(n-1, refuses), corrects), errors: true},
		{name: "child keys and a corrected request", attempts: append(times(n-1, refuses), corrects), children: true, errors: true},
		{name: "child keys, messages outlive a free record", attempts: []attemptSpec{refuses, corrects}, children: true, errors: true, outlives: true},
	}
}

// mixed are searches whose attempts have each a part of their own.
func mixed() []scenario {
	return []scenario{
		{name: "RERUN beside RECONCILE", attempts: []attemptSpec{bounds, reruns, bounds}, bounded: true, errors: true},
		{name: "REFUSE after RERUN", attempts: []attemptSpec{refuses, reruns, refuses}, errors: true},
		{name: "child keys and an operator", attempts: []attemptSpec{refuses, reruns, corrects}, bounded: true, children: true, errors: true, operator: true},
		{name: "INBOX and a corrected request", attempts: []attemptSpec{inboxes, inboxes, {fp: fpTwo, onUnknown: OnUnknownReconcile, basis: BasisInbox, corrected: true}}, inbox: true, async: true, errors: true},
		{name: "old requests and a corrected one", attempts: []attemptSpec{refuses, refuses, corrects}, errors: true},
		{name: "a two-step store", attempts: times(2, bounds), bounded: true, errors: true, twoStep: true},
	}
}

func TestSearch(t *testing.T) {
	t.Parallel()
	all := append(scenarios(2), mixed()[1:]...) // the first is large
	all = append(all, replays(2)...)
	if *searchLarge {
		all = append(scenarios(maxProcs), mixed()...)
		all = append(all, replays(maxProcs)...)
	}
	for _, sc := range all {
		t.Run(sc.name, func(t *testing.T) {
			t.Parallel()
			f := search(sc, Apply)
			require.Empty(t, f.broken)
			t.Logf("%d states", f.states)
		})
	}
}
