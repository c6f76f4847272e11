package pgtest

import "syscall"

// sysProcAttr gives the child its own group, so that a Ctrl-C for the tests is
// not also a slow shutdown, and lets it never outlive the test binary.
func sysProcAttr(as *syscall.Credential) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: as, Setpgid: true, Pdeathsig: syscall.SIGQUIT}
}
