package server

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// page is a book with a clock that a test moves.
type page struct {
	*alertBook
	now time.Time
}

func newPage() *page {
	return &page{alertBook: newAlertBook(5*time.Minute, time.Hour), now: time.Unix(1_000_000, 0)}
}

func letters(kind string, news int64) alert {
	return alert{name: alertDeadLetters, namespace: "billing", labels: map[string]string{"kind": kind}, news: news}
}

// tells observes alerts, delivers what is due, and describes it.
func (p *page) tells(after time.Duration, alerts ...alert) (out []string) {
	p.now = p.now.Add(after)
	p.observe(p.now, alerts)
	for _, m := range p.due(p.now) {
		out = append(out, describeMessage(m))
		p.delivered(p.now, m)
	}
	return out
}

func describeMessage(m alertMessage) string {
	text := m.group.name + "/" + m.group.namespace
	for _, s := range m.alerts {
		state := " resolved:"
		if s.firing() {
			state = " firing:"
		}
		text += state + s.labels["kind"]
	}
	return text
}

func TestAGroupIsToldOnceAndAgainAfterTheRepeatTime(t *testing.T) {
	t.Parallel()
	p := newPage()
	require.Empty(t, p.tells(0))
	require.Equal(t, []string{"DedupdDeadLetters/billing firing:exhausted"}, p.tells(0, letters("exhausted", 1)))
	for range 11 {
		require.Empty(t, p.tells(5*time.Minute, letters("exhausted", 1)))
	}
	require.Len(t, p.tells(5*time.Minute, letters("exhausted", 1)), 1, "an hour is over")
	require.Empty(t, p.tells(5*time.Minute, letters("exhausted", 1)))
}

// G03: 0 to 1, 1 to 2 and 50 to 51 are all told.
func TestG03EveryNewEntryIsToldAfterTheCoolDown(t *testing.T) {
	t.Parallel()
	p := newPage()
	require.Len(t, p.tells(0, letters("exhausted", 1)), 1)
	require.Empty(t, p.tells(time.Minute, letters("exhausted", 2)), "too soon")
	require.Len(t, p.tells(4*time.Minute, letters("exhausted", 50)), 1)
	require.Empty(t, p.tells(10*time.Minute, letters("exhausted", 50)))
	require.Len(t, p.tells(time.Minute, letters("exhausted", 51)), 1)
}

func TestTheEndOfAnAlertIsToldOnceIfItsBeginningWas(t *testing.T) {
	t.Parallel()
	p := newPage()
	require.Len(t, p.tells(0, letters("exhausted", 1), letters("unreconciled", 1)), 1)
	require.Empty(t, p.tells(time.Minute, letters("exhausted", 1)), "too soon")
	require.Equal(t, []string{"DedupdDeadLetters/billing firing:exhausted resolved:unreconciled"}, p.tells(4*time.Minute, letters("exhausted", 1)))
	require.Empty(t, p.tells(time.Minute))
	require.Equal(t, []string{"DedupdDeadLetters/billing resolved:exhausted"}, p.tells(4*time.Minute))
	require.Empty(t, p.tells(24*time.Hour))
	require.Empty(t, p.groups, "nothing is remembered")

	require.Len(t, p.tells(0, letters("exhausted", 1)), 1)
	require.Empty(t, p.tells(time.Second, letters("exhausted", 1), letters("unreconciled", 1)))
	require.Empty(t, p.tells(time.Second, letters("exhausted", 1)))
	require.Empty(t, p.tells(30*time.Minute, letters("exhausted", 1)), "nobody heard of the short one")
	require.Equal(t, []string{"DedupdDeadLetters/billing resolved:exhausted"}, p.tells(time.Minute), "nor is its end told")
}

func TestAnAlertThatComesBackBeforeItsEndWasToldIsNotNew(t *testing.T) {
	t.Parallel()
	p := newPage()
	require.Len(t, p.tells(0, letters("exhausted", 1)), 1)
	require.Empty(t, p.tells(time.Minute))
	require.Empty(t, p.tells(time.Minute, letters("exhausted", 1)))
	require.Empty(t, p.tells(10*time.Minute, letters("exhausted", 1)))
	require.Len(t, p.tells(time.Minute), 1)
	require.Empty(t, p.tells(time.Minute, letters("exhausted", 1)), "a new beginning keeps the cool-down too")
	require.Len(t, p.tells(4*time.Minute, letters("exhausted", 1)), 1)
}

func TestGroupsAreToldApart(t *testing.T) {
	t.Parallel()
	p := newPage()
	other := letters("exhausted", 1)
	other.namespace = "shipping"
	down := alert{name: alertStoreDown}
	require.Equal(t, []string{
		"DedupdDeadLetters/billing firing:exhausted", "DedupdDeadLetters/shipping firing:exhausted", "DedupdStoreUnavailable/ firing:",
	}, p.tells(0, other, down, letters("exhausted", 1)))
}

func TestAMessageThatFailsIsDueAgainAfterAGrowingPause(t *testing.T) {
	t.Parallel()
	p := newPage()
	p.observe(p.now, []alert{letters("exhausted", 1)})
	for n := range 12 {
		require.Len(t, p.due(p.now), 1)
		p.failed(p.now)
		pause := min(alertBackoff<<n, maxAlertBackoff)
		require.Empty(t, p.due(p.now.Add(pause-1)))
		p.now = p.now.Add(pause)
	}
	require.Len(t, p.tells(0, letters("exhausted", 1)), 1)
	require.Zero(t, p.failures)
}

func TestAMessageIsBounded(t *testing.T) {
	t.Parallel()
	p := newPage()
	var alerts []alert
	for n := range maxAlerts + 7 {
		alerts = append(alerts, letters(fmt.Sprint("k", n), 1))
	}
	p.observe(p.now, alerts)
	m := p.due(p.now)[0]
	require.Len(t, m.alerts, maxAlerts)
	require.Equal(t, 7, webhookOf(m, "").TruncatedAlerts)
	p.delivered(p.now, m)
	require.Empty(t, p.tells(10*time.Minute, alerts...))
}
