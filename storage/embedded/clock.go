package embedded

import (
	"time"

	"github.com/dedupd/dedupd/storage"
)

// clockStep is how far the stored time may lag behind the times in records, so
// that not every batch has to carry it. A reopened store starts no lower than
// the stored time plus one step.
const clockStep = time.Millisecond

// clock is the store's time: the wall clock as of opening, carried on by the
// monotonic one, so that steps of the wall clock do not reach a running store.
type clock struct {
	source func() time.Time
	opened time.Time
	base   storage.Instant
}

// newClock starts a clock that is never below floor. It also returns by how much
// the wall clock was below it.
func newClock(source func() time.Time, floor storage.Instant) (clock, time.Duration) {
	opened := source()
	wall := storage.InstantOf(opened)
	return clock{source: source, opened: opened, base: max(wall, floor)}, max(0, floor.Sub(wall))
}

func (c *clock) now() storage.Instant { return c.base.Add(c.source().Sub(c.opened)) }
