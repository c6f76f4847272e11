package server

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/dedupd/dedupd/storage"
)

const (
	alertMemo   = "alerts" // its name in the store
	memoTimeout = 2 * time.Second
)

// toldAlert is an alert that a receiver may think is firing, as the store keeps it.
type toldAlert struct {
	Name      string            `json:"name"`
	Namespace string            `json:"namespace,omitempty"`
	Labels    map[string]string `json:"labels"`
	Began     time.Time         `json:"began"`
}

// alertMemory keeps in the store what is told, so that the end of an alert is told
// by the next server if this one is gone: a receiver would show it for ever. What is
// about to be told is kept first. That the store is out of reach cannot be kept while
// it is: so it counts as told from the start until a server has ended in order.
type alertMemory struct {
	store    storage.Memos // nil: nothing is remembered
	log      *slog.Logger
	began    time.Time
	recalled bool
	kept     string // as the store has it
	told     []toldAlert
	failing  bool
}

func newAlertMemory(store storage.Store, log *slog.Logger) *alertMemory {
	memos, _ := store.(storage.Memos)
	return &alertMemory{store: memos, log: log, began: time.Now()}
}

// recall tells what a server before this one had told, once; nil until it is known.
func (m *alertMemory) recall(ctx context.Context) []toldAlert {
	if m.recalled || m.store == nil {
		return nil
	}
	bounded, cancel := context.WithTimeout(ctx, memoTimeout)
	defer cancel()
	text, err := m.store.Memo(bounded, alertMemo)
	if m.failed(ctx, err) {
		return nil
	}
	m.recalled, m.kept = true, string(text)
	var told []toldAlert
	if len(text) > 0 && json.Unmarshal(text, &told) != nil {
		m.log.LogAttrs(ctx, slog.LevelWarn, "what alerts were told before cannot be read; the end of some may not be told")
	}
	return told
}

// keep writes what may be told now, unless the store has it.
func (m *alertMemory) keep(ctx context.Context, told []toldAlert) {
	if !m.recalled {
		return // it would take the place of what is not known yet
	}
	m.told = told
	m.write(ctx, append(slices.Clone(told), toldAlert{Name: alertStoreDown, Labels: critical(), Began: m.began}))
}

// close writes what is told at the end: it is known now whether the store's outage is.
func (m *alertMemory) close(ctx context.Context) {
	if m.recalled {
		m.write(ctx, m.told)
	}
}

func (m *alertMemory) write(ctx context.Context, told []toldAlert) {
	text, err := json.Marshal(told)
	if err != nil || string(text) == m.kept {
		return
	}
	bounded, cancel := context.WithTimeout(ctx, memoTimeout)
	defer cancel()
	if !m.failed(ctx, m.store.SetMemo(bounded, alertMemo, text)) {
		m.kept = string(text)
	}
}

// failed logs the first of several failures.
func (m *alertMemory) failed(ctx context.Context, err error) bool {
	if err != nil && ctx.Err() == nil && !m.failing {
		m.log.LogAttrs(ctx, slog.LevelWarn, "the store does not keep which alerts are told; after a restart the end of some may not be told", slog.Any("error", err))
	}
	m.failing = err != nil
	return err != nil
}

// recall takes over what was told before: it is told again if it still holds (nobody
// knows when its group was last sent), and
// its end if not.
func (b *alertBook) recall(told []toldAlert) {
	for _, t := range told {
		g := b.group(groupKey{t.Name, t.Namespace})
		if id := labelText(t.Labels); g.alerts[id] == nil {
			g.alerts[id] = &standing{
				alert: alert{
					name: t.Name, namespace: t.Namespace, labels: t.Labels,
					annotations: restarted(),
				},
				began: t.Began, told: true,
			}
		}
	}
}

// told is what is told, and what is in the messages that are about to be.
func (b *alertBook) told(due []alertMessage) []toldAlert {
	var out []toldAlert
	add := func(s *standing) {
		out = append(out, toldAlert{Name: s.name, Namespace: s.namespace, Labels: s.labels, Began: s.began.UTC()})
	}
	for k, g := range b.groups {
		sending := slices.ContainsFunc(due, func(m alertMessage) bool { return m.group == k })
		for _, id := range slices.Sorted(maps.Keys(g.alerts)) {
			if s := g.alerts[id]; s.told || sending {
				add(s)
			}
		}
	}
	slices.SortStableFunc(out, func(a, b toldAlert) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Namespace, b.Namespace))
	})
	return out
}

func restarted() map[string]string {
	return told("it was told by a dedupd that has stopped since", "what comes with it is not known any more")
}
