package main

import (
	"bufio"
	"encoding/hex"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// answering is the address of a server that does what do says with every connection.
func answering(t *testing.T, do func(net.Conn)) string {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // loopback
	require.NoError(t, err)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			conn, err := lis.Accept()
			if err != nil {
				return
			}
			do(conn)
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() {
		require.NoError(t, lis.Close())
		<-ended
	})
	return lis.Addr().String()
}

// gRPC has only words for what it meets; a new version of it may change them.
func TestAWrongAddressIsToldByWhatIsThere(t *testing.T) {
	t.Parallel()
	s := serve(t, "--in-memory")
	secured := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(secured.Close)
	web := strings.TrimPrefix(s.http, "http://")
	other := answering(t, func(c net.Conn) {
		_, _ = c.Write([]byte("-ERR unknown command\r\n"))
		_, _ = io.Copy(io.Discard, c) // who hangs up first is another case
	})
	mute := answering(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
	const use = "; --addr takes dedupd's gRPC address, 127.0.0.1:7480 unless `dedupd serve` was given another --listen\n"
	for addr, want := range map[string]string{
		web:                              "dedupd: what listens at " + web + " speaks HTTP/1, not gRPC" + use,
		other:                            "dedupd: what listens at " + other + " speaks no gRPC" + use,
		mute:                             "dedupd: what listens at " + mute + " takes the connection and says nothing, or nothing is there" + use,
		"127.0.0.1:1":                    "dedupd: cannot reach dedupd at 127.0.0.1:1; start it with `dedupd serve`, or name another address with --addr\n",
		"no-such-host.invalid:7480":      "dedupd: no host has the name in no-such-host.invalid:7480; name another address with --addr\n",
		secured.Listener.Addr().String(): "hangs up: it speaks no gRPC, or only by TLS; a dedupd with certificates is reached with --addr-ca or --addr-tls",
	} {
		_, stderr := exits(t, exitFailed, "keys", "list", "--addr", addr, "--timeout", "3s")
		require.Contains(t, stderr, want, addr)
	}
	for _, port := range []string{"99999", "x", "74 80"} {
		_, stderr := exits(t, exitUsage, "keys", "list", "--addr", "127.0.0.1:"+port)
		require.Contains(t, stderr, "it takes host:port")
	}
	for want, flags := range map[string][]string{"speaks HTTP/1, not gRPC": {"--plaintext"}, "speaks plain text, not TLS": {"--tls"}} {
		id := parkOrder(t, s.deadLetters(t), want, nil)
		stdout, _ := exits(t, exitFailed, append([]string{"dlq", "replay", "--namespace", "shop", "--target", web, "--yes", "--addr", s.grpc, "-o", "json"}, flags...)...)
		require.Contains(t, stdout, want)
		exits(t, exitDone, "dlq", "discard", hex.EncodeToString(id), "--note", "n", "--yes", "--addr", s.grpc)
	}
	_, stderr := exits(t, exitFailed, "policy", "explain", "--live", "--addr", web)
	require.Equal(t, "dedupd: what listens at "+web+" speaks HTTP/1, not gRPC; name another address, or give a file descriptor set instead\n", stderr)
}

// A restart of dedupd is when somebody watches it.
func TestWhatIsWatchedGoesOnOverARestart(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{
		"watch": {"keys", "watch", "k", "--namespace", "shop", "--operation", operation, "--caller", "acme", "--interval", "100ms"},
		"top":   {"top", "--interval", "200ms", "-o", "json"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			s := serve(t, "--data", dir)
			cmd := command(t, append(args, "--addr", s.grpc)...)
			stdout, err := cmd.StdoutPipe()
			require.NoError(t, err)
			stderr, err := cmd.StderrPipe()
			require.NoError(t, err)
			require.NoError(t, cmd.Start())
			t.Cleanup(func() { _ = cmd.Process.Kill() }) // if the test fails
			out, said := bufio.NewReader(stdout), bufio.NewReader(stderr)
			line := func(from *bufio.Reader) string {
				text, err := from.ReadString('\n')
				require.NoError(t, err)
				return text
			}
			line(out)
			s.kill(t)
			require.Equal(t, "cannot reach dedupd at "+s.grpc+"; going on once it answers again, Ctrl-C ends\n", line(said))
			s = serve(t, "--data", dir, "--listen", s.grpc)
			require.Equal(t, "dedupd at "+s.grpc+" answers again\n", line(said))
			if name == "top" {
				line(out)
				require.NoError(t, cmd.Process.Signal(os.Interrupt))
			} else {
				complete(t.Context(), t, s.dial(t), "k")
			}
			rest, err := io.ReadAll(out)
			require.NoError(t, err)
			require.NoError(t, cmd.Wait())
			require.Equal(t, name == "watch", strings.Contains(string(rest), "completed"))
		})
	}
}

func TestPatienceEndsWithWhatDoesNotPass(t *testing.T) {
	t.Parallel()
	away := overWire("host:1", status.Error(codes.Unavailable, "connection refused"))
	var said strings.Builder
	p := patience{addr: "host:1", w: &said}
	require.False(t, p.outlasts(away), "a wrong address is an error")
	require.False(t, p.outlasts(nil))
	for range 3 {
		require.True(t, p.outlasts(away))
	}
	require.Equal(t, 1, strings.Count(said.String(), "\n"), "it is said once")
	require.False(t, p.outlasts(overWire("host:1", status.Error(codes.Unimplemented, "another service"))))
	require.False(t, p.outlasts(errors.New("the screen is gone")))
	require.False(t, p.outlasts(nil))
	require.False(t, p.outlasts(nil))
	require.Equal(t, "cannot reach dedupd at host:1; going on once it answers again, Ctrl-C ends\ndedupd at host:1 answers again\n", said.String())
}
