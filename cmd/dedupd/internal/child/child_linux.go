package child

import (
	"os/exec"
	"syscall"
)

// endWithParent puts the process into a group of its own, out of reach of the
// terminal's Ctrl-C, which the parent answers; and has the kernel kill it
// when the parent is gone, however that ended.
func endWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
