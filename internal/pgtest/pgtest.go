// Package pgtest gives tests a real database: a private PostgreSQL made from the
// system's binaries, or any server that DEDUPD_TEST_SQL_URL names.
//
// How a test binary uses it:
//
//  1. TestMain calls Start: initdb into a directory of its own, a server on a unix
//     socket in it. Run as root it changes to an unprivileged user, as PostgreSQL
//     demands.
//  2. A test calls Schema for an empty schema that no other test sees.
//  3. A test about crashes starts a server of its own and calls Kill and Restart.
//  4. TestMain calls Stop: the server ends at once and its directory goes.
//
// It never skips: where the binaries are missing it installs them (root on
// Debian or Ubuntu) or fails with what to install. It uses no port and touches
// no other PostgreSQL of the machine.
package pgtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/dedupd/dedupd/internal/apt"
)

// EnvURL names a server to test against instead of a private one.
const EnvURL = "DEDUPD_TEST_SQL_URL"

// startTime bounds how long a server may take to accept connections.
const startTime = time.Minute

// Server is a database for tests. Its methods are not safe for concurrent use,
// but for URL and Schema.
type Server struct {
	url  string // of a server that is no private PostgreSQL
	stop func() // ends it; nil where it is not ours
	bin  string
	dir  string
	user *syscall.Credential
	cmd  *exec.Cmd
	done chan struct{} // closed when cmd has ended
}

// Start returns the server of EnvURL, or starts a private one. Built with the tag
// cockroach it starts a CockroachDB instead, by cockroach-go's testserver.
func Start() (*Server, error) {
	if given := os.Getenv(EnvURL); given != "" {
		return &Server{url: given}, nil
	}
	return startOther()
}

// StartPrivate starts a private server, whatever EnvURL says: for tests that
// kill it. Settings are PostgreSQL's own (fsync is on).
func StartPrivate() (_ *Server, err error) {
	s := &Server{}
	if s.bin, err = binaries(); err != nil {
		return nil, err
	}
	if s.user, err = unprivileged(); err != nil {
		return nil, err
	}
	if s.dir, err = os.MkdirTemp("/tmp", "dedupd-pg-"); err != nil { // short: a socket's path has at most 107 bytes
		return nil, err
	}
	if err := s.init(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(s.dir))
	}
	if err := s.run(); err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return s, nil
}

// Private reports whether the server is ours to kill.
func (s *Server) Private() bool { return s.url == "" }

// URL returns the connection string.
func (s *Server) URL() string {
	if !s.Private() {
		return s.url
	}
	return "postgres://dedupd@/postgres?" + url.Values{"host": {s.dir}}.Encode()
}

// Bin returns the path of one of PostgreSQL's programs, such as pgbench.
func (s *Server) Bin(name string) string { return filepath.Join(s.bin, name) }

// Dir returns the directory of the private server's socket.
func (s *Server) Dir() string { return s.dir }

// Kill ends the server at once, as a crash would, and returns when it has ended.
func (s *Server) Kill() error {
	if s.cmd == nil {
		return nil
	}
	// SIGQUIT is PostgreSQL's immediate shutdown: its children end too.
	err := s.cmd.Process.Signal(syscall.SIGQUIT)
	<-s.done
	s.cmd = nil
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

// Restart starts the server again on its data, after Kill.
func (s *Server) Restart() error { return s.run() }

// Stop ends the server that Start started, and removes its data.
func (s *Server) Stop() error {
	if !s.Private() {
		if s.stop != nil {
			s.stop()
		}
		return nil
	}
	return errors.Join(s.Kill(), os.RemoveAll(s.dir))
}

func (s *Server) init() error {
	if s.user != nil {
		if err := os.Chown(s.dir, int(s.user.Uid), int(s.user.Gid)); err != nil {
			return err
		}
	}
	cmd := s.command("initdb", "--pgdata", s.data(), "--username", "dedupd", "--auth", "trust",
		"--encoding", "UTF8", "--locale", "C", "--no-sync")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w: %s", err, out)
	}
	return nil
}

func (s *Server) run() error {
	out, err := os.OpenFile(filepath.Join(s.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer out.Close() //nolint:errcheck // the child has its own descriptor
	cmd := s.command("postgres", "-D", s.data(), "-k", s.dir, "-c", "listen_addresses=", "-c", "max_connections=200")
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		return err
	}
	done := make(chan struct{})
	go func() {
		_ = cmd.Wait() // how a killed server ended is of no interest
		close(done)
	}()
	s.cmd, s.done = cmd, done
	if err := s.ready(); err != nil {
		log, _ := os.ReadFile(out.Name())
		return fmt.Errorf("%w: %s", err, log)
	}
	return nil
}

// ready waits until the server accepts connections.
func (s *Server) ready() error {
	ctx, cancel := context.WithTimeout(context.Background(), startTime)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if err := ping(ctx, s.URL()); err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-s.done:
			return errors.New("postgres ended while starting")
		case <-ctx.Done():
			return errors.New("postgres does not accept connections")
		}
	}
}

func (s *Server) data() string { return filepath.Join(s.dir, "data") }

func (s *Server) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(s.Bin(name), args...) //nolint:gosec,noctx // PostgreSQL's own programs
	cmd.Dir = s.dir
	cmd.Env = append(os.Environ(), "LC_ALL=C", "TZ=UTC")
	cmd.SysProcAttr = sysProcAttr(s.user)
	return cmd
}

// unprivileged returns the user to run as, nil for the current one.
func unprivileged() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		uid, gid, err := lookup(name)
		if err == nil {
			return &syscall.Credential{Uid: uid, Gid: gid}, nil
		}
	}
	return nil, errors.New("postgres does not run as root: make a user named postgres or nobody")
}

// binaries finds the newest installed PostgreSQL, or installs one.
func binaries() (string, error) {
	if dir, ok := find(); ok {
		return dir, nil
	}
	if err := apt.Install("postgresql"); err != nil {
		return "", fmt.Errorf("PostgreSQL's server programs are missing (or set %s): %w", EnvURL, err)
	}
	if dir, ok := find(); ok {
		return dir, nil
	}
	return "", errors.New("PostgreSQL is installed, but its server programs are not where they usually are")
}

// find looks where distributions put the server, then along the path.
func find() (string, bool) {
	var dirs []string
	for _, pattern := range []string{
		"/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/usr/local/pgsql/bin", "/opt/homebrew/opt/postgresql*/bin",
	} {
		found, _ := filepath.Glob(pattern) // the patterns are well formed
		dirs = append(dirs, found...)
	}
	slices.SortStableFunc(dirs, func(a, b string) int { return cmp.Compare(version(b), version(a)) })
	for _, dir := range append(dirs, filepath.SplitList(os.Getenv("PATH"))...) {
		if executable(filepath.Join(dir, "initdb")) && executable(filepath.Join(dir, "postgres")) {
			return dir, true
		}
	}
	return "", false
}

// version reads the major version out of a path.
func version(dir string) int {
	name := filepath.Base(filepath.Dir(dir))
	n, _ := strconv.Atoi(strings.TrimLeft(name, "abcdefghijklmnopqrstuvwxyz-@")) // none: last
	return n
}

func executable(path string) bool {
	_, err := exec.LookPath(path)
	return err == nil
}
