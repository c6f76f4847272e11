package server

import (
	"fmt"
	"strconv"
	"time"

	"github.com/dedupd/dedupd/storage"
)

// cappedQuiet is how long after the last refusal at the cap the alert of it goes
// on, unless the namespace is still full.
const cappedQuiet = 5 * time.Minute

// hotLooked is how many of the hottest keys are looked at.
const hotLooked = 10

// look tells what holds now.
func (a *alerter) look(now time.Time) []alert {
	counted, at, _ := a.census.latest()
	unfinished, entries := a.census.tallies(counted)
	out := a.deadLetters(entries, at, counted.Now)
	out = append(out, a.atCap(now, entries)...)
	for k, t := range unfinished {
		age := counted.Now.Sub(t.oldest)
		if k.kind == storage.StateUnknown.String() && age >= a.cfg.Pending {
			out = append(out, alert{
				name: alertPending, namespace: k.namespace, labels: warning(),
				annotations: told(
					fmt.Sprintf("%d records of %s are pending without completion", t.n, k.namespace),
					fmt.Sprintf("nobody knows whether their effects happened; the oldest has waited for %s: see 'dedupd keys list --state unknown'", rounded(age))),
			})
		}
	}
	for namespace, n := range a.census.overdueRecords() {
		out = append(out, alert{
			name: alertOverdue, namespace: namespace, labels: warning(),
			annotations: told(
				fmt.Sprintf("%d records of %s are overdue", n, namespace),
				"they are unfinished one retention time after their last grant; each is parked as a dead letter"),
		})
	}
	out = append(out, a.keysThatComeBack()...)
	return append(out, a.storeDown(now)...)
}

// deadLetters tells open entries. What is parked here is known at once, what other
// servers park from the count; neither is told twice.
func (a *alerter) deadLetters(entries map[seriesKey]tally, at, now storage.Instant) []alert {
	parks, created, _ := a.ledger.sums()
	before, after := a.census.making()
	if at != a.seen.counted {
		for k, t := range entries {
			// What was made around a count may be in it or in the next.
			own := after[k] - a.seen.before[k]
			a.seen.others[k] += max(0, t.n-a.seen.entries[k]-own)
		}
		a.seen.entries = map[seriesKey]int64{}
		for k, t := range entries {
			a.seen.entries[k] = t.n
		}
		a.seen.before, a.seen.counted = before, at
	}
	keys := map[seriesKey]bool{}
	for k := range entries {
		keys[k] = true
	}
	for k := range created {
		if created[k] > before[k] { // since the count, or around it
			keys[k] = true
		}
	}
	var out []alert
	for k := range keys {
		open := entries[k].n + created[k] - after[k]
		if open <= 0 {
			continue
		}
		d := alert{
			name: alertDeadLetters, namespace: k.namespace, labels: warning(), news: parks[k] + a.seen.others[k],
			annotations: told(
				fmt.Sprintf("about %d dead letters of %s are open (%s)", open, k.namespace, k.kind),
				"see 'dedupd dlq list', and replay or discard them"),
		}
		if t := entries[k]; t.n > 0 {
			d.annotations["oldest"] = rounded(now.Sub(t.oldest)).String()
		}
		if k.kind == storage.EntryConflict.String() {
			d.name, d.labels = alertConflict, critical()
			d.annotations["description"] = "each is the trace of a double effect: somebody may have to undo one; see 'dedupd dlq list', then discard"
		}
		d.labels["kind"] = k.kind
		out = append(out, d)
	}
	return out
}

// atCap tells the namespaces where Park is refused.
func (a *alerter) atCap(now time.Time, entries map[seriesKey]tally) []alert {
	_, _, refused := a.ledger.sums()
	for namespace, n := range refused {
		if n > a.seen.atCap[namespace] {
			a.seen.cappedAt[namespace] = now
		}
	}
	a.seen.atCap = refused
	open := map[string]int64{}
	for k, t := range entries {
		open[k.namespace] += t.n
	}
	var out []alert
	for namespace, last := range a.seen.cappedAt {
		if now.Sub(last) >= cappedQuiet && open[namespace] < a.entryCap {
			delete(a.seen.cappedAt, namespace)
			continue
		}
		out = append(out, alert{
			name: alertAtCap, namespace: namespace, labels: critical(),
			annotations: told(
				fmt.Sprintf("%s is at its cap of %d open dead letters", namespace, a.entryCap),
				"new ones are refused and spooled by their clients; settle some: see 'dedupd dlq list'"),
		})
	}
	return out
}

// keysThatComeBack tells keys by their records' short ids. A key is over once it is
// asked for less than half as often.
func (a *alerter) keysThatComeBack() []alert {
	hot := map[string]bool{}
	var out []alert
	for _, key := range a.hot.hottest("", hotLooked, 1) {
		least := a.cfg.Repeats
		if a.seen.hot[key.GetRecord()] {
			least /= 2
		}
		if key.GetCount() < max(1, least) {
			continue
		}
		hot[key.GetRecord()] = true
		labels := warning()
		labels["operation"], labels["record"] = key.GetOperation(), key.GetRecord()
		out = append(out, alert{
			name: alertKeyComesBack, namespace: key.GetNamespace(), labels: labels,
			annotations: told(
				"one key of "+key.GetNamespace()+" keeps coming back",
				"about "+strconv.FormatInt(key.GetCount(), 10)+" times of late: a client may retry without end; see 'dedupd keys list'"),
		})
	}
	a.seen.hot = hot
	return out
}

// storeDown tells a store that was out of reach at the last look too.
func (a *alerter) storeDown(now time.Time) []alert {
	if a.notReady() != storeDown {
		a.seen.downSince = time.Time{}
		return nil
	}
	if a.seen.downSince.IsZero() {
		a.seen.downSince = now
		return nil
	}
	return []alert{{
		name: alertStoreDown, labels: critical(),
		annotations: told("dedupd cannot reach its store", "nothing is granted until it is back"),
	}}
}

func warning() map[string]string  { return map[string]string{"severity": "warning"} }
func critical() map[string]string { return map[string]string{"severity": "critical"} }

func told(summary, description string) map[string]string {
	return map[string]string{"summary": summary, "description": description}
}

// rounded is d as people read it.
func rounded(d time.Duration) time.Duration { return max(0, d).Round(time.Second) }
