package cockroach

import (
	"testing"

	"github.com/dedupd/dedupd/storage/storagetest"
)

// BenchmarkGathered and BenchmarkUngathered differ in Options.NoGather alone.
func BenchmarkGathered(b *testing.B) { storagetest.Bench(b, opener(Options{})) }

func BenchmarkUngathered(b *testing.B) { storagetest.Bench(b, opener(Options{NoGather: true})) }
