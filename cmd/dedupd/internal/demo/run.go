package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/dedupd/dedupd/cmd/dedupd/internal/child"
)

// downtime is how long a killed process stays away: about what a supervisor
// takes to notice.
const downtime = 200 * time.Millisecond

// run is one run of the demo.
type run struct {
	Config
	mode Mode
	dir  string
	// database holds the ledger instead of a file, and kills is how often the payments
	// service is killed there.
	database string
	kills    int

	payments *child.Program
	dedupd   *child.Program // nil unless mode is Protected
	result   Result
}

// crash is a kill -9 once so many orders are placed.
type crash struct {
	after  int
	target *child.Program
	count  *int
}

func (r *run) do(ctx context.Context) (Result, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer r.endProcesses()
	if err := r.startProcesses(ctx); err != nil {
		return Result{}, err
	}
	r.Progress.Begin(r.mode.String(), r.Orders)
	defer r.Progress.End()
	placements, f, took, err := r.placeAll(ctx)
	if err != nil {
		return Result{}, err
	}
	// Handlers that are still at work charge before their process ends, so the
	// ledger is whole when it is read.
	r.payments.Stop()
	charges, err := r.charges(ctx)
	if err != nil {
		return Result{}, err
	}
	kills := r.result
	r.result = tally(placements, charges)
	r.result.Mode, r.result.Took = r.mode, took
	r.result.LostReplies, r.result.CutRequests = f.replies.Load(), f.requests.Load()
	r.result.PaymentsKills, r.result.DedupdKills = kills.PaymentsKills, kills.DedupdKills
	return r.result, nil
}

func (r *run) ledgerPath() string { return filepath.Join(r.dir, "ledger") }

func (r *run) startProcesses(ctx context.Context) error {
	if err := os.MkdirAll(r.dir, 0o700); err != nil {
		return err
	}
	args := []string{"demo-payments", "--ledger", r.ledgerPath()}
	if r.database != "" {
		args = []string{"demo-payments", "--database", r.database}
	}
	if r.mode.promises() {
		r.dedupd = &child.Program{
			Name: "dedupd", Path: r.Executable, Log: filepath.Join(r.dir, "dedupd.log"),
			Args: []string{"serve", "--data", filepath.Join(r.dir, "data"), "--http", "127.0.0.1:0", "--log-level", "warn"},
		}
		if err := r.dedupd.Start(ctx); err != nil {
			return err
		}
		args = append(args, "--dedupd", r.dedupd.Addr())
	}
	r.payments = &child.Program{Name: "the payments service", Path: r.Executable, Log: filepath.Join(r.dir, "payments.log"), Args: args}
	return r.payments.Start(ctx)
}

func (r *run) endProcesses() {
	r.payments.Stop()
	r.dedupd.Stop()
}

// placeAll has clients place every order through the proxy while processes are
// killed.
func (r *run) placeAll(ctx context.Context) ([]placement, *faults, time.Duration, error) {
	f := newFaults(r.Loss, r.Seed)
	p, err := newProxy(ctx, r.payments.Addr(), f)
	if err != nil {
		return nil, nil, 0, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(safely(func() error { return p.Run(ctx) }))

	// placed has room for all, so that clients never wait for a crash to be over.
	placed := make(chan placement, r.Orders)
	var placements []placement
	began := time.Now()
	g.Go(safely(func() error {
		defer close(placed)
		shop := &clients{mode: r.mode, addr: p.Addr(), orders: r.orders(), count: r.Clients}
		return shop.Run(ctx, func(x placement) { placed <- x })
	}))
	g.Go(safely(func() error {
		defer cancel() // ends the proxy
		var err error
		placements, err = r.follow(ctx, placed)
		return err
	}))
	err = g.Wait()
	return placements, f, time.Since(began), err
}

// follow collects placements and kills what is to be killed at their count.
func (r *run) follow(ctx context.Context, placed <-chan placement) ([]placement, error) {
	crashes := r.crashes()
	placements := make([]placement, 0, r.Orders)
	for x := range placed {
		placements = append(placements, x)
		r.Progress.Placed()
		if len(crashes) == 0 || len(placements) < crashes[0].after {
			continue
		}
		c := crashes[0]
		crashes = crashes[1:]
		r.Progress.Note(fmt.Sprintf("kill -9 of %s after %d orders", c.target.Name, len(placements)))
		*c.count++
		if err := c.target.Crash(ctx, downtime); err != nil {
			return placements, err
		}
	}
	if ctx.Err() == nil && len(placements) != r.Orders {
		return placements, fmt.Errorf("%d of %d orders were placed", len(placements), r.Orders)
	}
	return placements, nil
}

// charges reads the ledger.
func (r *run) charges(ctx context.Context) (map[string][]charge, error) {
	if r.database != "" {
		return readAccount(ctx, r.database)
	}
	return readCharges(r.ledgerPath())
}

// crashes are the payments service at a third and two thirds, and dedupd halfway.
func (r *run) crashes() []crash {
	if r.database != "" {
		return r.manyCrashes()
	}
	first := crash{after: r.Orders / 3, target: r.payments, count: &r.result.PaymentsKills}
	second := crash{after: r.Orders * 2 / 3, target: r.payments, count: &r.result.PaymentsKills}
	if r.dedupd == nil {
		return []crash{first, second}
	}
	return []crash{first, {after: r.Orders / 2, target: r.dedupd, count: &r.result.DedupdKills}, second}
}

func (r *run) orders() []string {
	orders := make([]string, r.Orders)
	for i := range orders {
		orders[i] = fmt.Sprintf("order-%06d", i+1)
	}
	return orders
}

// safely turns a panic of do into an error, so that the demo's processes and
// files are cleaned up whatever goes wrong.
func safely(do func() error) func() error {
	return func() (err error) {
		defer func() {
			if x := recover(); x != nil {
				err = errors.Join(err, fmt.Errorf("fault in the demo itself: %v", x))
			}
		}()
		return do()
	}
}
