package server

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/go-kratos/aegis/topk"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/storage"
)

// The sketch of the keys that keep coming back: HeavyKeeper, about 250 KiB however
// many keys there are. Counts are halved again and again, so that they tell of
// late and not of ever.
const (
	hotKept  = 100
	hotWidth = 8192
	hotDepth = 3
	hotDecay = 0.925
	hotFade  = 5 * time.Minute
)

// hotKeys counts how often keys are asked for again. It knows record ids,
// namespaces and operations, and no key. Fresh keys, nearly all, never reach it.
type hotKeys struct {
	mu     sync.Mutex
	sketch topk.Topk
}

func newHotKeys() *hotKeys {
	return &hotKeys{sketch: topk.NewHeavyKeeper(hotKept, hotWidth, hotDepth, hotDecay, 0)}
}

// asked counts an answer to a Reserve, unless it is the first grant of its key.
func (h *hotKeys) asked(id storage.RecordID, who storage.Identity, ans storage.Answer) {
	if ans.Verdict == storage.VerdictGranted && ans.Record.Grants <= 1 {
		return
	}
	item := string(id[:]) + who.Namespace + "\n" + who.Operation // a namespace has no line break
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sketch.Add(item, 1)
}

// hottest tells up to limit keys of one namespace, or of all, most often first, that
// were asked for again at least so often.
func (h *hotKeys) hottest(namespace string, limit int, least uint32) []*dedupv1.HotKey {
	h.mu.Lock()
	items := h.sketch.List()
	h.mu.Unlock()
	var out []*dedupv1.HotKey
	for _, item := range items {
		id := storage.RecordID([]byte(item.Key[:len(storage.RecordID{})]))
		ns, operation, _ := strings.Cut(item.Key[len(id):], "\n")
		if item.Count < max(1, least) || namespace != "" && ns != namespace {
			continue
		}
		if len(out) == limit {
			break
		}
		out = append(out, &dedupv1.HotKey{Record: id.Short(), Namespace: ns, Operation: operation, Count: int64(item.Count)})
	}
	return out
}

// most is the count of the hottest key.
func (h *hotKeys) most() float64 {
	for _, key := range h.hottest("", 1, 1) {
		return float64(key.GetCount())
	}
	return 0
}

// run halves the counts until ctx ends.
func (h *hotKeys) run(ctx context.Context) {
	tick := time.NewTicker(hotFade)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			h.mu.Lock()
			h.sketch.Fading()
			h.mu.Unlock()
		}
	}
}
