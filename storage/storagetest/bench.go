package storagetest

import (
	"encoding/binary"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dedupd/dedupd/storage"
)

// Bench measures a store with 64-byte keys and 256-byte responses, with 1, 16,
// 64 and 256 callers at once: fresh grants, grants with their completion, and
// replays of completed keys. It reports calls per second; for the second, cycles.
func Bench(b *testing.B, open Opener) {
	b.Helper()
	loads := []struct {
		name string
		run  func(w *workload, i uint64)
	}{
		{"ReserveFresh", (*workload).reserve},
		{"ReserveComplete", (*workload).cycle},
		{"Replay", (*workload).replay},
	}
	for _, l := range loads {
		for _, callers := range []int{1, 16, 64, 256} {
			b.Run(fmt.Sprintf("%s/callers=%d", l.name, callers), func(b *testing.B) {
				w := newWorkload(b, open(b).Store)
				b.ReportAllocs()
				b.ResetTimer()
				w.drive(callers, func(i uint64) { l.run(w, i) })
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "calls/s")
				b.StopTimer()
				require.NoError(b, w.store.Close())
			})
		}
	}
}

// replayed is how many completed keys replays choose from.
const replayed = 1000

type workload struct {
	*testing.B
	store    storage.Store
	response []byte
	pad      string
	next     atomic.Uint64 // key of BenchPairs
}

func newWorkload(b *testing.B, s storage.Store) *workload {
	b.Helper()
	w := &workload{B: b, store: s, response: randomBytes(256), pad: strings.Repeat("k", 44)}
	if strings.Contains(b.Name(), "Replay") {
		for i := range uint64(replayed) {
			w.cycle(i)
		}
	}
	return w
}

// drive spreads b.N calls over the callers.
func (w *workload) drive(callers int, call func(i uint64)) {
	var next atomic.Uint64
	var done sync.WaitGroup
	for range callers {
		done.Go(func() {
			for {
				i := next.Add(1) - 1
				if i >= uint64(w.N) {
					return
				}
				call(i)
			}
		})
	}
	done.Wait()
}

func (w *workload) request(i uint64) storage.Reserve {
	q := storage.Reserve{
		Identity: storage.Identity{
			Namespace: "bench", Operation: "/pay.v1.Payments/Charge", Caller: "customer-1",
			Key: fmt.Sprintf("%020d%s", i, w.pad),
		},
		Fingerprint: storage.Fingerprint{{Version: 1, Server: "0123456789abcdef0123456789abcdef", Client: "0123456789abcdef0123456789abcdef"}},
		Lease:       time.Minute,
	}
	binary.BigEndian.PutUint64(q.Attempt[:], i+1)
	return q
}

func (w *workload) reserve(i uint64) { w.grant(i) }

func (w *workload) grant(i uint64) (storage.Reserve, storage.Fence) {
	q := w.request(i)
	ans, err := w.store.Reserve(w.Context(), q)
	if err != nil || ans.Verdict != storage.VerdictGranted {
		w.Errorf("reserve: %s, %v", ans.Verdict, err)
		return q, 0
	}
	return q, ans.Record.Fence
}

func (w *workload) cycle(i uint64) {
	q, fence := w.grant(i)
	ans, err := w.store.Complete(w.Context(), q.Identity.RecordID(), storage.Complete{
		Attempt: q.Attempt, Fence: fence, Terms: terms(),
		Outcome: &storage.Outcome{HasResponse: true, TypeURL: "type.googleapis.com/pay.v1.Charge", Response: w.response},
	})
	if err != nil || ans.Verdict != storage.VerdictOK {
		w.Errorf("complete: %s, %v", ans.Verdict, err)
	}
}

func (w *workload) replay(i uint64) {
	q := w.request(i % replayed)
	q.Attempt = storage.AttemptID{1}
	ans, err := w.store.Reserve(w.Context(), q)
	if err != nil || ans.Verdict != storage.VerdictCompleted {
		w.Errorf("replay: %s, %v", ans.Verdict, err)
	}
}
