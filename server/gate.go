package server

import (
	"sync"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
)

// isNewWork tells what is turned away first. What ends old work is none, be it a
// holder's Complete or a replayer's Settle, nor is what a person decides.
func isNewWork(method string) bool {
	switch method {
	case dedupv1.DedupService_Reserve_FullMethodName,
		dedupv1.AdminService_ListRecords_FullMethodName,
		dedupv1.AdminService_Redact_FullMethodName,
		dedupv1.AdminService_Forget_FullMethodName,
		dedupv1.DeadLetterService_Park_FullMethodName,
		dedupv1.DeadLetterService_List_FullMethodName,
		dedupv1.DeadLetterService_Groups_FullMethodName,
		dedupv1.DeadLetterService_Claim_FullMethodName:
		return true
	}
	return false
}

// gate knows the calls in progress and in which phase the server is. The
// zero phase is open; drain and stop only ever move it on.
type gate struct {
	mu     sync.Mutex
	phase  phase
	calls  [2]int // begun while open, and since
	begun  chan struct{}
	ended  chan struct{}
	closed [2]bool
}

type phase uint8

const (
	phaseOpen     phase = iota
	phaseDraining       // new work is turned away, what ends old work is served
	phaseStopped        // everything is turned away
)

func newGate() *gate {
	return &gate{begun: make(chan struct{}), ended: make(chan struct{})}
}

// enter lets a call in, unless it is new work while draining, or anything once
// stopped. Whoever was let in calls leave with the same slot.
func (g *gate) enter(newWork bool) (slot int, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch g.phase {
	case phaseOpen:
		g.calls[0]++
		return 0, true
	case phaseDraining:
		if newWork {
			return 0, false
		}
		g.calls[1]++
		return 1, true
	case phaseStopped:
	}
	return 0, false
}

func (g *gate) leave(slot int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.calls[slot]--
	g.reportLocked()
}

// drain turns new work away; the channel closes when all calls that began before
// have ended.
func (g *gate) drain() <-chan struct{} { return g.move(phaseDraining, g.begun) }

// stop turns everything away; the channel closes when no call is left.
func (g *gate) stop() <-chan struct{} { return g.move(phaseStopped, g.ended) }

func (g *gate) move(to phase, done <-chan struct{}) <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.phase = max(g.phase, to)
	g.reportLocked()
	return done
}

func (g *gate) active() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.calls[0] + g.calls[1]
}

func (g *gate) reportLocked() {
	if g.phase >= phaseDraining && g.calls[0] == 0 && !g.closed[0] {
		g.closed[0] = true
		close(g.begun)
	}
	if g.phase == phaseStopped && g.calls[0]+g.calls[1] == 0 && !g.closed[1] {
		g.closed[1] = true
		close(g.ended)
	}
}
