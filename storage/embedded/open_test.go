package embedded_test

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/require"

	"github.com/dedupd/dedupd/storage"
	"github.com/dedupd/dedupd/storage/embedded"
)

func TestOptionsThatCannotWorkAreRefused(t *testing.T) {
	t.Parallel()
	for want, o := range map[string]embedded.Options{
		"needs a directory":        {},
		"the cache is 5 bytes":     {Dir: "d", CacheBytes: 5},
		"the cache is -1 bytes":    {Dir: "d", CacheBytes: -1},
		"the memtable is 5 bytes":  {Dir: "d", MemtableBytes: 5},
		"1048576 to 1073741824 ar": {Dir: "d", MemtableBytes: 2 << 30},
	} {
		o.FS = vfs.NewMem()
		_, err := embedded.Open(o)
		require.ErrorContains(t, err, want)
	}
}

func TestAStoreInMemoryNeedsNoDirectory(t *testing.T) {
	t.Parallel()
	s, err := embedded.OpenMemory(embedded.Options{})
	require.NoError(t, err)
	require.NoError(t, s.Check(t.Context()))
	require.NoError(t, s.Close())
}

func TestB08ASecondOpenOfOneDirectoryIsRefusedAtOnce(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]embedded.Options{
		"disk": {Dir: filepath.Join(t.TempDir(), "store")}, "memory": small(vfs.NewMem()),
	} {
		s, err := embedded.Open(o)
		require.NoError(t, err, name)
		_, err = embedded.Open(o)
		require.ErrorIs(t, err, storage.ErrLocked, name)
		require.ErrorContains(t, err, o.Dir)
		require.NoError(t, s.Check(t.Context()), "the first is unharmed")
		require.NoError(t, s.Close())
		open(t, o)
	}
}

func TestADirectoryThatIsNoStoreIsLeftAlone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "thesis.txt")
	require.NoError(t, os.WriteFile(file, []byte("x"), 0o600))
	_, err := embedded.Open(embedded.Options{Dir: dir})
	require.ErrorContains(t, err, "holds other files and is no dedupd store: choose an empty one")
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1)
	_, err = embedded.Open(embedded.Options{Dir: file})
	require.ErrorContains(t, err, "choose another directory")
}

// A directory that was mistyped or not mounted is a new store, in which every
// repeat would run again.
func TestAnEmptyStoreIsPointedOut(t *testing.T) {
	t.Parallel()
	var logged bytes.Buffer
	o := small(vfs.NewMem())
	o.Logger = slog.New(slog.NewTextHandler(&logged, nil))
	s, err := embedded.Open(o)
	require.NoError(t, err)
	require.Contains(t, logged.String(), "the store is empty, so every key is new to it")
	_, err = s.Reserve(t.Context(), request("k"))
	require.NoError(t, err)
	require.NoError(t, s.Close())
	logged.Reset()
	open(t, o)
	require.Empty(t, logged.String())
}

func TestAStoreWithAMissingFileSaysWhatToDo(t *testing.T) {
	t.Parallel()
	disk := vfs.NewMem()
	require.NoError(t, open(t, small(disk)).Close())
	files, err := disk.List("store")
	require.NoError(t, err)
	for _, f := range files {
		if strings.HasPrefix(f, "MANIFEST") {
			require.NoError(t, disk.Remove(disk.PathJoin("store", f)))
		}
	}
	_, err = embedded.Open(small(disk))
	require.ErrorContains(t, err, "a file is missing, damaged or unreadable: check the disk")
	require.ErrorContains(t, err, "the keys which an older copy lacks run again")
}

// The README says so: what a lost log held is new to the store, and no error tells.
func TestTheLossOfTheNewestLogLooksLikeATornTail(t *testing.T) {
	t.Parallel()
	disk := vfs.NewMem()
	s, err := embedded.Open(small(disk))
	require.NoError(t, err)
	_, err = s.Reserve(t.Context(), request("k"))
	require.NoError(t, err)
	require.NoError(t, s.Close())
	requireChanged(t, disk, ".log", disk.Remove)
	ans, err := open(t, small(disk)).Lookup(t.Context(), request("k").Identity.RecordID(), storage.Lookup{})
	require.NoError(t, err)
	require.Equal(t, storage.StateAbsent, ans.State)
}

func TestADamagedTableSaysWhatARestoreCosts(t *testing.T) {
	t.Parallel()
	disk := vfs.NewMem()
	s, err := embedded.Open(small(disk))
	require.NoError(t, err)
	_, err = s.Reserve(t.Context(), request("k"))
	require.NoError(t, err)
	require.NoError(t, s.Compact(t.Context()))
	require.NoError(t, s.Close())
	requireChanged(t, disk, ".sst", func(name string) error {
		f, err := disk.OpenReadWrite(name, vfs.WriteCategoryUnspecified)
		require.NoError(t, err)
		_, err = f.WriteAt(bytes.Repeat([]byte{0x5a}, 40), 0)
		require.NoError(t, err)
		return f.Close()
	})
	_, err = embedded.Open(small(disk))
	require.ErrorContains(t, err, "a file of the store is damaged: restore it from a copy, but know that the keys which an older copy lacks run again")
	require.NotContains(t, err.Error(), "\n")
}

// requireChanged applies change to every file whose name ends in suffix.
func requireChanged(t *testing.T, disk vfs.FS, suffix string, change func(name string) error) {
	t.Helper()
	files, err := disk.List("store")
	require.NoError(t, err)
	n := 0
	for _, f := range files {
		if strings.HasSuffix(f, suffix) {
			require.NoError(t, change(disk.PathJoin("store", f)))
			n++
		}
	}
	require.Positive(t, n)
}

