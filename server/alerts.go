package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/dedupd/dedupd/storage"
)

// The alerts, by their names on the wire.
const (
	alertDeadLetters  = "DedupdDeadLetters"              // open dead letters, but conflicts
	alertConflict     = "DedupdConflict"                 // the trace of a double effect
	alertAtCap        = "DedupdDeadLettersAtCap"         // Park is being refused
	alertPending      = "DedupdPendingWithoutCompletion" // outcomes that are unknown for long
	alertOverdue      = "DedupdOverdueRecords"           // unfinished for a retention time
	alertStoreDown    = "DedupdStoreUnavailable"
	alertKeyComesBack = "DedupdKeyKeepsComingBack"
)

// Defaults of AlertConfig.
const (
	DefaultAlertEvery    = 10 * time.Second
	DefaultAlertCoolDown = 5 * time.Minute
	DefaultAlertRepeat   = 4 * time.Hour
	DefaultAlertPending  = 5 * time.Minute
	DefaultAlertRepeats  = 100
)

// AlertConfig sends alerts to a webhook, for teams without Prometheus: what needs
// somebody, in the format of Alertmanager's webhooks. Of several servers on one
// store give it to one, or each sends them. Zero values mean the stated defaults.
type AlertConfig struct {
	// URL of the webhook, http or https; empty sends nothing. It is never logged.
	URL string
	// Every is how often conditions are looked at: at least 1 s; zero means
	// DefaultAlertEvery.
	Every time.Duration
	// CoolDown is the least time between two messages of one group, which is an
	// alert's name and namespace: zero means DefaultAlertCoolDown.
	CoolDown time.Duration
	// Repeat is when a group that goes on is told again: at least CoolDown; zero
	// means DefaultAlertRepeat.
	Repeat time.Duration
	// Pending is how long an outcome may be unknown before it is alerted; zero means
	// DefaultAlertPending.
	Pending time.Duration
	// Repeats is how often of late one key may be asked for again before it is
	// alerted; zero means DefaultAlertRepeats.
	Repeats int64
}

func (c AlertConfig) withDefaults() AlertConfig {
	c.Every = cmp.Or(c.Every, DefaultAlertEvery)
	c.CoolDown = cmp.Or(c.CoolDown, DefaultAlertCoolDown)
	c.Repeat = cmp.Or(c.Repeat, max(DefaultAlertRepeat, c.CoolDown))
	c.Pending = cmp.Or(c.Pending, DefaultAlertPending)
	c.Repeats = cmp.Or(c.Repeats, DefaultAlertRepeats)
	return c
}

func (c AlertConfig) validate() error {
	switch {
	case c.Every < time.Second:
		return fmt.Errorf("server: alert interval is %s, set 1s or more", c.Every)
	case c.CoolDown < 0 || c.Pending < 0 || c.Repeats < 0:
		return errors.New("server: set the alerts' cool-down, pending time and repeats to positive values")
	case c.Repeat < c.CoolDown:
		return fmt.Errorf("server: alerts are repeated after %s, set no less than their cool-down of %s", c.Repeat, c.CoolDown)
	}
	return CheckWebhook(c.URL)
}

// alerter looks at what the server knows anyway, and tells the webhook. What it looks
// at is in memory, so that it can tell that the store is out of reach; what it has told
// it keeps in the store (alertmemo.go).
type alerter struct {
	cfg      AlertConfig
	entryCap int64
	census   *census
	ledger   *ledger
	hot      *hotKeys
	notReady func() string
	external string // where the server's HTTP port is; may be empty
	send     func(context.Context, webhookMessage) error
	idle     func() // closes what send keeps open
	messages *prometheus.CounterVec
	log      *slog.Logger
	book     *alertBook
	memory   *alertMemory
	seen     seen
}

// seen is what the alerter remembers from look to look.
type seen struct {
	entries   map[seriesKey]int64 // open at the last count
	before    map[seriesKey]int64 // what had been made before it
	others    map[seriesKey]int64 // new entries that other servers made
	counted   storage.Instant     // of that count
	atCap     map[string]int64
	cappedAt  map[string]time.Time
	downSince time.Time
	hot       map[string]bool // records that are alerted
	failing   bool
}

func newAlerter(cfg AlertConfig, c *core, store storage.Store, notReady func() string) *alerter {
	hook := newWebhook(cfg.URL, c.version)
	return &alerter{
		cfg: cfg, entryCap: int64(c.terms.EntryCap), census: c.census, ledger: c.metrics.ledger, hot: c.hot,
		notReady: notReady, send: hook.send, idle: hook.client.CloseIdleConnections, messages: c.metrics.alertMessages, log: c.log,
		book: newAlertBook(cfg.CoolDown, cfg.Repeat), memory: newAlertMemory(store, c.log),
		seen: seen{others: map[seriesKey]int64{}, cappedAt: map[string]time.Time{}, hot: map[string]bool{}},
	}
}

// run looks and tells until ctx ends.
func (a *alerter) run(ctx context.Context) {
	if a.cfg.URL == "" {
		return
	}
	defer a.idle()
	defer func() { a.memory.close(context.WithoutCancel(ctx)) }()
	tick := time.NewTicker(a.cfg.Every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			a.round(ctx, time.Now())
		}
	}
}

// recall takes over what a server before this one had told, once enough is known to
// say which of it is over.
func (a *alerter) recall(ctx context.Context, now time.Time) {
	if _, _, counted := a.census.latest(); !counted || a.census.overdueRecords() == nil || a.notReady() == storeDown {
		return
	}
	told := a.memory.recall(ctx)
	for _, t := range told {
		if t.Name == alertAtCap {
			a.seen.cappedAt[t.Namespace] = now // whether Park is refused shows in a while
		}
	}
	a.book.recall(told)
}

// round sends what is due. A webhook that fails gets no more in this round.
func (a *alerter) round(ctx context.Context, now time.Time) {
	a.recall(ctx, now)
	a.book.observe(now, a.look(now))
	due := a.book.due(now)
	if a.notReady() != storeDown {
		a.memory.keep(ctx, a.book.told(due))
	}
	for _, m := range due {
		err := a.send(ctx, webhookOf(m, a.external))
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			a.messages.WithLabelValues("failed").Inc()
			a.book.failed(now)
			if !a.seen.failing {
				a.log.LogAttrs(ctx, slog.LevelError, "an alert could not be sent; it is tried again", slog.String("alert", m.group.name), slog.Any("error", err))
			}
			a.seen.failing = true
			return
		}
		a.seen.failing = false
		a.messages.WithLabelValues("sent").Inc()
		a.book.delivered(now, m)
		a.log.LogAttrs(ctx, slog.LevelInfo, "alert sent", slog.String("alert", m.group.name),
			slog.String("namespace", m.group.namespace), slog.Bool("firing", m.firing()))
	}
}
