package server

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/dedupd/dedupd/storage"
)

// How often the store is asked to count what needs somebody, and how long that
// may take.
const (
	censusEvery   = 30 * time.Second
	censusTimeout = 20 * time.Second
)

// census keeps the latest count of what needs somebody: the gauges, Stats and the
// alerts tell it, so that none of them reads the store.
type census struct {
	store storage.DeadLetters
	log   *slog.Logger
	label func(namespace string) string // bounds the labels
	made  func() map[seriesKey]int64    // new dead letters of this process so far

	mu      sync.Mutex
	last    storage.Census // Now is zero before the first
	at      time.Time      // of last, by this process's monotonic clock
	failing bool
	overdue map[string]int64 // records by namespace, by the last round over them
	// What made said before and after the last count: entries made in between may
	// or may not be in it.
	before, after map[seriesKey]int64
}

// run counts until ctx ends.
func (c *census) run(ctx context.Context) {
	tick := time.NewTicker(censusEvery)
	defer tick.Stop()
	for {
		c.count(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (c *census) count(ctx context.Context) {
	bounded, cancel := context.WithTimeout(ctx, censusTimeout)
	defer cancel()
	before := c.made()
	counted, err := c.store.Census(bounded)
	after := c.made()
	if ctx.Err() != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		if !c.failing { // health.go tells how long the store is out of reach
			c.log.LogAttrs(ctx, slog.LevelWarn, "counting unfinished records failed; the last numbers stay", slog.Any("error", err))
		}
		c.failing = true
		return
	}
	c.last, c.at, c.failing = counted, time.Now(), false
	c.before, c.after = before, after
}

// setOverdue takes the numbers of a round over all overdue records.
func (c *census) setOverdue(byNamespace map[string]int64) {
	overdue := map[string]int64{}
	for namespace, n := range byNamespace {
		overdue[c.label(namespace)] += n
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.overdue = overdue
}

// latest is the last count, with Now moved on to this moment, and when it was
// made; false before the first.
func (c *census) latest() (counted storage.Census, at storage.Instant, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	counted, at = c.last, c.last.Now
	counted.Now = at.Add(time.Since(c.at))
	return counted, at, at != 0
}

// making is what this process had made before and after the last count; neither is
// to be written to.
func (c *census) making() (before, after map[seriesKey]int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.before, c.after
}

// overdueRecords is by namespace; not to be written to.
func (c *census) overdueRecords() map[string]int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.overdue
}

// censusMetrics tells the latest count as gauges.
type censusMetrics struct {
	*census
	unfinished, unfinishedAge, entries, entriesAge, overdue, counted *prometheus.Desc
}

func newCensusMetrics(c *census) *censusMetrics {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	return &censusMetrics{
		census:        c,
		unfinished:    desc("dedupd_unfinished_records", "Records that are reserved, or whose outcome is unknown.", "namespace", "state"),
		unfinishedAge: desc("dedupd_unfinished_oldest_age_seconds", "Time since the earliest last grant of them.", "namespace", "state"),
		entries:       desc("dedupd_dead_letters", "Open dead letters.", "namespace", "kind"),
		entriesAge:    desc("dedupd_dead_letter_oldest_age_seconds", "Time since the oldest open one was parked.", "namespace", "kind"),
		overdue:       desc("dedupd_overdue_records", "Records unfinished one retention time after their last grant.", "namespace"),
		counted:       desc("dedupd_census_age_seconds", "Time since these numbers were counted."),
	}
}

// Describe tells the names.
func (m *censusMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.unfinished, m.unfinishedAge, m.entries, m.entriesAge, m.overdue, m.counted} {
		ch <- d
	}
}

// tally is one series: how many, and since when.
type tally struct {
	n      int64
	oldest storage.Instant
}

func (t tally) add(n int64, oldest storage.Instant) tally {
	if t.n == 0 || oldest < t.oldest {
		t.oldest = oldest
	}
	t.n += n
	return t
}

// tallies adds a census up by namespace, under labels that are bounded, and kind
// or state.
func (c *census) tallies(counted storage.Census) (unfinished, entries map[seriesKey]tally) {
	unfinished, entries = map[seriesKey]tally{}, map[seriesKey]tally{}
	for _, u := range counted.Unfinished {
		k := seriesKey{c.label(u.Namespace), u.State.String()}
		unfinished[k] = unfinished[k].add(u.Records, u.Oldest)
	}
	for _, e := range counted.Entries {
		k := seriesKey{c.label(e.Namespace), e.Kind.String()}
		entries[k] = entries[k].add(e.Entries, e.Oldest)
	}
	return unfinished, entries
}

// Collect tells the numbers.
func (m *censusMetrics) Collect(ch chan<- prometheus.Metric) {
	counted, at, ok := m.latest()
	if !ok {
		return
	}
	tell := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	tell(m.counted, counted.Now.Sub(at).Seconds())
	unfinished, entries := m.tallies(counted)
	for k, t := range unfinished {
		tell(m.unfinished, float64(t.n), k.namespace, k.kind)
		tell(m.unfinishedAge, max(0, counted.Now.Sub(t.oldest)).Seconds(), k.namespace, k.kind)
	}
	for k, t := range entries {
		tell(m.entries, float64(t.n), k.namespace, k.kind)
		tell(m.entriesAge, max(0, counted.Now.Sub(t.oldest)).Seconds(), k.namespace, k.kind)
	}
	for namespace, n := range m.overdueRecords() {
		tell(m.overdue, float64(n), namespace)
	}
}
