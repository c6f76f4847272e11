package embedded_test

import (
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/require"

	"github.com/dedupd/dedupd/storage"
	"github.com/dedupd/dedupd/storage/embedded"
)

// small makes the store flush and compact within a test.
func small(disk vfs.FS) embedded.Options {
	return embedded.Options{FS: disk, Dir: "store", MemtableBytes: 1 << 20}
}

func open(t *testing.T, o embedded.Options) *embedded.Store {
	t.Helper()
	s, err := embedded.Open(o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func TestB12WhatWasAcknowledgedIsThereAfterACrashAtAnyPoint(t *testing.T) {
	t.Parallel()
	const callers, cycles, every = 8, 60, 61
	disk := vfs.NewCrashableMem()
	type crash struct {
		disk *vfs.MemFS
		acks map[string]ack
	}
	var mu sync.Mutex
	var crashes []crash
	l := &load{store: open(t, small(disk))}
	l.onAck = func(n int) {
		if n%every != 0 {
			return
		}
		c := crash{acks: l.acknowledged()} // first: only what is acknowledged before the crash must survive it
		c.disk = disk.CrashClone(vfs.CrashCloneCfg{
			UnsyncedDataPercent: n % 3 * 50, RNG: rand.New(rand.NewPCG(uint64(n), 1)),
		})
		mu.Lock()
		defer mu.Unlock()
		crashes = append(crashes, c)
	}
	l.run(t.Context(), callers, cycles)
	require.NoError(t, l.fault)
	require.Len(t, crashes, callers*(2*cycles+cycles/parkEvery)/every)
	for _, c := range crashes {
		s, err := embedded.Open(small(c.disk))
		require.NoError(t, err)
		requireAcknowledged(t, s, c.acks)
		require.NoError(t, s.CheckIndexes())
		require.NoError(t, s.Close())
	}
}

// faultyDisk fails one write operation, by its number, or all from there on.
type faultyDisk struct {
	errorfs.Injector
	ops     atomic.Int64
	failAt  int64
	forGood bool
	fault   error
}

func newFaultyDisk(disk vfs.FS, failAt int64, forGood bool, fault error) (vfs.FS, *faultyDisk) {
	f := &faultyDisk{failAt: failAt, forGood: forGood, fault: fault}
	f.Injector = errorfs.InjectorFunc(f.maybe)
	return errorfs.Wrap(disk, f), f
}

func (f *faultyDisk) MaybeError(op errorfs.Op) error { return f.maybe(op) }

func (f *faultyDisk) maybe(op errorfs.Op) error {
	if op.Kind.ReadOrWrite() != errorfs.OpIsWrite {
		return nil
	}
	n := f.ops.Add(1)
	if n == f.failAt || f.forGood && n > f.failAt {
		return f.fault
	}
	return nil
}

func TestAfterAFailedWriteNothingIsAcknowledgedAndNothingIsLost(t *testing.T) {
	t.Parallel()
	const callers, cycles, points = 8, 25, 9
	disk, count := newFaultyDisk(vfs.NewMem(), 0, false, nil)
	s, err := embedded.Open(small(disk))
	require.NoError(t, err)
	(&load{store: s}).run(t.Context(), callers, cycles)
	require.NoError(t, s.Close())
	total := count.ops.Load()
	require.Greater(t, total, int64(points))
	for i := range int64(points) {
		for _, forGood := range []bool{false, true} {
			failAndReopen(t, 1+i*total/points, forGood, func(l *load) { l.run(t.Context(), callers, cycles) })
		}
	}
}

// failAndReopen runs the load on a disk that fails, and looks at what is left on
// the disk, and on what a crash would have left of it.
func failAndReopen(t *testing.T, failAt int64, forGood bool, run func(*load)) {
	t.Helper()
	under := vfs.NewCrashableMem()
	disk, _ := newFaultyDisk(under, failAt, forGood, syscall.EIO)
	l := &load{}
	s, err := embedded.Open(small(disk))
	if err == nil {
		l.store = s
		run(l)
		if l.fault != nil {
			require.ErrorIs(t, l.fault, storage.ErrUnavailable)
			requireStopped(t, s)
		}
		_ = s.Close() // tells of the fault if it comes now
	}
	crashed := under.CrashClone(vfs.CrashCloneCfg{})
	for _, left := range []*vfs.MemFS{under, crashed} {
		again, err := embedded.Open(small(left))
		require.NoError(t, err, "write operation %d, for good: %t", failAt, forGood)
		requireAcknowledged(t, again, l.acknowledged())
		require.NoError(t, again.CheckIndexes())
		require.NoError(t, again.Close())
	}
}

func requireStopped(t *testing.T, s *embedded.Store) {
	t.Helper()
	q := request("after")
	_, err := s.Reserve(t.Context(), q)
	require.ErrorIs(t, err, storage.ErrUnavailable)
	_, err = s.Lookup(t.Context(), q.Identity.RecordID(), storage.Lookup{})
	require.ErrorIs(t, err, storage.ErrUnavailable)
	_, err = s.List(t.Context(), storage.List{Limit: 1})
	require.ErrorIs(t, err, storage.ErrUnavailable)
	_, err = s.Sweep(t.Context(), 1)
	require.ErrorIs(t, err, storage.ErrUnavailable)
	_, err = s.Park(t.Context(), storage.Park{Entry: storage.DeadLetter{Kind: storage.EntryExhausted, Identity: q.Identity}})
	require.ErrorIs(t, err, storage.ErrUnavailable)
	_, err = s.Entries(t.Context(), storage.ListEntries{Limit: 1})
	require.ErrorIs(t, err, storage.ErrUnavailable)
	_, err = s.Census(t.Context())
	require.ErrorIs(t, err, storage.ErrUnavailable)
	require.ErrorIs(t, s.Check(t.Context()), storage.ErrUnavailable)
}

func TestAFullDiskIsSaidInOneSentence(t *testing.T) {
	t.Parallel()
	var full atomic.Bool
	disk := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if full.Load() && op.Kind == errorfs.OpFileWrite {
			return syscall.ENOSPC
		}
		return nil
	}))
	told := make(chan error, 2)
	s := open(t, embedded.Options{FS: disk, Dir: "store", OnFailure: func(err error) { told <- err }})
	_, err := s.Reserve(t.Context(), request("before"))
	require.NoError(t, err)
	require.Empty(t, told)
	full.Store(true)
	_, err = s.Reserve(t.Context(), request("k"))
	require.ErrorIs(t, err, storage.ErrUnavailable)
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.ErrorContains(t, err, "the disk is full: free some space, then restart dedupd")
	full.Store(false)
	requireStopped(t, s)
	require.ErrorContains(t, <-told, "the disk is full: free some space, then restart dedupd")
	require.NoError(t, s.Close())
	require.Empty(t, told, "told once")
}

func TestAFaultOfAReadIsOfThatCallOnly(t *testing.T) {
	t.Parallel()
	var broken atomic.Bool
	under := vfs.NewMem()
	disk := errorfs.Wrap(under, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if broken.Load() && op.Kind == errorfs.OpFileReadAt {
			return errors.New("unreadable sector")
		}
		return nil
	}))
	first, err := embedded.Open(small(disk))
	require.NoError(t, err)
	l := &load{store: first}
	l.run(t.Context(), 8, 100)
	require.NoError(t, l.fault)
	require.NoError(t, first.Close())

	s := open(t, small(disk)) // its cache is empty
	broken.Store(true)
	unread := 0
	for key := range l.acknowledged() {
		if _, err := s.Reserve(t.Context(), request(key)); err != nil {
			require.ErrorIs(t, err, storage.ErrUnavailable, "never taken for an absent record")
			unread++
		}
	}
	require.Positive(t, unread)
	broken.Store(false)
	requireAcknowledged(t, s, l.acknowledged())
}
