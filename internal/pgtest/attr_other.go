//go:build !linux

package pgtest

import "syscall"

// sysProcAttr gives the child its own group, so that a Ctrl-C for the tests is
// not also a slow shutdown.
func sysProcAttr(as *syscall.Credential) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: as, Setpgid: true}
}
