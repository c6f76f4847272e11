// Package child runs dedupd's own executable as further processes: servers that
// are started, killed and started again by the demo and the benchmark.
//
// The life of a child:
//
//  1. Start chooses a port, runs the executable with "--listen" and that port, and
//     returns once the process answers gRPC health checks there.
//  2. Crash ends it as kill -9 does and starts it again, on the same port.
//  3. Stop asks it to end, and kills it if it does not.
//
// On Linux a child ends with its parent, however that ends. The package restarts
// nothing by itself and reads no output.
package child

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
)

const (
	startTime = 10 * time.Second // for a process to become healthy
	stopTime  = 5 * time.Second  // for one to end after it was asked to
	starts    = 3                // attempts, each on another port
)

// Program is a server process that is started again and again on the same port.
// Its methods are not safe for concurrent use.
type Program struct {
	// Name is what errors call it.
	Name string
	// Path of the executable.
	Path string
	// Args without the address; "--listen" and it are added.
	Args []string
	// Log is the file that its output is appended to; its folder is made.
	Log string

	addr    string // chosen by the first start
	running *process
}

// process is a running program.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
}

// Start runs p and returns once it serves. The first start chooses a port.
func (p *Program) Start(ctx context.Context) error {
	if p.addr != "" {
		pr, err := p.startAt(ctx, p.addr)
		p.running = pr
		return err
	}
	var last error
	for range starts {
		addr, err := choosePort(ctx)
		if err != nil {
			return err
		}
		if p.running, last = p.startAt(ctx, addr); last == nil {
			p.addr = addr
			return nil
		}
		if ctx.Err() != nil {
			break
		}
	}
	return last
}

// Crash ends p as kill -9 does, and starts it again after a while.
func (p *Program) Crash(ctx context.Context, away time.Duration) error {
	p.running.kill()
	p.running = nil
	back := time.NewTimer(away)
	defer back.Stop()
	select {
	case <-back.C:
		return p.Start(ctx)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Stop asks p to end, kills it when it does not, and returns when it is gone. It
// does nothing on a nil or stopped Program.
func (p *Program) Stop() {
	if p != nil && p.running != nil {
		p.running.stop()
		p.running = nil
	}
}

// Addr is where p listens; empty before the first Start.
func (p *Program) Addr() string { return p.addr }

// PID is the process's id; 0 when it does not run.
func (p *Program) PID() int {
	if p.running == nil {
		return 0
	}
	return p.running.cmd.Process.Pid
}

func (p *Program) startAt(ctx context.Context, addr string) (*process, error) {
	pr, err := p.spawn(ctx, addr)
	if err != nil {
		return nil, fmt.Errorf("cannot start %s: %w", p.Name, err)
	}
	if err := pr.awaitHealth(ctx, addr); err != nil {
		pr.kill()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, fmt.Errorf("%s did not come up (%w); its last line: %s", p.Name, err, lastLine(p.Log))
	}
	return pr, nil
}

// spawn starts the process. The thread that starts it lives as long as the
// process does, because Linux ends a child with the thread that asked for it.
func (p *Program) spawn(ctx context.Context, addr string) (*process, error) {
	if err := os.MkdirAll(filepath.Dir(p.Log), 0o700); err != nil {
		return nil, err
	}
	log, err := os.OpenFile(p.Log, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, p.Path, append(p.Args, "--listen", addr)...) //nolint:gosec // our own executable
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = ownEnvironment()
	endWithParent(cmd)

	pr := &process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(pr.done)
		defer func() { _ = log.Close() }() // the process has its own descriptor
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // most are killed; how it ended tells nothing
		}
	}()
	return pr, <-started
}

// awaitHealth returns once the process answers on addr, or has ended.
func (pr *process) awaitHealth(ctx context.Context, addr string) error {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	go func() {
		select {
		case <-pr.done:
			cancel()
		case <-ctx.Done():
		}
	}()
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()), QuickReconnect())
	if err != nil {
		return err
	}
	_, err = healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{}, grpc.WaitForReady(true))
	select {
	case <-pr.done:
		err = errors.New("it ended") // whoever answered is somebody else
	default:
	}
	return errors.Join(err, conn.Close())
}

// kill ends the process as kill -9 does and returns when it is gone.
func (pr *process) kill() {
	_ = pr.cmd.Process.Kill() // it may have ended by itself
	<-pr.done
}

// stop asks the process to end, and kills it when it does not.
func (pr *process) stop() {
	if pr.cmd.Process.Signal(os.Interrupt) == nil {
		select {
		case <-pr.done:
			return
		case <-time.After(stopTime):
		}
	}
	pr.kill()
}

// QuickReconnect shortens gRPC's waits between connections, which suit the
// internet, to what suits processes on one machine.
func QuickReconnect() grpc.DialOption {
	return grpc.WithConnectParams(grpc.ConnectParams{
		Backoff:           backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 200 * time.Millisecond},
		MinConnectTimeout: time.Second,
	})
}

// ownEnvironment is this process's without the settings of dedupd: a child gets
// its flags from its parent alone.
func ownEnvironment() []string {
	var env []string
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "DEDUPD_") {
			env = append(env, e)
		}
	}
	return env
}

// choosePort finds a loopback address that is free now, below the ports that
// systems hand out by themselves, so that it is still free for a process that
// comes back after a kill.
func choosePort(ctx context.Context) (string, error) {
	const low, count, tries = 20_000, 12_000, 50
	var lc net.ListenConfig
	var last error
	for range tries {
		addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(low+rand.IntN(count))) //nolint:gosec // ports are no secrets
		lis, err := lc.Listen(ctx, "tcp", addr)
		if err == nil {
			return addr, lis.Close()
		}
		last = err
	}
	return "", fmt.Errorf("no free port on 127.0.0.1: %w", last)
}

func lastLine(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	lines := bytes.Split(bytes.TrimSpace(text), []byte{'\n'})
	return string(lines[len(lines)-1])
}
