// Package seldom bounds how often something that happens often is logged.
//
// Life of an event: 1. it is counted. 2. Where the last log line is long enough
// ago, the caller logs one with the number of events since.
//
// It does not log, and it has no timer: events after the last line are told with
// the next one, if one comes.
package seldom

import (
	"sync"
	"time"
)

// Log is the state of one kind of log line. The zero value is ready: its first
// event is due. It is safe for concurrent use.
type Log struct {
	mu     sync.Mutex
	logged time.Time
	events int // since then
}

// Due counts an event. It reports whether a line is due, every at the earliest
// after the last one, and if so how many events it stands for, this one included.
func (l *Log) Due(every time.Duration) (events int, due bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events++
	if !l.logged.IsZero() && time.Since(l.logged) < every {
		return 0, false
	}
	events, l.events, l.logged = l.events, 0, time.Now()
	return events, true
}
