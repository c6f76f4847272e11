package embedded_test

import (
	"testing"

	"github.com/dedupd/dedupd/storage/embedded"
	"github.com/dedupd/dedupd/storage/storagetest"
)

func BenchmarkStore(b *testing.B) {
	storagetest.Bench(b, func(tb testing.TB) storagetest.Harness {
		tb.Helper()
		return harness(tb, embedded.Options{Dir: tb.TempDir()})
	})
}
