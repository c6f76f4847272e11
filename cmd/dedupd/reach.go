package main

import (
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// met says what a connection met at addr where there is no gRPC server to talk to;
// empty where that is not known. gRPC has only words for it; reach_test.go holds
// those to servers of each kind.
func met(addr string, st *status.Status) string {
	if st.Code() != codes.Unavailable && st.Code() != codes.DeadlineExceeded {
		return ""
	}
	text := st.Message()
	_, handshake, failed := strings.Cut(strings.TrimSuffix(text, `"`), "authentication handshake failed: ")
	switch {
	case strings.Contains(text, "looked like an HTTP/1"):
		return "what listens at " + addr + " speaks HTTP/1, not gRPC"
	case strings.Contains(text, "tls: certificate required"), strings.Contains(text, "tls: bad certificate"), strings.Contains(text, "tls: unknown certificate"):
		return "what listens at " + addr + wantsCertificate
	case strings.Contains(text, "server preface: EOF"), strings.Contains(text, "write: broken pipe"), strings.Contains(text, "connection reset by peer"):
		return "what listens at " + addr + hangsUp
	case strings.Contains(text, "server preface"):
		return "what listens at " + addr + " speaks no gRPC"
	case strings.Contains(text, "does not look like a TLS handshake"):
		return "what listens at " + addr + " speaks plain text, not TLS"
	case failed:
		return "TLS with " + addr + " fails: " + printable([]byte(handshake))
	case strings.Contains(text, "produced zero addresses"), strings.Contains(text, "no such host"):
		return "no host has the name in " + addr
	case strings.Contains(text, "connection refused"):
		return "nobody listens at " + addr
	case strings.Contains(text, "waiting for connections"):
		return "what listens at " + addr + " takes the connection and says nothing, or nothing is there"
	}
	return ""
}

// What a server does that means something else of dedupd than of any other.
const (
	hangsUp          = " hangs up: it speaks no gRPC, or only by TLS"
	wantsCertificate = " wants to see a certificate by an authority of its own"
)

// defaultPort is that of `serve --listen`.
const defaultPort = "7480"

// notReached says why dedupd cannot be reached at addr, and what to do.
func notReached(addr string, st *status.Status) string {
	what := met(addr, st)
	switch {
	case strings.HasPrefix(what, "nobody"), what == "":
		return "cannot reach dedupd at " + addr + "; start it with `dedupd serve`, or name another address with --addr"
	case strings.HasPrefix(what, "no host"):
		return what + "; name another address with --addr"
	case strings.HasSuffix(what, hangsUp):
		return what + "; a dedupd with certificates is reached with --addr-ca or --addr-tls, and where it asks for one with --addr-cert and --addr-key"
	case strings.HasSuffix(what, wantsCertificate):
		return what + "; show one with --addr-cert and --addr-key"
	case strings.HasPrefix(what, "TLS with"):
		return what + "; name the authority of its certificate with --addr-ca"
	}
	host, _, _ := net.SplitHostPort(addr) // connect has read it
	return what + "; --addr takes dedupd's gRPC address, " + net.JoinHostPort(host, defaultPort) + " unless `dedupd serve` was given another --listen"
}

// reconnect is how soon a lost server is tried again: people wait for it.
func reconnect() grpc.DialOption {
	wait := backoff.DefaultConfig
	wait.BaseDelay, wait.MaxDelay = 200*time.Millisecond, 2*time.Second
	return grpc.WithConnectParams(grpc.ConnectParams{Backoff: wait, MinConnectTimeout: 5 * time.Second})
}

// patience keeps a command that looks again and again going while dedupd is away,
// once it was there: so that a restart does not end it, and a wrong address does.
type patience struct {
	addr       string
	w          io.Writer
	seen, away bool
}

// outlasts reports whether to look again after err. It says once that dedupd is
// away, and once that it is back. A screen that cannot be written to is no reason to
// stop looking.
func (p *patience) outlasts(err error) bool {
	if err == nil {
		if p.away {
			_, _ = fmt.Fprintln(p.w, "dedupd at "+p.addr+" answers again")
		}
		p.seen, p.away = true, false
		return false
	}
	if code := status.Code(err); !p.seen || code != codes.Unavailable && code != codes.DeadlineExceeded {
		return false
	}
	if !p.away {
		what, _, _ := strings.Cut(explain(err), ";")
		_, _ = fmt.Fprintln(p.w, what+"; going on once it answers again, Ctrl-C ends")
	}
	p.away = true
	return true
}
