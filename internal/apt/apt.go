// Package apt gets the programs that tests run beside dedupd, where the machine
// is a Debian or an Ubuntu and the tests may install: elsewhere it says in one
// line what is missing.
package apt

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
)

// Command returns the path of the first of the commands that is there. Where
// none is, it installs the package as root and looks again; the error names the
// package. Two processes that install at once wait for each other.
func Command(pkg string, commands ...string) (string, error) {
	if path := find(commands); path != "" {
		return path, nil
	}
	if err := Install(pkg); err != nil {
		return "", err
	}
	if path := find(commands); path != "" {
		return path, nil
	}
	return "", missing(pkg)
}

// Install installs a package; the error says what to type.
func Install(pkg string) error {
	apt, err := exec.LookPath("apt-get")
	if err != nil || os.Geteuid() != 0 {
		return missing(pkg)
	}
	for _, args := range [][]string{
		{"-o", "DPkg::Lock::Timeout=300", "-qq", "update"},
		{"-o", "DPkg::Lock::Timeout=300", "-qq", "install", "--yes", "--no-install-recommends", pkg},
	} {
		cmd := exec.Command(apt, args...) //nolint:gosec,noctx // the distribution's installer
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %w: %s", missing(pkg), err, out)
		}
	}
	return nil
}

func missing(pkg string) error {
	return errors.New("a program that the tests need is missing: apt-get install " + pkg)
}

func find(commands []string) string {
	for _, c := range commands {
		if path, err := exec.LookPath(c); err == nil {
			return path
		}
	}
	return ""
}
