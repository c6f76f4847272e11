package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	demov1 "github.com/dedupd/dedupd/gen/dedup/demo/v1"
	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors"
	"github.com/dedupd/dedupd/interceptors/inbox"
	"github.com/dedupd/dedupd/interceptors/inbox/pgxinbox"
)

// This file is the service of the kill matrix: the test binary itself, started again
// with this first argument.
const inboxService = "inbox-service"

// chargesTable is the effect.
const chargesTable = "CREATE TABLE charges (id TEXT PRIMARY KEY, orders TEXT NOT NULL)"

// checkpoint is where the process is to be killed or stopped: it tells the test by
// dialing it, and goes on when the test hangs up.
type checkpoint struct {
	at   string // empty: nowhere
	tell string
	met  atomic.Bool
}

func (c *checkpoint) reach(point string) {
	if point != c.at || c.met.Swap(true) {
		return
	}
	conn, err := net.Dial("tcp", c.tell)
	if err != nil {
		return // the test is over
	}
	_, _ = conn.Read(make([]byte, 1)) // until it hangs up
	_ = conn.Close()
}

// TraceQueryStart names each statement of a transaction, as what comes before it.
func (c *checkpoint) TraceQueryStart(ctx context.Context, conn *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	session := conn.PgConn().CustomData()
	point := ""
	for _, known := range [][2]string{
		{"begin isolation level read committed", "plant's begin"},
		{"begin", "begin"},
		{"SET LOCAL lock_timeout", "plant's settings"},
		{"SET LOCAL idle", "settings"},
		{"/* dedupd inbox planted", "plant"},
		{"/* dedupd inbox marked", "mark"},
		{"INSERT INTO charges", "effect"},
		{"/* dedupd inbox done", "done"},
		{"commit", "commit"},
	} {
		if strings.HasPrefix(q.SQL, known[0]) {
			point = known[1]
			break
		}
	}
	switch {
	case strings.HasSuffix(point, "begin"):
		session["plants"] = point != "begin"
	case point == "commit" && session["plants"] == true:
		point = "plant's commit"
	}
	c.reach("before " + point)
	return ctx
}

func (c *checkpoint) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// call names the calls to dedupd.
func (c *checkpoint) call(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	name := method[strings.LastIndex(method, "/")+1:]
	c.reach("before " + name)
	err := invoke(ctx, method, req, reply, cc, opts...)
	if err == nil {
		c.reach("after " + name)
	}
	return err
}

// inboxPayments charges into PostgreSQL.
type inboxPayments struct {
	demov1.UnimplementedPaymentsServiceServer
	pool *pgxpool.Pool
}

func (p *inboxPayments) Charge(ctx context.Context, q *demov1.ChargeRequest) (*demov1.ChargeResponse, error) {
	return pgxinbox.Do(ctx, p.pool, func(ctx context.Context, tx pgx.Tx) (*demov1.ChargeResponse, error) {
		id := uuid.NewString()
		_, err := tx.Exec(ctx, "INSERT INTO charges (id, orders) VALUES ($1, $2)", id, q.GetOrder())
		return &demov1.ChargeResponse{ChargeId: id, Order: q.GetOrder(), Amount: q.GetAmount()}, err
	}, inbox.MaxTime(2*time.Second))
}

func beInboxService(args []string) int {
	flags := flag.NewFlagSet(inboxService, flag.ContinueOnError)
	c := &checkpoint{}
	listen := flags.String("listen", "", "")
	dedupd := flags.String("dedupd", "", "")
	ledger := flags.String("ledger", "", "")
	flags.StringVar(&c.at, "at", "", "")
	flags.StringVar(&c.tell, "tell", "", "")
	if err := flags.Parse(args); err != nil {
		return 1
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := serveInbox(ctx, c, *listen, *dedupd, *ledger); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func serveInbox(ctx context.Context, c *checkpoint, listen, dedupd, ledger string) error {
	config, err := pgxpool.ParseConfig(ledger)
	if err != nil {
		return err
	}
	config.ConnConfig.Tracer = c
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	defer pool.Close()
	conn, err := interceptors.DialDedupd([]string{dedupd}, interceptors.DialInsecure(),
		interceptors.DialWith(grpc.WithChainUnaryInterceptor(c.call)))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // the process ends
	lifetime, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	options, err := interceptors.ServerOptions(dedupv1.NewDedupServiceClient(conn),
		interceptors.WithNamespace("shop"), interceptors.SharedCaller(), interceptors.WithLease(time.Second),
		interceptors.WithLifetime(lifetime),
		interceptors.WithInbox(pgxinbox.Reconciler(pool), demov1.PaymentsService_Charge_FullMethodName))
	if err != nil {
		return err
	}
	lis, err := (&net.ListenConfig{}).Listen(ctx, "tcp", listen)
	if err != nil {
		return err
	}
	s := grpc.NewServer(options...)
	demov1.RegisterPaymentsServiceServer(s, &inboxPayments{pool: pool})
	healthv1.RegisterHealthServer(s, health.NewServer())
	defer context.AfterFunc(ctx, s.Stop)()
	return errors.Join(s.Serve(lis))
}
