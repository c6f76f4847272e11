package embedded_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/stretchr/testify/require"

	"github.com/dedupd/dedupd/storage"
	"github.com/dedupd/dedupd/storage/embedded"
	"github.com/dedupd/dedupd/storage/storagetest"
)

func BenchmarkStore(b *testing.B) {
	storagetest.Bench(b, func(tb testing.TB) storagetest.Harness {
		tb.Helper()
		return harness(tb, embedded.Options{Dir: tb.TempDir()})
	})
}

// BenchmarkBarePebble is the least that a durable Reserve can be: under a
// striped lock a read of an absent key, then a synced write.
func BenchmarkBarePebble(b *testing.B) {
	for _, callers := range []int{1, 16, 64, 256} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			opts := &pebble.Options{MemTableSize: 32 << 20, MemTableStopWritesThreshold: 4, Logger: quiet{}}
			for i := range opts.Levels {
				opts.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
			}
			db, err := pebble.Open(b.TempDir(), opts)
			require.NoError(b, err)
			value := make([]byte, 300)
			var stripes [1024]sync.Mutex
			var next atomic.Uint64
			b.ReportAllocs()
			b.ResetTimer()
			var done sync.WaitGroup
			for range callers {
				done.Go(func() {
					for i := next.Add(1); i <= uint64(b.N); i = next.Add(1) {
						var key [33]byte
						binary.BigEndian.PutUint64(key[1:], i*0x9e3779b97f4a7c15)
						stripe := &stripes[key[2]]
						stripe.Lock()
						if _, _, err := db.Get(key[:]); err == nil {
							b.Error("a fresh key is there")
						}
						if err := db.Set(key[:], value, pebble.Sync); err != nil {
							b.Error(err)
						}
						stripe.Unlock()
					}
				})
			}
			done.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "calls/s")
			b.StopTimer()
			require.NoError(b, db.Close())
		})
	}
}

type quiet struct{ pebble.Logger }

func (quiet) Infof(string, ...any) {}

// BenchmarkSize reports what a completed record takes, with a 64-byte key and a
// random 256-byte response: bytes on disk once all is compacted, and bytes of
// the process's memory while it is written. Run it with -benchtime 1000000x.
func BenchmarkSize(b *testing.B) {
	s, err := embedded.Open(embedded.Options{Dir: b.TempDir()})
	require.NoError(b, err)
	const callers = 64
	var next atomic.Int64
	var done sync.WaitGroup
	for range callers {
		done.Go(func() {
			for i := next.Add(1); i <= int64(b.N); i = next.Add(1) {
				if err := completeOne(b.Context(), s, fmt.Sprintf("%064d", i)); err != nil {
					b.Error(err)
				}
			}
		})
	}
	done.Wait()
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	m := s.Metrics()
	b.ReportMetric(float64(mem.Sys)/(1<<20), "Go-MiB")
	b.ReportMetric(float64(m.BlockCache.Size+int64(m.MemTable.Size+m.MemTable.ZombieSize))/(1<<20), "Pebble-MiB")
	require.NoError(b, s.Compact(b.Context()))
	m = s.Metrics()
	b.ReportMetric(float64(m.Total().TablesSize)/float64(b.N), "disk-B/record")
	require.NoError(b, s.Close())
}

func completeOne(ctx context.Context, s *embedded.Store, key string) error {
	q := request(key)
	q.Fingerprint[0].Server = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	ans, err := s.Reserve(ctx, q)
	if err != nil {
		return err
	}
	o := responseOf(key)
	o.Response = o.Response[:256]
	_, err = s.Complete(ctx, q.Identity.RecordID(), storage.Complete{Attempt: q.Attempt, Fence: ans.Record.Fence, Outcome: o})
	return err
}
