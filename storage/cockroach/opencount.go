package cockroach

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dedupd/dedupd/storage"
)

// The cap on a namespace's open entries is held by a count that is kept for a
// while: counting 100,000 entries for every Park would cost more than the Park. A
// count is good for 10 µs an entry, 1 s at the usual cap, and this process's own
// changes are added to it. So the cap may be passed by what all other processes
// park within that time, and a refusal may come that long after others have made
// room; both err by no more.

// countedFor is how long a count is good for, for each entry that it counted.
const countedFor = 10 * time.Microsecond

// maxCounted bounds the namespaces whose counts are kept.
const maxCounted = 1024

const countOpenSQL = `/* dedupd count */ SELECT count(*) FROM (
  SELECT id FROM dedup_dead_letters WHERE namespace = $1 AND state <= 2 LIMIT $2
) AS e`

// gain is how many open entries a namespace gained.
type gain struct {
	namespace string
	entries   int
}

// gain tells what a change does to the number of open entries.
func (c lockedCase) gain(change storage.Change) gain {
	var g gain
	if change.Forget {
		for _, e := range c.Entries {
			g.namespace, g.entries = e.Identity.Namespace, g.entries-opened(e)
		}
		return g
	}
	for _, e := range change.Entries {
		g.namespace, g.entries = e.Identity.Namespace, g.entries+opened(e)
		if old, ok := c.read[e.ID]; ok {
			g.entries -= opened(old.DeadLetter)
		}
	}
	return g
}

func opened(e *storage.DeadLetter) int {
	if e.Open() {
		return 1
	}
	return 0
}

// openCounts are the counts that are kept.
type openCounts struct {
	mu     sync.Mutex
	counts map[string]*openCount
}

// openCount is the count of one namespace. Who counts holds it: the others wait
// for that count instead of making their own.
type openCount struct {
	counting sync.Mutex

	mu      sync.Mutex
	entries int
	at      time.Time
}

func (o *openCounts) of(namespace string) *openCount {
	o.mu.Lock()
	defer o.mu.Unlock()
	if c := o.counts[namespace]; c != nil {
		return c
	}
	if o.counts == nil || len(o.counts) >= maxCounted {
		o.counts = map[string]*openCount{}
	}
	c := &openCount{}
	o.counts[namespace] = c
	return c
}

func (o *openCounts) add(g gain) {
	if g.entries == 0 {
		return
	}
	c := o.of(g.namespace)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.entries += g.entries
}

// good returns the count, and whether it is still good.
func (c *openCount) good() (int, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.entries, !c.at.IsZero() && time.Since(c.at) < time.Duration(c.entries)*countedFor
}

func (c *openCount) set(entries int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.entries, c.at = entries, time.Now()
}

// full reports whether the namespace is at its cap.
func (s *Store) full(ctx, caller context.Context, namespace string, terms storage.Terms) (bool, error) {
	limit := cmp.Or(terms.EntryCap, storage.DefaultEntryCap)
	c := s.open.of(namespace)
	if n, ok := c.good(); ok {
		return n >= limit, nil
	}
	c.counting.Lock()
	defer c.counting.Unlock()
	if n, ok := c.good(); ok {
		return n >= limit, nil
	}
	var n int
	err := s.retry(ctx, caller, func() error {
		return s.onConn(ctx, caller, func(conn *pgxpool.Conn) error {
			return conn.QueryRow(ctx, countOpenSQL, namespace, limit).Scan(&n)
		})
	})
	if err == nil {
		c.set(n)
	}
	return n >= limit, err
}
