package demo

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/dedupd/dedupd/cmd/dedupd/internal/child"
	demov1 "github.com/dedupd/dedupd/gen/dedup/demo/v1"
	"github.com/dedupd/dedupd/interceptors"
	"github.com/dedupd/dedupd/interceptors/policy"
)

const (
	// arrival is the time between two orders of one shop: orders keep coming,
	// whatever becomes of the earlier ones.
	arrival = 20 * time.Millisecond
	// around is how long orders come before the service goes down, and after it is
	// back.
	around = 500 * time.Millisecond
	// pressAgain is when somebody whose order failed places it again.
	pressAgain = 2 * time.Second
	// probeAfter is how long a breaker stays open. It suits an outage of seconds;
	// services keep the default of 5 s.
	probeAfter = time.Second
)

// Way is how the calls of a connection meet an outage. The zero value is none.
type Way int

// The ways, in the order of the report.
const (
	RetriesAlone     Way = iota + 1 // every call is tried again as often as it may be
	Budget                          // no more calls retry at a time than the budget allows
	BudgetAndBreaker                // and the breaker holds tries back while the service is ill
)

// String names the way as the report does.
func (w Way) String() string {
	switch w {
	case RetriesAlone:
		return "retries alone"
	case Budget:
		return "with a budget"
	case BudgetAndBreaker:
		return "budget and breaker"
	}
	return fmt.Sprintf("way(%d)", int(w))
}

// shop places orders over one connection.
type shop struct {
	way  Way
	down *atomic.Bool // the service is down now

	tries, held, unretried atomic.Int64

	mu         sync.Mutex
	placements []placement
}

// RunOutage takes the payments service down for a while and has three shops, each
// with a connection of its own, place orders all the time: one outage, met in
// three ways. Of cfg, Orders, Clients, Loss and Seed do not matter: nothing else
// goes wrong here.
func RunOutage(ctx context.Context, cfg Config, down time.Duration) (Outage, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return Outage{}, err
	}
	dir, err := makeDir(cfg.Dir)
	if err != nil {
		return Outage{}, err
	}
	defer func() {
		if !cfg.Keep {
			_ = os.RemoveAll(dir) // what is left is in the system's temporary directory
		}
	}()
	r := &run{Config: cfg, mode: Protected, dir: filepath.Join(dir, "outage")}
	defer r.endProcesses()
	if err := r.startProcesses(ctx); err != nil {
		return Outage{}, err
	}
	out, err := r.outage(ctx, down)
	if err != nil {
		return Outage{}, fmt.Errorf("the run with an outage could not be finished: %w", err)
	}
	if cfg.Keep {
		cfg.Progress.Note("ledger, logs and data of the outage are kept in " + dir)
	}
	return out, nil
}

// outage runs the shops while the service goes down and comes back.
func (r *run) outage(ctx context.Context, down time.Duration) (Outage, error) {
	var isDown atomic.Bool
	shops := []*shop{{way: RetriesAlone}, {way: Budget}, {way: BudgetAndBreaker}}
	each := int((around + down + around) / arrival)
	r.Progress.Begin("outage", each*len(shops))
	defer r.Progress.End()
	placed := make(chan placement, each*len(shops)) // room for all: nobody waits for the report
	g, ctx := errgroup.WithContext(ctx)
	g.Go(safely(func() error {
		defer close(placed)
		var all errgroup.Group
		for _, s := range shops {
			s.down = &isDown
			all.Go(safely(func() error { return s.open(ctx, r.payments.Addr(), each, placed) }))
		}
		return all.Wait()
	}))
	g.Go(safely(func() error {
		for range placed {
			r.Progress.Placed()
		}
		return nil
	}))
	g.Go(safely(func() error {
		if err := pause(ctx, around); err != nil {
			return err
		}
		isDown.Store(true)
		defer isDown.Store(false)
		r.Progress.Note(fmt.Sprintf("kill -9 of %s, which stays away for %v", r.payments.Name, down))
		return r.payments.Crash(ctx, down)
	}))
	if err := g.Wait(); err != nil {
		return Outage{}, err
	}
	r.payments.Stop() // lets its handlers finish, so that the ledger is whole
	charges, err := readCharges(r.ledgerPath())
	if err != nil {
		return Outage{}, err
	}
	out := Outage{Down: down}
	for _, s := range shops {
		out.Shops = append(out.Shops, s.result(charges))
	}
	return out, nil
}

// open has so many orders placed, one after each arrival, and returns when all
// are. A caller whose order failed places it again after a while, under its key.
func (s *shop) open(ctx context.Context, addr string, orders int, placed chan<- placement) error {
	options, err := s.options()
	if err != nil {
		return err
	}
	conn, err := grpc.NewClient(addr, options...)
	if err != nil {
		return err
	}
	payments := demov1.NewPaymentsServiceClient(conn)
	g, ctx := errgroup.WithContext(ctx)
	next := time.NewTicker(arrival)
	defer next.Stop()
	for n := range orders {
		select {
		case <-next.C:
		case <-ctx.Done():
		}
		g.Go(safely(func() error { return s.order(ctx, payments, fmt.Sprintf("%s %06d", s.way, n+1), placed) }))
	}
	err = g.Wait()
	_ = conn.Close() // nothing is in flight
	return err
}

func (s *shop) order(ctx context.Context, payments demov1.PaymentsServiceClient, order string, placed chan<- placement) error {
	began := time.Now()
	told, err := place(ctx, Protected, pressAgain, payments, order)
	if err != nil {
		return err
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	p := placement{order: order, told: told, took: time.Since(began)}
	s.mu.Lock()
	s.placements = append(s.placements, p)
	s.mu.Unlock()
	placed <- p
	return nil
}

// options are those of the shop's connection. It fails fast: a call that waits for
// a connection is not a try.
func (s *shop) options() ([]grpc.DialOption, error) {
	while := func(count *atomic.Int64) func() {
		return func() {
			if s.down.Load() {
				count.Add(1)
			}
		}
	}
	tries, held, unretried := while(&s.tries), while(&s.held), while(&s.unretried)
	ours := []interceptors.ClientOption{interceptors.WithCallObserver(interceptors.CallObserver{
		Attempt:     func(context.Context, string, int) { tries() },
		BreakerOpen: func(context.Context, string) { held() },
		BudgetSpent: func(context.Context, string) { unretried() },
	})}
	if s.way == RetriesAlone {
		ours = append(ours, interceptors.WithoutBudget())
	}
	if s.way == BudgetAndBreaker {
		ours = append(ours, interceptors.WithBreaker(policy.BreakerSettings{OpenFor: probeAfter}))
	} else {
		ours = append(ours, interceptors.WithoutBreaker())
	}
	options, err := interceptors.ClientOptions(ours...)
	return append(options, grpc.WithTransportCredentials(insecure.NewCredentials()), child.QuickReconnect()), err
}

func (s *shop) result(charges map[string][]charge) ShopResult {
	s.mu.Lock()
	defer s.mu.Unlock()
	return ShopResult{
		Way: s.way, Result: tally(s.placements, charges),
		Tries: s.tries.Load(), Held: s.held.Load(), Unretried: s.unretried.Load(),
	}
}
