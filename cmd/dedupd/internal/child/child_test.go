package child

import (
	"context"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
)

// TestMain lets this very test program be the child: "serve --listen ADDR"
// answers health checks, "fail --listen ADDR" ends at once.
func TestMain(m *testing.M) {
	if len(os.Args) == 4 && os.Args[2] == "--listen" {
		os.Exit(beChild(os.Args[1], os.Args[3]))
	}
	goleak.VerifyTestMain(m)
}

func beChild(mode, addr string) int {
	if mode != "serve" || os.Getenv("DEDUPD_TEST") != "" {
		_, _ = os.Stderr.WriteString("first line\nthis child does not serve\n")
		return 1
	}
	lis, err := net.Listen("tcp", addr)
	if err != nil {
		return 1
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	s := grpc.NewServer()
	healthv1.RegisterHealthServer(s, health.NewServer())
	defer context.AfterFunc(ctx, s.Stop)()
	if s.Serve(lis) != nil {
		return 1
	}
	return 0
}

func program(t *testing.T, mode string) *Program {
	t.Helper()
	path, err := os.Executable()
	require.NoError(t, err)
	p := &Program{Name: "the child", Path: path, Args: []string{mode}, Log: filepath.Join(t.TempDir(), "log", "child.log")}
	t.Cleanup(p.Stop)
	return p
}

func TestAChildComesBackOnItsPortAfterACrash(t *testing.T) { // not parallel: sets a variable of the process
	t.Setenv("DEDUPD_TEST", "children inherit no settings of dedupd")
	p := program(t, "serve")
	require.Zero(t, p.PID())
	require.NoError(t, p.Start(t.Context()))
	addr, pid := p.Addr(), p.PID()
	require.NotEmpty(t, addr)
	require.NoError(t, p.Crash(t.Context(), time.Millisecond))
	require.Equal(t, addr, p.Addr())
	require.NotEqual(t, pid, p.PID())
	p.Stop()
	require.Zero(t, p.PID())
	_, err := net.Dial("tcp", addr)
	require.Error(t, err, "it is gone")
}

func TestAChildThatEndsIsReportedWithItsLastLine(t *testing.T) {
	t.Parallel()
	err := program(t, "fail").Start(t.Context())
	require.ErrorContains(t, err, "the child did not come up")
	require.ErrorContains(t, err, "its last line: this child does not serve")
}

func TestAChildThatCannotBeStartedIsAnError(t *testing.T) {
	t.Parallel()
	p := program(t, "serve")
	p.Path = filepath.Join(t.TempDir(), "nothing")
	require.ErrorContains(t, p.Start(t.Context()), "cannot start the child")
	p.Stop()
}

func TestAChildEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	p := program(t, "serve")
	require.NoError(t, p.Start(ctx))
	running := p.running
	cancel()
	<-running.done
	require.ErrorIs(t, p.Crash(ctx, time.Hour), context.Canceled)
}
