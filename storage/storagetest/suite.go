// Package storagetest is the suite that every store of dedupd passes.
//
// How it is used:
//
//  1. A store's package writes an Opener: it opens an empty store for one case
//     and says, in a Harness, what a test may do to it (move its clock, close and
//     open it again).
//  2. Run drives the store through named cases; those that need what the Harness
//     lacks are skipped, never silently passed.
//  3. Bench runs the same benchmarks over every store.
//  4. Recorder and CheckHistory judge histories of concurrent calls, from a store
//     or from real servers, against storage.Apply.
//
// The cases ask a store for what storage.Apply answers; they hold no rules of
// their own beside the promises that people read. Field cases are named by id
// (A02, B07, …). It does not test speed, and it knows no database.
package storagetest

import (
	"testing"
	"time"

	"github.com/dedupd/dedupd/storage"
)

// Harness is a store under test and what a test may do to it.
type Harness struct {
	Store storage.Store
	// Advance moves the store's clock forward. Nil where the store cannot:
	// cases about the end of times are skipped.
	Advance func(time.Duration)
	// Reopen opens the same data once more, after Store was closed; the clock
	// goes on from where it stood. Nil where the store cannot: cases about
	// restarts are skipped.
	Reopen func(tb testing.TB) Harness
	// OverCap is by how much calls that park at once may pass the cap on open
	// entries: where replicas count each on their own.
	OverCap int
}

// Opener opens an empty store for one case. The suite closes it; what else it
// takes is given back by tb.Cleanup. Cases run in parallel.
type Opener func(tb testing.TB) Harness

// testCase is one named promise.
type testCase struct {
	name   string
	clock  bool // needs Advance
	reopen bool // needs Reopen
	run    func(f *fixture)
}

// Run drives the stores that open opens through the whole suite.
func Run(t *testing.T, open Opener) {
	t.Helper()
	groups := []struct {
		name  string
		cases []testCase
	}{
		{"identity", identityCases()},
		{"grants", grantCases()},
		{"releases", releaseCases()},
		{"fingerprints", fingerprintCases()},
		{"outcomes", outcomeCases()},
		{"times", timeCases()},
		{"resolve", resolveCases()},
		{"listing", listingCases()},
		{"sweep", sweepCases()},
		{"parking", parkingCases()},
		{"claims", claimCases()},
		{"replays", replayCases()},
		{"entries", entryListCases()},
		{"erasure", erasureCases()},
		{"concurrency", concurrencyCases()},
		{"lifecycle", lifecycleCases()},
		{"memos", memoCases()},
		{"rules", ruleCases()},
	}
	for _, g := range groups {
		t.Run(g.name, func(t *testing.T) {
			t.Parallel()
			for _, c := range g.cases {
				t.Run(c.name, func(t *testing.T) {
					t.Parallel()
					c.try(t, open)
				})
			}
		})
	}
}

// try runs the case on a store of its own.
func (c testCase) try(tb testing.TB, open Opener) {
	tb.Helper()
	h := open(tb)
	tb.Cleanup(func() {
		if err := h.Store.Close(); err != nil {
			tb.Errorf("closing the store: %v", err)
		}
	})
	if c.clock && h.Advance == nil {
		tb.Skip("the store's clock cannot be moved by a test")
	}
	if c.reopen && h.Reopen == nil {
		tb.Skip("the store cannot be opened again by a test")
	}
	c.run(newFixture(tb, h))
}
