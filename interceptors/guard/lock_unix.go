//go:build unix

package guard

import (
	"os"
	"syscall"
)

// lockFile takes an exclusive lock that ends with the process, at once or not
// at all.
func lockFile(f *os.File) error {
	return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
}