func TestAStoreOfAnotherVersionIsLeftAlone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	marker := filepath.Join(dir, "DEDUPD")
	require.NoError(t, os.WriteFile(marker, []byte("dedupd embedded store, format 9\n"), 0o600))
	_, err := embedded.Open(embedded.Options{Dir: dir})
	require.ErrorContains(t, err, "made by another version of dedupd")
	require.NoError(t, os.WriteFile(marker, []byte("dedupd emb"), 0o600))
	open(t, embedded.Options{Dir: dir}) // a crash while it was made
}

func TestADirectoryThatCannotBeWrittenIsNotCalledLocked(t *testing.T) {
	t.Parallel()
	denied := &os.PathError{Op: "open", Path: "LOCK", Err: syscall.EACCES}
	for name, kind := range map[string]errorfs.OpKind{
		"making": errorfs.OpMkdirAll, "reading": errorfs.OpList, "locking": errorfs.OpLock, "writing to": errorfs.OpCreate,
	} {
		disk := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
			if op.Kind == kind {
				return denied
			}
			return nil
		}))
		_, err := embedded.Open(small(disk))
		require.NotErrorIs(t, err, storage.ErrLocked)
		require.ErrorIs(t, err, syscall.EACCES)
		require.ErrorContains(t, err, name+" the store's directory")
	}
}

// A log that cannot be replaced by the next one makes Pebble panic while a lock
// of its own is open, which would take the process down.
func TestALogThatCannotBeReplacedStopsTheStoreNotTheProcess(t *testing.T) {
	t.Parallel()
	var armed atomic.Bool
	disk := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		opens := op.Kind == errorfs.OpCreate || op.Kind == errorfs.OpReuseForWrite
		if armed.Load() && opens && strings.HasSuffix(op.Path, ".log") {
			return syscall.EIO
		}
		return nil
	}))
	s := open(t, small(disk))
	armed.Store(true)
	l := &load{store: s}
	l.run(t.Context(), 8, 200)
	require.ErrorIs(t, l.fault, storage.ErrUnavailable)
	requireStopped(t, s)
}

func TestTheClockNeverFallsBelowAStoredTime(t *testing.T) {
	t.Parallel()
	disk := vfs.NewCrashableMem()
	var logged bytes.Buffer
	o := small(disk)
	o.Logger = slog.New(slog.NewTextHandler(&logged, nil))
	today := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	wall := today
	o.Now = func() time.Time { return wall }
	s := open(t, o)
	var last *storage.Record
	for i := range 50 {
		wall = today.Add(time.Duration(i) * 300 * time.Microsecond)
		ans, err := s.Reserve(t.Context(), request(string(rune('a'+i))))
		require.NoError(t, err)
		last = ans.Record
	}
	require.NotContains(t, logged.String(), "clock")

	wall = today.Add(-24 * time.Hour) // the wall clock steps back, then the machine crashes
	o.FS = disk.CrashClone(vfs.CrashCloneCfg{})
	s = open(t, o)
	ans, err := s.Lookup(t.Context(), last.Identity.RecordID(), storage.Lookup{})
	require.NoError(t, err)
	require.GreaterOrEqual(t, ans.Now, last.GrantedAt)
	require.Less(t, ans.Now.Sub(last.GrantedAt), 2*time.Millisecond, "a lease is not cut short either")
	require.Equal(t, storage.StateReserved, ans.State)
	require.Contains(t, logged.String(), "the wall clock is behind")
	fresh, err := s.Reserve(t.Context(), request("fresh"))
	require.NoError(t, err)
	require.Greater(t, fresh.Record.Fence, last.Fence)
}

// Pebble's own Open tries a flush that fails again for ever; a service that
// starts on a full disk would neither serve nor end.
func TestAStoreThatCannotWriteWhileOpeningSaysSoAndLosesNothing(t *testing.T) {
	t.Parallel()
	image := vfs.NewCrashableMem()
	_, err := open(t, small(image)).Reserve(t.Context(), request("before"))
	require.NoError(t, err)
	var told atomic.Int64
	for failAt, done := 1, false; !done; failAt++ {
		left := image.CrashClone(vfs.CrashCloneCfg{}) // its record is in the log, and is flushed while opening
		var writes, faults atomic.Int64
		disk := errorfs.Wrap(left, errorfs.InjectorFunc(func(op errorfs.Op) error {
			if op.Kind.ReadOrWrite() != errorfs.OpIsWrite || writes.Add(1) < int64(failAt) {
				return nil
			}
			faults.Add(1)
			return syscall.ENOSPC
		}))
		o := small(disk)
		var refused atomic.Bool
		o.OnFailure = func(error) {
			if refused.Load() {
				told.Add(1)
			}
		}
		s, err := embedded.Open(o)
		refused.Store(err != nil)
		if err == nil {
			done = faults.Load() == 0
			_ = s.Close() // reports the fault, if it came after opening
		} else {
			require.ErrorIs(t, err, syscall.ENOSPC, "write operation %d", failAt)
		}
		again, err := embedded.Open(small(left))
		require.NoError(t, err, "write operation %d", failAt)
		ans, err := again.Lookup(t.Context(), request("before").Identity.RecordID(), storage.Lookup{})
		require.NoError(t, err)
		require.Equal(t, storage.StateReserved, ans.State, "write operation %d", failAt)
		require.NoError(t, again.Close())
	}
	require.Zero(t, told.Load(), "told of a fault that Open returned")
}
