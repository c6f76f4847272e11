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
// changes are added to it. Near the cap a process parks one at a time, so that it
// never passes the cap by itself. So the cap may be passed by what all other
// processes park within that time, and a refusal may come that long after others
// have made room; neither errs by more.

// countedFor is how long a count is good for, for each entry that it counted.
const countedFor = 10 * time.Microsecond

// nearCap is how many places must be left for Parks to go side by side.
const nearCap = 64

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

// openCount is the count of one namespace.
type openCount struct {
	turn sync.Mutex // of who counts, and of who parks near the cap

	mu      sync.Mutex
	entries int
	parking int // Parks on their way that are not counted yet
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
	return c.entries, c.goodLocked()
}

func (c *openCount) goodLocked() bool {
	return !c.at.IsZero() && time.Since(c.at) < time.Duration(c.entries)*countedFor
}

func (c *openCount) set(entries int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.entries, c.at = entries, time.Now()
}

// enter lets a Park go, until leave, where the cap is far and the count was just
// made or is good.
func (c *openCount) enter(limit int, counted bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !counted && !c.goodLocked() || c.entries+c.parking+nearCap > limit {
		return false
	}
	c.parking++
	return true
}

func (c *openCount) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.parking--
}

// underCap parks, and says whether the namespace is full.
func (s *Store) underCap(ctx, caller context.Context, namespace string, terms storage.Terms, park func(full bool) (storage.Answer, error)) (storage.Answer, error) {
	limit := cmp.Or(terms.EntryCap, storage.DefaultEntryCap)
	c := s.open.of(namespace)
	if c.enter(limit, false) {
		defer c.leave()
		return park(false)
	}
	c.turn.Lock()
	n, ok := c.good()
	if !ok {
		var err error
		if n, err = s.countOpen(ctx, caller, namespace, limit); err != nil {
			c.turn.Unlock()
			return storage.Answer{}, err
		}
		c.set(n)
	}
	if c.enter(limit, true) {
		c.turn.Unlock()
		defer c.leave()
		return park(false)
	}
	defer c.turn.Unlock()
	return park(n >= limit)
}

func (s *Store) countOpen(ctx, caller context.Context, namespace string, limit int) (n int, err error) {
	err = s.retry(ctx, caller, func() error {
		return s.onConn(ctx, caller, func(conn *pgxpool.Conn) error {
			return conn.QueryRow(ctx, countOpenSQL, namespace, limit).Scan(&n)
		})
	})
	return n, err
}
