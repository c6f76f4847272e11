package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/durationpb"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
)

// binary is the program under test, built once by TestMain.
var binary string

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == inboxService {
		os.Exit(beInboxService(os.Args[2:]))
	}
	code, err := buildAndRun(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func buildAndRun(m *testing.M) (code int, err error) {
	dir, err := os.MkdirTemp("", "dedupd-test-")
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	binary = filepath.Join(dir, "dedupd")
	if out, err := exec.Command("go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
		return 1, fmt.Errorf("build: %w\n%s", err, out)
	}
	code = m.Run()
	if code == 0 {
		err = goleak.Find()
	}
	return code, err
}

// command is the binary with args, in an environment without settings of
// dedupd, in a temporary directory of the test.
func command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(binary, args...)
	cmd.Dir = t.TempDir()
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "DEDUPD_") {
			cmd.Env = append(cmd.Env, e)
		}
	}
	return cmd
}

// exits runs the binary to its end.
func exits(t *testing.T, want int, args ...string) (stdout, stderr string) {
	t.Helper()
	cmd := command(t, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		require.NoError(t, err)
	}
	require.Equal(t, want, cmd.ProcessState.ExitCode(), "stdout: %s\nstderr: %s", &out, &errs)
	return out.String(), errs.String()
}

// served is a running `dedupd serve`.
type served struct {
	cmd      *exec.Cmd
	greeting string
	grpc     string
	http     string
	rest     chan struct{} // closed when its stdout has ended
}

// serve starts a server on free ports and returns once it has said where.
func serve(t *testing.T, args ...string) *served {
	t.Helper()
	cmd := command(t, append([]string{"serve", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"}, args...)...)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	require.NoError(t, cmd.Start())
	s := &served{cmd: cmd, rest: make(chan struct{})}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // most tests have ended it
		<-s.rest
		_ = cmd.Wait()
	})
	lines := bufio.NewReader(stdout)
	for !strings.Contains(s.greeting, "\n  next") {
		line, err := lines.ReadString('\n')
		if err != nil {
			close(s.rest)
			require.NoError(t, cmd.Wait(), errs.String())
			require.NoError(t, err, errs.String())
		}
		s.greeting += line
	}
	go func() {
		defer close(s.rest)
		_, _ = io.Copy(io.Discard, lines) // nothing of interest follows
	}()
	s.grpc = find(t, s.greeting, `grpc  (\S+)`)
	s.http = find(t, s.greeting, `http  (https?://\S+)`)
	return s
}

// ends waits for the server's end and returns its exit code; -1 after a kill.
func (s *served) ends(t *testing.T, signal os.Signal) int {
	t.Helper()
	require.NoError(t, s.cmd.Process.Signal(signal))
	<-s.rest
	_ = s.cmd.Wait() // the code says it
	return s.cmd.ProcessState.ExitCode()
}

func (s *served) kill(t *testing.T) {
	t.Helper()
	require.Equal(t, -1, s.ends(t, syscall.SIGKILL))
}

func (s *served) dial(t *testing.T) dedupv1.DedupServiceClient {
	t.Helper()
	conn, err := grpc.NewClient(s.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	return dedupv1.NewDedupServiceClient(conn)
}

func find(t *testing.T, text, pattern string) string {
	t.Helper()
	m := regexp.MustCompile(pattern).FindStringSubmatch(text)
	require.NotNil(t, m, "no %s in %s", pattern, text)
	return m[1]
}

const operation = "/shop.v1.Payments/Charge"

func identity(key string) *dedupv1.Identity {
	return &dedupv1.Identity{Namespace: "shop", Operation: operation, Caller: []byte("acme"), Key: []byte(key)}
}

func reserveRequest(key string, attempt byte) *dedupv1.ReserveRequest {
	return &dedupv1.ReserveRequest{
		Identity:     identity(key),
		Fingerprints: []*dedupv1.Fingerprint{{Version: 1, Digest: []byte("digest of " + key)}},
		AttemptId:    bytes.Repeat([]byte{attempt}, 16),
		Lease:        durationpb.New(0),
	}
}

// complete reserves a key and completes it with a response of its own.
func complete(ctx context.Context, t *testing.T, dedup dedupv1.DedupServiceClient, key string) {
	t.Helper()
	request := reserveRequest(key, 1)
	reply, err := dedup.Reserve(ctx, request)
	require.NoError(t, err)
	require.NotNil(t, reply.GetGranted())
	_, err = dedup.Complete(ctx, &dedupv1.CompleteRequest{
		Identity: identity(key), AttemptId: request.GetAttemptId(), Fence: reply.GetGranted().GetFence(), Outcome: outcomeOf(key),
	})
	require.NoError(t, err)
}

func outcomeOf(key string) *dedupv1.Outcome {
	return &dedupv1.Outcome{Result: &dedupv1.Outcome_Response{Response: &dedupv1.Response{
		TypeUrl: "type.googleapis.com/shop.v1.Receipt", Value: []byte("receipt for " + key),
	}}}
}
