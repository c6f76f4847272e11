package embedded

import (
	"fmt"
	"log/slog"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"

	"github.com/dedupd/dedupd/storage"
)

// formatVersion pins Pebble's format on disk: a newer Pebble must not change it
// by itself, so that the previous dedupd can still open the store.
const formatVersion = pebble.FormatValueSeparation

const (
	filterBits     = 10       // per key: about one in a hundred absent keys costs a read
	blockSize      = 16 << 10 // larger blocks compress better
	indexBlockSize = 64 << 10
	memtables      = 4       // held while earlier ones are being written
	l0Stop         = 40      // writes wait beyond this many runs in the first level
	l0Compaction   = 4       // runs in the first level that start a compaction
	targetFileSize = 8 << 20 // of the first level; each further one doubles it
	bytesPerSync   = 1 << 20 // table files reach the disk evenly
)

func openPebble(s *Store, o Options) (*pebble.DB, error) {
	cache := pebble.NewCache(o.CacheBytes)
	defer cache.Unref()
	faults := pebbleLogger{s}
	disk := &failStopFS{FS: o.FS, failed: &s.failed}
	opts := &pebble.Options{
		Cache:                       cache,
		FS:                          disk,
		Lock:                        s.dirLock,
		FormatMajorVersion:          formatVersion,
		MemTableSize:                uint64(o.MemtableBytes), //nolint:gosec // validated
		MemTableStopWritesThreshold: memtables,
		L0CompactionThreshold:       l0Compaction,
		L0StopWritesThreshold:       l0Stop,
		LBaseMaxBytes:               64 << 20,
		BytesPerSync:                bytesPerSync,
		CompactionConcurrencyRange:  func() (int, int) { return 1, 2 },
		Logger:                      faults,
		EventListener: &pebble.EventListener{
			BackgroundError: faults.background,
			DataCorruption:  faults.corruption,
		},
	}
	opts.TargetFileSizes[0] = targetFileSize
	for i := range opts.Levels {
		opts.Levels[i].FilterPolicy = bloom.FilterPolicy(filterBits)
		opts.Levels[i].BlockSize = blockSize
		opts.Levels[i].IndexBlockSize = indexBlockSize
	}
	opts.ApplyCompressionSettings(func() pebble.DBCompressionSettings { return pebble.DBCompressionBalanced })
	db, err := pebble.Open(o.Dir, opts)
	disk.opened.Store(true)
	return db, err
}

// pebbleLogger hands Pebble's words on. Its Infof is about every table file
// and is left out.
type pebbleLogger struct{ s *Store }

// Infof implements pebble.Logger.
func (pebbleLogger) Infof(string, ...any) {}

// Errorf implements pebble.Logger.
func (l pebbleLogger) Errorf(format string, args ...any) {
	l.s.logger.Error("pebble", slog.String("error", fmt.Sprintf(format, args...)))
}

// Fatalf implements pebble.Logger. Pebble expects it to end the process; here it
// ends the store, and as nothing reaches the disk any more, Pebble may go on.
func (l pebbleLogger) Fatalf(format string, args ...any) {
	l.s.failed.set(fmt.Errorf("a fault of the database that a restart may cure: "+format, args...))
}

// background is called for a flush or compaction that failed and is tried again.
func (l pebbleLogger) background(err error) {
	if l.s.failed.load() == nil {
		l.s.logger.Error("background work of the store failed and is tried again", slog.Any("error", err))
	}
}

func (l pebbleLogger) corruption(info pebble.DataCorruptionInfo) {
	l.s.failed.set(fmt.Errorf("a file of the store is damaged: restore it from a copy, but know that the keys which an older copy lacks run again (%w)", info.Details))
}

// unavailable wraps a fault of the store.
func (s *Store) unavailable(err error) error {
	return fmt.Errorf("%w: %w", storage.ErrUnavailable, err)
}
