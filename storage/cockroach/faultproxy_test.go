package cockroach

import (
	"context"
	"net"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"
)

// effect is what a faultProxy does to a statement.
type effect struct {
	name  string
	code  string // of an error response
	fatal bool   // the server ends the session
	acted bool   // the server executes the statement first
	stall bool   // no answer at all
}

// A cut has no code.
var effects = []effect{
	{name: "40001", code: "40001"},
	{name: "40P01", code: "40P01"},
	{name: "40003 before the server acted", code: "40003"},
	{name: "40003 after the server acted", code: "40003", acted: true},
	{name: "57P01 before the server acted", code: "57P01", fatal: true},
	{name: "57P01 after the server acted", code: "57P01", fatal: true, acted: true},
	{name: "08006 before the server acted", code: "08006"},
	{name: "08006 after the server acted", code: "08006", acted: true},
	{name: "a cut before the server acted"},
	{name: "a cut after the server acted", acted: true},
}

// faultProxy stands between a store and its database and speaks the protocol of
// both. It does one effect to statements that hold a text.
type faultProxy struct {
	url    string
	target *pgx.ConnConfig
	ended  context.Context
	end    context.CancelFunc // ends all sessions, also stalled ones

	mu      sync.Mutex
	text    string
	effect  effect
	left    int // how often still
	hits    int
	refused int // connections to refuse still
}

func newFaultProxy(tb testing.TB, dsn string) *faultProxy {
	tb.Helper()
	target, err := pgx.ParseConfig(dsn)
	require.NoError(tb, err)
	dir := tb.TempDir()
	u, err := url.Parse(dsn)
	require.NoError(tb, err)
	q := u.Query()
	q.Set("host", dir)
	q.Set("sslmode", "disable")
	u.RawQuery, u.Host = q.Encode(), ""
	p := &faultProxy{url: u.String(), target: target}
	listener, err := net.Listen("unix", filepath.Join(dir, ".s.PGSQL.5432"))
	require.NoError(tb, err)
	p.ended, p.end = context.WithCancel(context.Background())
	var conns sync.WaitGroup
	conns.Go(func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			conns.Go(func() { p.serve(c) })
		}
	})
	tb.Cleanup(func() {
		p.end()
		require.NoError(tb, listener.Close())
		conns.Wait()
	})
	return p
}

// inject does e to the next n statements that hold text.
func (p *faultProxy) inject(text string, e effect, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.text, p.effect, p.left, p.hits = text, e, n, 0
}

// refuse closes the next n connections at once.
func (p *faultProxy) refuse(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refused = n
}

func (p *faultProxy) refuses() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refused == 0 {
		return false
	}
	p.refused--
	return true
}

func (p *faultProxy) hit() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.hits
}

func (p *faultProxy) due(statements []string) (effect, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.left == 0 || !slices.ContainsFunc(statements, func(s string) bool { return strings.Contains(" "+s+" ", p.text) }) {
		return effect{}, false
	}
	p.left--
	p.hits++
	return p.effect, true
}

// proxied is one session.
type proxied struct {
	client   *pgproto3.Backend
	server   *pgproto3.Frontend
	toServer net.Conn
	held     []byte // what the client sent since its last answer
	prepared map[string]string
	status   byte
}

// forward sends the server what was held.
func (s *proxied) forward() bool {
	_, err := s.toServer.Write(s.held)
	s.held = nil
	return err == nil
}

func (p *faultProxy) serve(client net.Conn) {
	defer client.Close() //nolint:errcheck // a test connection
	defer context.AfterFunc(p.ended, func() { _ = client.Close() })()
	if p.refuses() {
		return
	}
	network, address := pgconnAddress(p.target)
	server, err := net.Dial(network, address)
	if err != nil {
		return
	}
	defer server.Close() //nolint:errcheck // a test connection
	s := &proxied{client: pgproto3.NewBackend(client, client), server: pgproto3.NewFrontend(server, server), toServer: server, prepared: map[string]string{}}
	startup, err := s.client.ReceiveStartupMessage()
	if err != nil {
		return
	}
	s.server.Send(startup)
	if s.server.Flush() != nil {
		return
	}
	if _, cancel := startup.(*pgproto3.CancelRequest); cancel || !s.answer(true) {
		return
	}
	for p.step(s) {
		continue
	}
}

func pgconnAddress(c *pgx.ConnConfig) (network, address string) {
	if strings.HasPrefix(c.Host, "/") {
		return "unix", filepath.Join(c.Host, ".s.PGSQL.5432")
	}
	return "tcp", net.JoinHostPort(c.Host, strconv.Itoa(int(c.Port)))
}

// step passes on what the client sends up to a point where it awaits an answer,
// and the answer.
func (p *faultProxy) step(s *proxied) bool {
	var executed []string
	bound := ""
	for {
		msg, err := s.client.Receive()
		if err != nil {
			return false
		}
		switch m := msg.(type) {
		case *pgproto3.Parse:
			s.prepared[m.Name] = m.Query
		case *pgproto3.Bind:
			bound = s.prepared[m.PreparedStatement]
		case *pgproto3.Execute:
			executed = append(executed, bound)
		case *pgproto3.Query:
			executed = append(executed, m.String)
		}
		if s.held, err = msg.Encode(s.held); err != nil {
			return false
		}
		switch msg.(type) {
		case *pgproto3.Terminate:
			s.forward()
			return false
		case *pgproto3.Sync, *pgproto3.Query:
			if e, due := p.due(executed); due {
				return p.fault(s, e)
			}
			return s.forward() && s.answer(true)
		}
	}
}

func (p *faultProxy) fault(s *proxied, e effect) bool {
	if e.stall {
		<-p.ended.Done()
		return false
	}
	if e.acted && (!s.forward() || !s.answer(false)) {
		return false
	}
	s.held = nil
	if e.code == "" {
		return false
	}
	severity := "ERROR"
	if e.fatal {
		severity = "FATAL"
	}
	s.client.Send(&pgproto3.ErrorResponse{Severity: severity, Code: e.code, Message: "injected"})
	if !e.fatal {
		status := s.status
		if status == 'T' {
			status = 'E'
		}
		s.client.Send(&pgproto3.ReadyForQuery{TxStatus: status})
	}
	return s.client.Flush() == nil && !e.fatal
}

// answer reads the server's answer, and passes it on where told to.
func (s *proxied) answer(pass bool) bool {
	for {
		msg, err := s.server.Receive()
		if err != nil {
			return false
		}
		if pass {
			s.client.Send(msg)
		}
		if ready, ok := msg.(*pgproto3.ReadyForQuery); ok {
			s.status = ready.TxStatus
			return !pass || s.client.Flush() == nil
		}
	}
}
