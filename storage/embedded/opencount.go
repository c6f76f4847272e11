package embedded

import (
	"bytes"
	"cmp"
	"errors"
	"sync"

	"github.com/cockroachdb/pebble/v2"

	"github.com/dedupd/dedupd/storage"
)

// openCount counts the open entries of each namespace, so that a Park knows
// whether it is at its cap. Open counts them anew.
type openCount struct {
	mu sync.Mutex
	in map[string]int
}

func (c *openCount) add(namespace string, n int) {
	if n == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.in == nil {
		c.in = map[string]int{}
	}
	if c.in[namespace] += n; c.in[namespace] == 0 {
		delete(c.in, namespace)
	}
}

// take counts one more, unless there are so many already.
func (c *openCount) take(namespace string, limit int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.in[namespace] >= limit {
		return false
	}
	if c.in == nil {
		c.in = map[string]int{}
	}
	c.in[namespace]++
	return true
}

// countOpen counts the open entries that are stored.
func (s *Store) countOpen() error {
	iter, err := s.db.NewIter(&pebble.IterOptions{LowerBound: []byte{prefixOpenIn}, UpperBound: []byte{prefixOpenIn + 1}})
	if err != nil {
		return err
	}
	for valid := iter.First(); valid; valid = iter.Next() {
		key := iter.Key()
		if namespace, _, ok := bytes.Cut(key[1:], []byte{0}); ok {
			s.parked.add(string(namespace), 1)
		}
	}
	return errors.Join(iter.Error(), iter.Close())
}

// tally is what a step did to the number of open entries. All entries of a
// record are in one namespace.
type tally struct {
	namespace string
	open      int
}

// add counts a step from old to next, either of which may be nil.
func (t *tally) add(old, next *storage.DeadLetter) {
	if old != nil && old.Open() {
		t.namespace = old.Identity.Namespace
		t.open--
	}
	if next != nil && next.Open() {
		t.namespace = next.Identity.Namespace
		t.open++
	}
}

// take takes a place for the entry that p may make; the cap is kept exactly,
// however many park at once.
func (j *judgement) take(p storage.Park) bool {
	namespace := p.Entry.Identity.Namespace
	if namespace == "" && j.old.Record != nil {
		namespace = j.old.Record.Identity.Namespace
	}
	if j.s.parked.take(namespace, cmp.Or(p.Terms.EntryCap, storage.DefaultEntryCap)) {
		j.taken = namespace
		return true
	}
	return false
}

// giveBack gives back the place that was not used.
func (j *judgement) giveBack() {
	if j.taken != "" {
		j.s.parked.add(j.taken, -1)
		j.taken = ""
	}
}

// count counts what was written.
func (j *judgement) count(t tally) {
	if j.taken != "" && t.open > 0 {
		t.open-- // it was counted when its place was taken
		j.taken = ""
	}
	j.s.parked.add(t.namespace, t.open)
}
