package embedded

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/dedupd/dedupd/storage"
)

// Options configure a store. The zero value of a field is its default.
type Options struct {
	// Dir holds the store, and nothing else. It is made if it is not there.
	// Required, but with OpenMemory.
	Dir string
	// FS is the file system; nil is the disk.
	FS vfs.FS
	// Logger gets faults and what people should know; nil logs nothing. No key,
	// request or response is logged.
	Logger *slog.Logger
	// CacheBytes bounds the cache of blocks and filters; default 128 MiB, at
	// least 1 MiB.
	CacheBytes int64
	// MemtableBytes is the size at which writes go from memory to a table file;
	// up to four of them are held. Default 16 MiB, 1 MiB to 1 GiB.
	MemtableBytes int64
	// Now is the wall clock; nil is time.Now. It is for tests that move time:
	// times it returns must never go back while the store is open.
	Now func() time.Time
	// OnFailure is called at most once, with the fault of a write after which the
	// store has stopped for good, so that its process can end and be started
	// again; nil does nothing. The error says what to do. It is called on a
	// goroutine of its own, perhaps while the store is being closed or has just
	// been; it is not called for a fault that Open returns.
	OnFailure func(error)

	inMemory bool // set by OpenMemory
}

const (
	defaultCache    = 128 << 20
	defaultMemtable = 16 << 20
	minBytes        = 1 << 20
	maxMemtable     = 1 << 30
)

func (o Options) withDefaults() Options {
	o.CacheBytes = cmp.Or(o.CacheBytes, defaultCache)
	o.MemtableBytes = cmp.Or(o.MemtableBytes, defaultMemtable)
	if o.FS == nil {
		o.FS = vfs.Default
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}

func (o Options) validate() error {
	switch {
	case o.Dir == "":
		return errors.New("the embedded store needs a directory: set Dir")
	case o.CacheBytes < minBytes:
		return fmt.Errorf("the cache is %d bytes, at least %d are needed", o.CacheBytes, minBytes)
	case o.MemtableBytes < minBytes || o.MemtableBytes > maxMemtable:
		return fmt.Errorf("the memtable is %d bytes, %d to %d are allowed", o.MemtableBytes, minBytes, maxMemtable)
	}
	return nil
}

// Store is an open store; it implements storage.Store and is safe for
// concurrent use.
type Store struct {
	logger  *slog.Logger
	db      *pebble.DB
	dirLock *pebble.Lock
	codec   *codec
	clock   clock
	keys    keyLocks
	parked  openCount
	buffers sync.Pool // of *[]byte, for encoding

	failed failure
	// onFailure is Options.OnFailure.
	onFailure func(error)
	// life is held for reading by every call, and for writing to open and close.
	life     sync.RWMutex
	opened   bool
	closed   bool
	dbClosed bool

	// gate is held while a batch enters Pebble, not while it is synced.
	gate   sync.Mutex
	stored storage.Instant // the stored time, see clockStep
}

var _ storage.Store = (*Store)(nil)

// Open opens the store in o.Dir, which only one process may have open: it
// returns an error that wraps storage.ErrLocked at once where another has. An
// error says what to do about it.
func Open(o Options) (*Store, error) {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return nil, err
	}
	s := &Store{logger: o.Logger, onFailure: o.OnFailure}
	s.buffers.New = func() any { return new([]byte) }
	s.failed.onFail = s.stop
	s.life.Lock() // a fault while opening waits with its stop
	defer s.life.Unlock()
	var err error
	if s.codec, err = newCodec(); err != nil {
		return nil, err
	}
	if err = s.open(o); err != nil {
		s.closeAll()
		return nil, err
	}
	s.opened = true
	return s, nil
}

// OpenMemory opens an empty store in memory; FS and Dir of o are not used.
func OpenMemory(o Options) (*Store, error) {
	o.FS, o.Dir, o.inMemory = vfs.NewMem(), "memory", true
	return Open(o)
}

func (s *Store) open(o Options) error {
	var err error
	if s.dirLock, err = claimDir(o.FS, o.Dir); err != nil {
		return err
	}
	s.db, err = openPebble(s, o)
	if failed := s.failed.load(); failed != nil {
		return fmt.Errorf("opening the store in %s: %w", o.Dir, failed)
	}
	if err != nil {
		return fmt.Errorf("opening the store in %s: a file is missing, damaged or unreadable: check the disk, or restore the whole directory, but know that the keys which an older copy lacks run again (%w)", o.Dir, err)
	}
	if s.stored, err = s.readClock(); err != nil {
		err = cmp.Or(s.failed.load(), err) // that says what to do
		return fmt.Errorf("opening the store in %s: %w", o.Dir, err)
	}
	if err := s.countOpen(); err != nil {
		return fmt.Errorf("opening the store in %s: %w", o.Dir, cmp.Or(s.failed.load(), err))
	}
	floor := storage.Instant(0)
	switch {
	case s.stored != 0:
		floor = s.stored.Add(clockStep)
	case !o.inMemory:
		// A wrong directory would let every repeat run again.
		s.logger.Warn("the store is empty, so every key is new to it: if there were records before, stop and check the directory",
			slog.String("dir", o.Dir))
	}
	var behind time.Duration
	if s.clock, behind = newClock(o.Now, floor); behind > clockStep { // the floor itself is up to a step ahead
		s.logger.Warn("the wall clock is behind the times in the store: the store's clock goes on from the latest of them; check the machine's clock",
			slog.Duration("behind", behind))
	}
	if err := s.failed.load(); err != nil {
		return fmt.Errorf("opening the store in %s: %w", o.Dir, err)
	}
	return nil
}

func (s *Store) readClock() (storage.Instant, error) {
	value, closer, err := s.db.Get([]byte{prefixClock})
	if errors.Is(err, pebble.ErrNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer func() { _ = closer.Close() }()
	if len(value) != 8 {
		return 0, errCorrupt
	}
	return storage.Instant(binary.BigEndian.Uint64(value)), nil //nolint:gosec // written from an instant
}

// Close waits for calls that have begun and closes the store. A second Close
// does nothing. It returns the fault of a write that failed while closing.
func (s *Store) Close() error {
	s.life.Lock()
	defer s.life.Unlock()
	if s.closed {
		return nil
	}
	before := s.failed.load()
	s.closed = true
	s.closeAll()
	if err := s.failed.load(); err != nil && before == nil {
		return err
	}
	return nil
}

// stop tells of a fault and closes Pebble once the calls that have begun are over:
// it would go on for ever with what it cannot write.
func (s *Store) stop(err error) {
	s.logger.Error("the store has stopped: nothing is granted or completed until dedupd is restarted", slog.Any("error", err))
	go func() {
		s.life.RLock() // waits for Open, and for no call
		tell := s.opened && s.onFailure != nil
		s.life.RUnlock()
		if tell {
			s.onFailure(err)
		}
		s.life.Lock()
		defer s.life.Unlock()
		s.closeDB()
	}()
}

func (s *Store) closeAll() {
	s.closeDB()
	if s.dirLock != nil {
		if err := s.dirLock.Close(); err != nil {
			s.logger.Warn("unlocking the directory", slog.Any("error", err))
		}
	}
	s.codec.close()
}

func (s *Store) closeDB() {
	if s.db == nil || s.dbClosed {
		return
	}
	s.dbClosed = true
	if err := s.db.Close(); err != nil && s.failed.load() == nil {
		s.logger.Warn("closing the store", slog.Any("error", err))
	}
}
