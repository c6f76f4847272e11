package embedded

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// failure is the first fault that a write of the store met. It is set before
// Pebble hears of the fault, so that whoever was waiting for that write finds it.
type failure struct {
	err    atomic.Pointer[error]
	onFail func(error) // called once
}

func (f *failure) load() error {
	if p := f.err.Load(); p != nil {
		return *p
	}
	return nil
}

func (f *failure) set(err error) {
	if f.err.CompareAndSwap(nil, &err) && f.onFail != nil {
		f.onFail(err)
	}
}

// failStopFS ends all writing at the first write that fails: the disk stays as
// it was at that moment, as after a crash, which is what Pebble recovers from.
//
// Pebble itself panics where its log fails, in ways that a process cannot
// survive. So faults of the log are hidden from it: it goes on in memory, while
// the store, which looks at failure before it acknowledges anything, is over.
// Other faults it is told. Either way nothing is deleted any more, so that no
// file goes missing that a half-written manifest names.
//
// While the store is being opened all faults are hidden: Pebble's Open waits for
// a flush, which it would try again for ever, without a pause.
type failStopFS struct {
	vfs.FS
	failed *failure
	opened atomic.Bool
}

// write runs op, unless writing has ended.
func (fs *failStopFS) write(name string, op func() error) error {
	err := fs.failed.load()
	if err == nil {
		if err = op(); err == nil {
			return nil
		}
		fs.failed.set(describeFault(name, err))
	}
	if isLog(name) || !fs.opened.Load() {
		return nil
	}
	return err
}

// remove runs op, unless writing has ended. A file that could not be removed
// harms nobody.
func (fs *failStopFS) remove(op func() error) error {
	if fs.failed.load() != nil {
		return nil
	}
	return op()
}

func isLog(name string) bool { return strings.HasSuffix(name, ".log") }

func describeFault(name string, err error) error {
	file := filepath.Base(name)
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fmt.Errorf("the disk is full: free some space, then restart dedupd (writing %s: %w)", file, err)
	}
	return fmt.Errorf("a write to disk failed: check the disk, then restart dedupd (writing %s: %w)", file, err)
}

// open opens a file for writing; one that cannot be opened, and whose fault is
// hidden, is replaced by one that goes nowhere.
func (fs *failStopFS) open(name string, op func() (vfs.File, error)) (vfs.File, error) {
	var f vfs.File
	err := fs.write(name, func() (err error) {
		f, err = op()
		return err
	})
	if err != nil {
		return nil, err
	}
	if f == nil {
		f = vfs.NewMemFile(nil)
	}
	return &failStopFile{File: f, fs: fs, name: name}, nil
}

// Create implements vfs.FS.
func (fs *failStopFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return fs.open(name, func() (vfs.File, error) { return fs.FS.Create(name, c) })
}

// OpenReadWrite implements vfs.FS.
func (fs *failStopFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	return fs.open(name, func() (vfs.File, error) { return fs.FS.OpenReadWrite(name, c, opts...) })
}

// ReuseForWrite implements vfs.FS.
func (fs *failStopFS) ReuseForWrite(from, to string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return fs.open(to, func() (vfs.File, error) { return fs.FS.ReuseForWrite(from, to, c) })
}

// OpenDir implements vfs.FS. A directory that holds the log counts as the log:
// Pebble syncs it in the same places.
func (fs *failStopFS) OpenDir(name string) (vfs.File, error) {
	f, err := fs.FS.OpenDir(name)
	if err != nil {
		return nil, err
	}
	return &failStopFile{File: f, fs: fs, name: name + ".log"}, nil
}

// Link implements vfs.FS.
func (fs *failStopFS) Link(from, to string) error {
	return fs.write(to, func() error { return fs.FS.Link(from, to) })
}

// Rename implements vfs.FS.
func (fs *failStopFS) Rename(from, to string) error {
	return fs.write(to, func() error { return fs.FS.Rename(from, to) })
}

// MkdirAll implements vfs.FS.
func (fs *failStopFS) MkdirAll(dir string, perm os.FileMode) error {
	return fs.write(dir, func() error { return fs.FS.MkdirAll(dir, perm) })
}

// Remove implements vfs.FS.
func (fs *failStopFS) Remove(name string) error {
	return fs.remove(func() error { return fs.FS.Remove(name) })
}

// RemoveAll implements vfs.FS.
func (fs *failStopFS) RemoveAll(name string) error {
	return fs.remove(func() error { return fs.FS.RemoveAll(name) })
}

// Unwrap implements vfs.FS.
func (fs *failStopFS) Unwrap() vfs.FS { return fs.FS }

// failStopFile is a file that was opened for writing.
type failStopFile struct {
	vfs.File
	fs   *failStopFS
	name string
}

// Write implements vfs.File.
func (f *failStopFile) Write(p []byte) (n int, err error) {
	n = len(p)
	err = f.fs.write(f.name, func() (err error) {
		n, err = f.File.Write(p)
		return err
	})
	if err == nil {
		n = len(p)
	}
	return n, err
}

// WriteAt implements vfs.File.
func (f *failStopFile) WriteAt(p []byte, off int64) (n int, err error) {
	err = f.fs.write(f.name, func() (err error) {
		n, err = f.File.WriteAt(p, off)
		return err
	})
	if err == nil {
		n = len(p)
	}
	return n, err
}

// Sync implements vfs.File.
func (f *failStopFile) Sync() error { return f.fs.write(f.name, f.File.Sync) }

// SyncData implements vfs.File.
func (f *failStopFile) SyncData() error { return f.fs.write(f.name, f.File.SyncData) }

// SyncTo implements vfs.File.
func (f *failStopFile) SyncTo(length int64) (full bool, err error) {
	err = f.fs.write(f.name, func() (err error) {
		full, err = f.File.SyncTo(length)
		return err
	})
	return full, err
}

// Close implements vfs.File.
func (f *failStopFile) Close() error {
	err := f.File.Close()
	if err == nil {
		return nil
	}
	return f.fs.write(f.name, func() error { return err })
}
