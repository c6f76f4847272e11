package embedded

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"syscall"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/dedupd/dedupd/storage"
)

// A store's directory is known by this file, so that none other is taken for
// one.
const (
	markerFile = "DEDUPD"
	marker     = "dedupd embedded store, format 1\n"
	lockFile   = "LOCK"
)

// claimDir makes the directory, sees that it is a store or empty, and locks it.
func claimDir(disk vfs.FS, dir string) (*pebble.Lock, error) {
	if err := disk.MkdirAll(dir, 0o700); err != nil {
		return nil, dirFault("making", err)
	}
	marked, err := checkDir(disk, dir)
	if err != nil {
		return nil, err
	}
	lock, err := pebble.LockDirectory(dir, disk)
	if err != nil {
		return nil, lockFault(dir, err)
	}
	if !marked {
		err = writeMarker(disk, dir)
	}
	if err != nil {
		_ = lock.Close()
		return nil, dirFault("writing to", err)
	}
	return lock, nil
}

func dirFault(doing string, err error) error {
	return fmt.Errorf("%s the store's directory: %w: choose another directory or make this one writable", doing, err)
}

// lockFault tells a lock that another has from one that cannot be taken.
func lockFault(dir string, err error) error {
	var file *fs.PathError
	byOther := errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EACCES) && !errors.As(err, &file)
	byOurselves := strings.Contains(err.Error(), "held by current process") // Pebble has no value for it
	if byOther || byOurselves {
		return fmt.Errorf("%w: %s: stop the dedupd that has it open or choose another directory", storage.ErrLocked, dir)
	}
	return dirFault("locking", err)
}

// checkDir reports whether the directory is marked as a store. It is an error if
// it is not and holds anything, or if it was marked by another version.
func checkDir(disk vfs.FS, dir string) (marked bool, err error) {
	entries, err := disk.List(dir)
	if err != nil {
		return false, dirFault("reading", err)
	}
	others := 0
	for _, e := range entries {
		switch e {
		case markerFile:
			marked = true
		case lockFile:
		default:
			others++
		}
	}
	if !marked {
		if others > 0 {
			return false, fmt.Errorf("the directory %s holds other files and is no dedupd store: choose an empty one", dir)
		}
		return false, nil
	}
	text, err := readMarker(disk, dir)
	switch {
	case err != nil:
		return false, dirFault("reading", err)
	case text == marker:
		return true, nil
	case others == 0 && strings.HasPrefix(marker, text):
		return false, nil // a crash came between making the file and writing it
	}
	return false, fmt.Errorf("the store in %s was made by another version of dedupd: use that one", dir)
}

func readMarker(disk vfs.FS, dir string) (string, error) {
	f, err := disk.Open(disk.PathJoin(dir, markerFile))
	if err != nil {
		return "", err
	}
	text, err := io.ReadAll(f)
	return string(text), errors.Join(err, f.Close())
}

func writeMarker(disk vfs.FS, dir string) error {
	f, err := disk.Create(disk.PathJoin(dir, markerFile), vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	if _, err = f.Write([]byte(marker)); err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	d, err := disk.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
