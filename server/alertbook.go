package server

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"
)

// maxAlerts bounds the alerts of one message; how many more there are is told.
const maxAlerts = 100

// alert is a condition that holds now.
type alert struct {
	name, namespace string            // its group; namespace may be empty
	labels          map[string]string // what else tells it from the others of its group
	annotations     map[string]string
	news            int64 // what has come in so far: a rise is worth a message of its own
}

// groupKey is what one message is about.
type groupKey struct{ name, namespace string }

// standing is an alert that is firing, or was when it was last told.
type standing struct {
	alert
	began, ended time.Time // ended is zero while it is firing
	told         bool
	toldNews     int64
}

func (s *standing) firing() bool { return s.ended.IsZero() }

// fresh reports whether there is something about s that nobody was told.
func (s *standing) fresh() bool {
	if s.firing() {
		return !s.told || s.news > s.toldNews
	}
	return s.told
}

type alertGroup struct {
	alerts map[string]*standing // by the text of their labels
	sentAt time.Time            // zero: never
}

// alertBook decides which messages are due: one for each group when something is
// new, no sooner than coolDown after the one before, and again after repeat while
// it goes on. An alert that is over is told once, if it had been told at all. A
// message that could not be delivered is due again after a growing pause. It has
// no clock and no I/O, and is not for concurrent use.
type alertBook struct {
	coolDown, repeat time.Duration
	groups           map[groupKey]*alertGroup
	failures         int
	tryAt            time.Time
}

func newAlertBook(coolDown, repeat time.Duration) *alertBook {
	return &alertBook{coolDown: coolDown, repeat: repeat, groups: map[groupKey]*alertGroup{}}
}

// observe takes what holds at now; what is missing is over.
func (b *alertBook) observe(now time.Time, alerts []alert) {
	seen := map[*standing]bool{}
	for _, a := range alerts {
		g := b.group(groupKey{a.name, a.namespace})
		id := labelText(a.labels)
		s := g.alerts[id]
		if s == nil {
			s = &standing{began: now}
			g.alerts[id] = s
		}
		s.ended = time.Time{} // it may have come back before its end was told
		s.alert = a
		seen[s] = true
	}
	for k, g := range b.groups {
		for id, s := range g.alerts {
			switch {
			case seen[s] || !s.firing():
			case s.told:
				s.ended = now
			default:
				delete(g.alerts, id) // nobody heard of it
			}
		}
		if len(g.alerts) == 0 && now.Sub(g.sentAt) >= b.coolDown {
			delete(b.groups, k)
		}
	}
}

func (b *alertBook) group(k groupKey) *alertGroup {
	g := b.groups[k]
	if g == nil {
		g = &alertGroup{alerts: map[string]*standing{}}
		b.groups[k] = g
	}
	return g
}

// alertMessage is a message that is due.
type alertMessage struct {
	group     groupKey
	alerts    []standing // firing ones first, oldest first; copies
	truncated int        // alerts left out
}

func (m *alertMessage) firing() bool { return len(m.alerts) > 0 && m.alerts[0].firing() }

// due tells the messages to send at now, in the order of their groups.
func (b *alertBook) due(now time.Time) []alertMessage {
	if now.Before(b.tryAt) {
		return nil
	}
	var out []alertMessage
	for k, g := range b.groups {
		fresh, firing := false, false
		for _, s := range g.alerts {
			fresh, firing = fresh || s.fresh(), firing || s.firing()
		}
		age := now.Sub(g.sentAt)
		if fresh && age >= b.coolDown || firing && age >= b.repeat {
			out = append(out, g.message(k))
		}
	}
	slices.SortFunc(out, func(a, b alertMessage) int {
		return cmp.Or(cmp.Compare(a.group.name, b.group.name), cmp.Compare(a.group.namespace, b.group.namespace))
	})
	return out
}

func (g *alertGroup) message(k groupKey) alertMessage {
	m := alertMessage{group: k}
	for _, s := range g.alerts {
		m.alerts = append(m.alerts, *s)
	}
	slices.SortFunc(m.alerts, func(a, b standing) int {
		switch {
		case a.firing() != b.firing() && a.firing():
			return -1
		case a.firing() != b.firing():
			return 1
		}
		return cmp.Or(a.began.Compare(b.began), cmp.Compare(labelText(a.labels), labelText(b.labels)))
	})
	if len(m.alerts) > maxAlerts {
		m.truncated = len(m.alerts) - maxAlerts
		m.alerts = m.alerts[:maxAlerts]
	}
	return m
}

// delivered notes that m, which was due, has been told. What was left out of it
// counts as told: its number was.
func (b *alertBook) delivered(now time.Time, m alertMessage) {
	b.failures, b.tryAt = 0, time.Time{}
	g := b.groups[m.group]
	if g == nil {
		return
	}
	g.sentAt = now
	for id, s := range g.alerts {
		if !s.firing() {
			delete(g.alerts, id)
			continue
		}
		s.told, s.toldNews = true, s.news
	}
}

// failed puts all messages off: they go to one place.
func (b *alertBook) failed(now time.Time) {
	b.tryAt = now.Add(min(alertBackoff<<min(b.failures, 10), maxAlertBackoff))
	b.failures++
}

// labelText is the same for equal labels.
func labelText(labels map[string]string) string {
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		text.WriteString(name + "=" + labels[name] + "\n")
	}
	return text.String()
}
