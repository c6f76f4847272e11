package demo

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/dedupd/dedupd/cmd/dedupd/internal/child"
	demov1 "github.com/dedupd/dedupd/gen/dedup/demo/v1"
)

// Clients of one order stop asking when patience is over. It is far longer than
// a crash takes, so that giving up would be a finding and not a setting.
const patience = 30 * time.Second

// askAgain is when a client asks again whose call has failed for good: half of it
// at least.
const askAgain = 200 * time.Millisecond

// placement is what a client knows about its order in the end.
type placement struct {
	order string
	// told is the charge's id from the reply; empty when the client never got one.
	told string
	took time.Duration
}

// clients place orders through addr.
type clients struct {
	mode   Mode
	addr   string
	orders []string
	count  int
}

// Run places every order once and hands what became of it to placed, from
// several goroutines. Each client has one connection and one call at a time.
func (c *clients) Run(ctx context.Context, placed func(placement)) error {
	queue := make(chan string, len(c.orders))
	for _, o := range c.orders {
		queue <- o
	}
	close(queue)
	g, ctx := errgroup.WithContext(ctx)
	for range c.count {
		g.Go(safely(func() error { return c.work(ctx, queue, placed) }))
	}
	return g.Wait()
}

func (c *clients) work(ctx context.Context, queue <-chan string, placed func(placement)) error {
	options, err := dialOptions(c.mode)
	if err != nil {
		return err
	}
	conn, err := grpc.NewClient(c.addr, options...)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // nothing is in flight
	payments := demov1.NewPaymentsServiceClient(conn)
	for order := range queue {
		began := time.Now()
		told, err := place(ctx, c.mode, askAgain, payments, order)
		if err != nil {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		placed(placement{order: order, told: told, took: time.Since(began)})
	}
	return nil
}

// place charges one order and returns the charge's id, or nothing. With retries
// the client goes on until it is told, after again or a little less; what it can tell the service when it asks
// again is all that differs between the modes.
func place(ctx context.Context, mode Mode, again time.Duration, payments demov1.PaymentsServiceClient, order string) (string, error) {
	how, err := callOptions(mode, order)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	request := &demov1.ChargeRequest{Order: order, Amount: amountOf(order), Currency: "EUR"}
	for {
		request.SentAt = timestamppb.Now()
		reply, err := payments.Charge(ctx, request, how...)
		if err == nil {
			return reply.GetChargeId(), nil
		}
		if mode == NoRetries || pause(ctx, jitter(again)) != nil {
			return "", nil
		}
	}
}

// dialOptions are those of one client. Every mode waits for a connection before
// it sends: that is not a retry, since nothing was sent.
func dialOptions(mode Mode) ([]grpc.DialOption, error) {
	common := []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)),
		grpc.WithDisableServiceConfig(),
		child.QuickReconnect(),
	}
	switch mode {
	case NoRetries:
		return append(common, grpc.WithDisableRetry()), nil
	case PlainRetries:
		return append(common, grpc.WithDefaultServiceConfig(plainRetries)), nil
	case Protected, WithInbox:
		protected, err := protectedClient()
		return append(common, protected...), err
	}
	return nil, fmt.Errorf("no mode %d", mode)
}

// plainRetries is gRPC's own retry as services commonly configure it. Its waits
// grow like those of the interceptors and have the same mean: gRPC spreads them
// around a value of which the interceptors' full jitter takes half on average.
const plainRetries = `{"methodConfig": [{
	"name": [{"service": "dedup.demo.v1.PaymentsService"}],
	"retryPolicy": {
		"maxAttempts": 5,
		"initialBackoff": "0.125s",
		"maxBackoff": "2.5s",
		"backoffMultiplier": 2,
		"retryableStatusCodes": ["UNAVAILABLE"]
	}
}]}`

// amountOf gives every order its own amount, so that a reply that belongs to
// another order does not look right.
func amountOf(order string) int64 {
	sum := int64(17)
	for _, c := range []byte(order) {
		sum = (sum*31 + int64(c)) % 100_000
	}
	return 100 + sum
}

// pause waits for d or for ctx's end, which it returns.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func jitter(most time.Duration) time.Duration {
	return most/2 + rand.N(most/2) //nolint:gosec // waits are no secrets
}
