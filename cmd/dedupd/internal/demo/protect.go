package demo

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/dedupd/dedupd/cmd/dedupd/internal/child"
	demov1 "github.com/dedupd/dedupd/gen/dedup/demo/v1"
	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors"
	"github.com/dedupd/dedupd/interceptors/guard"
)

// This file is all that the sample service and its clients do to be protected.

// lease is how long an order stays blocked after the process that charged it was
// killed. It is the shortest allowed, so that the demo is short.
const lease = time.Second

// protection joins the sample service to dedupd.
type protection struct {
	options []grpc.ServerOption
	conn    *grpc.ClientConn
	end     context.CancelFunc
}

// newProtection connects to dedupd and makes the server's options. settles says how
// an order is settled whose handler was interrupted.
func newProtection(ctx context.Context, dedupd string, settles interceptors.ServerOption) (*protection, error) {
	conn, err := interceptors.DialDedupd([]string{dedupd}, interceptors.DialInsecure(), interceptors.DialWith(child.QuickReconnect()))
	if err != nil {
		return nil, err
	}
	lifetime, end := context.WithCancel(context.WithoutCancel(ctx)) // handlers outlive the order to stop
	options, err := interceptors.ServerOptions(dedupv1.NewDedupServiceClient(conn),
		interceptors.WithNamespace("demo"),
		interceptors.SharedCaller(),
		interceptors.WithLease(lease),
		interceptors.WithLifetime(lifetime),
		settles,
	)
	if err != nil {
		end()
		_ = conn.Close() // the other error says what is wrong
		return nil, err
	}
	return &protection{options: options, conn: conn, end: end}, nil
}

// Close is called when no handler is at work any more.
func (p *protection) Close() error {
	p.end()
	return p.conn.Close()
}

// reconcile finds out what an earlier run of the same request did, on the basis
// FENCED: the look registers its own fence, on disk, before it reads, and the ledger
// refuses lower ones from then on. So what the look does not find cannot happen any
// more, however long an earlier handler was paused, and nothing is assumed about time
// or about processes having died.
func (l *ledger) reconcile(_ context.Context, a interceptors.Attempt, request proto.Message) (interceptors.Verdict, error) {
	asked, ok := request.(*demov1.ChargeRequest)
	if !ok {
		return interceptors.VerdictStillUnknown(), fmt.Errorf("a charge was expected, not %T", request)
	}
	c, found, err := l.Look(hex.EncodeToString(a.RecordID), a.Fence)
	switch {
	case err != nil:
		return interceptors.VerdictStillUnknown(), err
	case !found:
		return interceptors.VerdictNotApplied(), nil
	case c.Order != asked.GetOrder() || c.Amount != asked.GetAmount():
		return interceptors.VerdictStillUnknown(), errors.New("the ledger has another charge under this record")
	}
	return interceptors.VerdictApplied(receipt(c)), nil
}

// grantOf returns the record and fence that a handler runs under; nothing
// without dedupd.
func grantOf(ctx context.Context) (record string, fence int64) {
	fence, ok := interceptors.FenceFrom(ctx)
	if !ok {
		return "", 0
	}
	return hex.EncodeToString(guard.RecordIDFrom(ctx)), fence
}

// protectedClient retries by itself, but only what carries a key.
func protectedClient() ([]grpc.DialOption, error) {
	return interceptors.ClientOptions()
}

// callOptions of a protected call name its key: made from business facts, so the
// same however often, and from wherever, the order is paid.
func callOptions(mode Mode, order string) ([]grpc.CallOption, error) {
	if !mode.promises() {
		return nil, nil
	}
	key, err := interceptors.Key("charge", order)
	if err != nil {
		return nil, err
	}
	return []grpc.CallOption{interceptors.WithKey(key)}, nil
}
