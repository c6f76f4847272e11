package replay

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/dedupd/dedupd/interceptors/policy"
)

// reach is what a replay tells of the service.
type reach uint8

const (
	neither   reach = iota // it says nothing
	answered               // the service is there
	protected              // it is there, and looks at keys
	silent                 // it is not
)

// goneProbes is after how many probes somebody who waits for the end is told that
// nobody is there.
const goneProbes = 3

// gate lets everybody through once the service has shown that it looks at keys and
// while it is there; else one at a time.
type gate struct {
	backoff policy.Backoff
	told    func(down bool) // may be nil

	mu      sync.Mutex
	keys    bool          // the service looks at them
	down    int           // probes that found nobody; 0: the service is there
	probing bool          // somebody is sent alone
	next    time.Time     // no probe before it
	changed chan struct{} // closed whenever the above changes
}

func newGate(b policy.Backoff, told func(bool)) *gate {
	return &gate{backoff: b, told: told, changed: make(chan struct{})}
}

// enter waits until the caller may send; leave says what came of it. ok is false
// when ctx ended first.
func (g *gate) enter(ctx context.Context) (leave func(reach), ok bool) {
	for ctx.Err() == nil {
		g.mu.Lock()
		wait, changed := time.Until(g.next), g.changed
		switch {
		case g.down == 0 && g.keys:
			g.mu.Unlock()
			return func(r reach) { g.leave(r, false) }, true
		case !g.probing && wait <= 0:
			g.probing = true
			g.mu.Unlock()
			return func(r reach) { g.leave(r, true) }, true
		case g.probing:
			wait = time.Hour
		}
		g.mu.Unlock()
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-changed:
		case <-ctx.Done():
		}
		t.Stop()
	}
	return nil, false
}

// open reports that the service has shown that it looks at keys.
func (g *gate) open() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.keys
}

// gone reports that probe after probe has found nobody.
func (g *gate) gone() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.down >= goneProbes
}

func (g *gate) leave(r reach, probe bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	was := g.down
	switch {
	case r == answered, r == protected:
		g.down = 0
		g.keys = g.keys || r == protected
	case r == silent && (probe || g.down == 0): // of many that fail together one counts
		g.next = time.Now().Add(g.backoff.Wait(g.down, 0, rand.Int64N))
		g.down++
	}
	if probe {
		g.probing = false
	}
	if (was == 0) != (g.down == 0) && g.told != nil {
		g.told(g.down > 0)
	}
	close(g.changed)
	g.changed = make(chan struct{})
}
