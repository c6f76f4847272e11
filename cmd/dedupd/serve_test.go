package main

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
)

func TestServeSaysWhereEverythingIsAndWhatToTypeNext(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "made", "by", "serve")
	s := serve(t, "--data", dir)
	require.Contains(t, s.greeting, "data  "+dir)
	require.Contains(t, s.greeting, "keep  outcomes for 7d, then refuse repeats for 30d")
	next := find(t, s.greeting, `next  dedupd (keys list --addr \S+)`)
	stdout, _ := exits(t, exitDone, strings.Fields(next)...)
	require.Equal(t, "no records\n", stdout)
	for _, path := range []string{"/healthz", "/readyz", "/metrics"} {
		reply, err := http.Get(s.http + path)
		require.NoError(t, err)
		body, err := io.ReadAll(reply.Body)
		require.NoError(t, err)
		require.NoError(t, reply.Body.Close())
		require.Equal(t, http.StatusOK, reply.StatusCode, path)
		if path == "/metrics" {
			require.Contains(t, string(body), "go_goroutines", "what is looked at when memory runs out")
		}
	}
	http.DefaultClient.CloseIdleConnections()
	require.Equal(t, exitDone, s.ends(t, syscall.SIGTERM))
}

func TestServeInMemorySaysLoudlyThatNothingSurvives(t *testing.T) {
	t.Parallel()
	s := serve(t, "--in-memory")
	require.Contains(t, s.greeting, "IN MEMORY: nothing survives")
	complete(t.Context(), t, s.dial(t), "k")
	require.Equal(t, exitDone, s.ends(t, os.Interrupt))
}

// B12: what was acknowledged survives kill -9, and neither look-ups nor replays
// move its end.
func TestServeKilledAndStartedAgainReplaysWhatWasCompleted(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := serve(t, "--data", dir)
	complete(t.Context(), t, s.dial(t), "k")
	before := lookup(t, s.dial(t), "k")
	s.kill(t)

	s = serve(t, "--data", dir)
	dedup := s.dial(t)
	reply, err := dedup.Reserve(t.Context(), reserveRequest("k", 2))
	require.NoError(t, err)
	require.Empty(t, cmp.Diff(outcomeOf("k"), reply.GetCompleted().GetOutcome(), protocmp.Transform()))
	after := lookup(t, dedup, "k")
	require.Equal(t, dedupv1.State_STATE_COMPLETED, after.GetState())
	require.Equal(t, before.GetEnds().GetExpiresAt().AsTime(), after.GetEnds().GetExpiresAt().AsTime())
	require.Equal(t, 7*day, after.GetEnds().GetExpiresAt().AsTime().Sub(after.GetCompletedAt().AsTime()))
	require.Equal(t, exitDone, s.ends(t, syscall.SIGTERM))
}

func lookup(t *testing.T, dedup dedupv1.DedupServiceClient, key string) *dedupv1.RecordInfo {
	t.Helper()
	reply, err := dedup.Lookup(t.Context(), &dedupv1.LookupRequest{Record: &dedupv1.LookupRequest_Identity{Identity: identity(key)}})
	require.NoError(t, err)
	return reply.GetRecord()
}

func TestServeToldToStopDoesNotWaitForHeldCallers(t *testing.T) {
	t.Parallel()
	// A drain that waited for the caller below would outlast the test.
	s := serve(t, "--data", t.TempDir(), "--drain", "1h")
	dedup := s.dial(t)
	_, err := dedup.Reserve(t.Context(), reserveRequest("k", 1))
	require.NoError(t, err)
	answered := make(chan struct{})
	asking := make(chan struct{})
	go func() {
		defer close(answered)
		request := reserveRequest("k", 2)
		request.Wait = durationpb.New(30 * time.Second)
		close(asking)
		// IN_PROGRESS, or turned away if the order to stop came first.
		reply, err := dedup.Reserve(context.Background(), request)
		if err == nil && reply.GetInProgress() == nil {
			t.Errorf("the held caller was answered %T", reply.GetAnswer())
		}
	}()
	<-asking
	lookup(t, dedup, "k")
	require.Equal(t, exitDone, s.ends(t, syscall.SIGTERM))
	<-answered
}

