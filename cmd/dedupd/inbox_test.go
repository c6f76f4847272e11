package main

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/dedupd/dedupd/cmd/dedupd/internal/child"
	demov1 "github.com/dedupd/dedupd/gen/dedup/demo/v1"
	"github.com/dedupd/dedupd/interceptors"
	"github.com/dedupd/dedupd/interceptors/inbox/pgxinbox"
)

// matrixTime bounds the matrix: far more than its leases and waits take.
const matrixTime = 2 * time.Minute

// matrix is what its cases share.
type matrix struct {
	dedupd string
	ledger string
	pool   *pgxpool.Pool
	other  demov1.PaymentsServiceClient // another replica of the service, never harmed
}

// crash is one case of the matrix.
type crash struct {
	first  string // where an earlier process is killed: "" for none
	at     string // where the process is harmed
	signal syscall.Signal
}

func (c crash) name() string {
	name := map[syscall.Signal]string{syscall.SIGKILL: "kill ", syscall.SIGSTOP: "stop "}[c.signal] + c.at
	if c.first != "" {
		name += " the reconciler of a run killed " + c.first
	}
	return name
}

// crashes are all places between two statements of mark, effect, commit and
// Complete, and of the reconciler that comes after, with and without an effect to
// find.
func crashes() []crash {
	var all []crash
	for _, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGSTOP} {
		for first, points := range map[string][]string{
			"": {
				"before begin", "before settings", "before mark", "before effect", "before done", "before commit",
				"before Complete", "after Complete",
			},
			"before commit": {
				"before plant's begin", "before plant's settings", "before plant", "before plant's commit",
				"before BeginRun", "after BeginRun", "before mark", "before commit", "before Complete",
			},
			"before Complete": {"before plant", "before plant's commit", "before Complete"},
		} {
			for _, at := range points {
				all = append(all, crash{first: first, at: at, signal: signal})
			}
		}
	}
	return all
}

// A05 A11 B02: the service is killed, or stands still past its lease, between every
// two statements: one effect, and every caller gets the one answer, by itself.
func TestInboxSettlesEveryCrashAndPauseByItself(t *testing.T) {
	t.Parallel()
	m, cases := newMatrix(t), crashes()
	for _, c := range cases {
		if c.first != "" {
			m.harmed(t, c.name(), c.first, syscall.SIGKILL).over()
		}
	}
	harmed, retries := make([]harm, len(cases)), make([]chan told, len(cases))
	for i, c := range cases {
		harmed[i], retries[i] = m.harmed(t, c.name(), c.at, c.signal), make(chan told, 1)
	}
	ctx, cancel := context.WithTimeout(t.Context(), matrixTime)
	t.Cleanup(cancel)
	for i, c := range cases {
		go func() { retries[i] <- chargeOrder(ctx, m.other, c.name()) }()
	}
	for i, c := range cases { //nolint:paralleltest // the cases were run at once, what is left is to look
		t.Run(c.name(), func(t *testing.T) {
			retry := <-retries[i]
			require.NoError(t, retry.err, "the retry is answered, nobody had to help")
			first := harmed[i].over()
			if c.signal == syscall.SIGSTOP {
				require.NoError(t, first.err)
				require.Equal(t, retry.id, first.id, "and so is the caller of the process that stood still")
			}
			rows, err := m.pool.Query(ctx, "SELECT id FROM charges WHERE orders = $1", c.name())
			require.NoError(t, err)
			ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
			require.NoError(t, err)
			require.Equal(t, []string{retry.id}, ids, "one effect, whose answer it is")
		})
	}
}

func newMatrix(t *testing.T) *matrix {
	t.Helper()
	m := &matrix{dedupd: serve(t, "--in-memory").grpc, ledger: emptyDatabase(t)}
	var err error
	m.pool, err = pgxpool.New(t.Context(), m.ledger)
	require.NoError(t, err)
	t.Cleanup(m.pool.Close)
	require.NoError(t, pgxinbox.EnsureTable(t.Context(), m.pool))
	_, err = m.pool.Exec(t.Context(), chargesTable)
	require.NoError(t, err)
	m.other = dialPayments(t, m.start(t).Addr())
	return m
}

// harm is a process that was killed or stopped in the middle of a call.
type harm struct {
	// over lets a stopped process go on, and returns what its caller was told.
	over func() told
}

// told is the answer to a charge.
type told struct {
	id  string
	err error
}

// harmed starts a process, calls it, and sends it the signal at the point.
func (m *matrix) harmed(t *testing.T, order, at string, signal syscall.Signal) harm {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, lis.Close()) }()
	p := m.start(t, "--at", at, "--tell", lis.Addr().String())
	ctx, cancel := context.WithTimeout(t.Context(), matrixTime)
	t.Cleanup(cancel)
	payments, answered := dialPayments(t, p.Addr()), make(chan told, 1)
	go func() { answered <- chargeOrder(ctx, payments, order) }()
	defer context.AfterFunc(ctx, func() { _ = lis.Close() })()
	conn, err := lis.Accept()
	require.NoError(t, err, "the process never came to the point")
	require.NoError(t, syscall.Kill(p.PID(), signal))
	return harm{over: func() told {
		if signal == syscall.SIGSTOP {
			require.NoError(t, syscall.Kill(p.PID(), syscall.SIGCONT))
		} else {
			cancel() // its caller would go on asking it
		}
		require.NoError(t, conn.Close())
		return <-answered
	}}
}

// start starts a replica of the service.
func (m *matrix) start(t *testing.T, args ...string) *child.Program {
	t.Helper()
	path, err := os.Executable()
	require.NoError(t, err)
	p := &child.Program{
		Name: "the service", Path: path, Log: filepath.Join(t.TempDir(), "log"),
		Args: append([]string{inboxService, "--dedupd", m.dedupd, "--ledger", m.ledger}, args...),
	}
	t.Cleanup(p.Stop)
	require.NoError(t, p.Start(context.WithoutCancel(t.Context())))
	return p
}

func dialPayments(t *testing.T, addr string) demov1.PaymentsServiceClient {
	t.Helper()
	options, err := interceptors.ClientOptions()
	require.NoError(t, err)
	conn, err := grpc.NewClient(addr, append(options, grpc.WithTransportCredentials(insecure.NewCredentials()), child.QuickReconnect())...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	return demov1.NewPaymentsServiceClient(conn)
}

func chargeOrder(ctx context.Context, payments demov1.PaymentsServiceClient, order string) told {
	key, err := interceptors.Key("charge", "order", order)
	if err != nil {
		return told{err: err}
	}
	resp, err := payments.Charge(ctx, &demov1.ChargeRequest{Order: order, Amount: 1200, Currency: "EUR"}, interceptors.WithKey(key))
	return told{resp.GetChargeId(), err}
}