func TestServeRefusesADirectoryThatAnotherHasOpen(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	serve(t, "--data", dir)
	_, stderr := exits(t, exitFailed, "serve", "--data", dir, "--listen", "127.0.0.1:0", "--http", "")
	require.Contains(t, stderr, "another dedupd has "+dir+" open; stop it first, or give this one another --data")
}

func TestServeRefusesAPortThatIsInUse(t *testing.T) {
	t.Parallel()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, lis.Close()) }()
	addr := lis.Addr().String()
	dir := t.TempDir()
	_, stderr := exits(t, exitFailed, "serve", "--data", dir, "--listen", addr, "--http", "")
	require.Contains(t, stderr, "dedupd: "+addr+" is in use by another process; stop it, or choose another address with --listen")
	_, stderr = exits(t, exitFailed, "serve", "--data", dir, "--listen", "127.0.0.1:0", "--http", addr)
	require.Contains(t, stderr, "choose another address with --http")
	require.NotContains(t, stderr, "goroutine")
}

func TestServeRefusesADirectoryThatCannotBeWrittenTo(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	_, stderr := exits(t, exitFailed, "serve", "--data", filepath.Join(file, "data"), "--listen", "127.0.0.1:0", "--http", "")
	require.Contains(t, stderr, "dedupd: cannot open the store in")
	if runtime.GOOS != "linux" {
		return
	}
	// Not even root makes directories there.
	_, stderr = exits(t, exitFailed, "serve", "--data", "/sys/dedupd", "--listen", "127.0.0.1:0", "--http", "")
	require.Contains(t, stderr, "cannot write to /sys/dedupd; give --data a directory that this user may write to")
}

func TestServeKeepsDataInTheUsersStateDirectory(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", "/somewhere/state")
	dir, err := stateDir()
	require.NoError(t, err)
	require.Equal(t, "/somewhere/state/dedupd", dir)
	t.Setenv("XDG_STATE_HOME", "not absolute")
	t.Setenv("HOME", "/home/of")
	dir, err = stateDir()
	require.NoError(t, err)
	require.Equal(t, "/home/of/.local/state/dedupd", dir)
	t.Setenv("HOME", "")
	_, err = stateDir()
	require.ErrorContains(t, err, "name a directory with --data")
}

// A store that has stopped serves nobody, however healthy its process looks.
func TestServeEndsWhenItsStoreHasStoppedSoThatItIsStartedAgain(t *testing.T) {
	t.Parallel()
	var full atomic.Bool
	disk := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if full.Load() && op.Kind == errorfs.OpFileWrite {
			return syscall.ENOSPC
		}
		return nil
	}))
	var cmd commandLine
	parser, err := newParser(&cmd, streams{}, nil)
	require.NoError(t, err)
	_, err = parser.Parse([]string{"serve", "--data", "/data", "--listen", "127.0.0.1:0", "--http", "", "--log-format", "text"})
	require.NoError(t, err)
	cmd.Serve.disk = disk
	greeting, out := io.Pipe()
	var logged bytes.Buffer
	ended := make(chan error, 1)
	go func() { ended <- cmd.Serve.Run(t.Context(), streams{out: out, err: &logged}) }()
	text := make([]byte, 4096)
	n, err := greeting.Read(text)
	require.NoError(t, err)
	s := &served{grpc: find(t, string(text[:n]), `grpc  (\S+)`)}
	dedup := s.dial(t)
	complete(t.Context(), t, dedup, "before")

	full.Store(true)
	_, err = dedup.Reserve(t.Context(), reserveRequest("k", 1))
	require.Equal(t, codes.Unavailable, status.Code(err))
	err = <-ended
	require.EqualError(t, err, "the store in /data has stopped: the disk is full: free some space, then restart dedupd (writing 000002.log: no space left on device)")
	require.Equal(t, exitFailed, exitCode(err))
	require.Equal(t, 1, strings.Count(logged.String(), "level=ERROR msg=\"the store has stopped"), logged.String())
	require.Contains(t, logged.String(), "draining")

	cmd.Serve.LogLevel = slog.LevelError
	err = cmd.Serve.Run(t.Context(), streams{out: io.Discard, err: io.Discard})
	require.ErrorContains(t, err, "the disk is full: free some space")
}
