package demo

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	demov1 "github.com/dedupd/dedupd/gen/dedup/demo/v1"
	"github.com/dedupd/dedupd/interceptors"
	"github.com/dedupd/dedupd/interceptors/inbox/pgxinbox"
)

const maxKills = 100

// account is the sample service with its ledger in a database: each charge commits
// together with its key. Like the file it refuses no second charge of an order, so
// that the demo can count it.
type account struct {
	demov1.UnimplementedPaymentsServiceServer

	pool *pgxpool.Pool
}

func openAccount(ctx context.Context, database string) (*account, error) {
	pool, err := pgxpool.New(ctx, database)
	if err != nil {
		return nil, err
	}
	return &account{pool: pool}, nil
}

// Charge takes money, and keeps the receipt and the key with it.
func (a *account) Charge(ctx context.Context, request *demov1.ChargeRequest) (*demov1.ChargeResponse, error) {
	if request.GetOrder() == "" || request.GetAmount() < 1 {
		return nil, status.Error(codes.InvalidArgument, "a charge names an order and an amount of 1 or more")
	}
	if err := pause(ctx, jitter(work)); err != nil {
		return nil, status.FromContextError(err).Err()
	}
	return pgxinbox.Do(ctx, a.pool, func(ctx context.Context, tx pgx.Tx) (*demov1.ChargeResponse, error) {
		c := charge{ID: newChargeID(), Order: request.GetOrder(), Amount: request.GetAmount()}
		_, err := tx.Exec(ctx, "INSERT INTO charges (id, orders, amount) VALUES ($1, $2, $3)", c.ID, c.Order, c.Amount)
		return receipt(c), err
	})
}

func (a *account) settles() interceptors.ServerOption {
	return interceptors.WithInbox(pgxinbox.Reconciler(a.pool), demov1.PaymentsService_Charge_FullMethodName)
}

// Close gives the connections back.
func (a *account) Close() error {
	a.pool.Close()
	return nil
}

// readAccount returns every charge in the database, by order.
func readAccount(ctx context.Context, database string) (map[string][]charge, error) {
	charges := map[string][]charge{}
	err := onDatabase(ctx, database, func(conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, "SELECT id, orders, amount FROM charges")
		if err != nil {
			return err
		}
		var c charge
		_, err = pgx.ForEachRow(rows, []any{&c.ID, &c.Order, &c.Amount}, func() error {
			charges[c.Order] = append(charges[c.Order], c)
			return nil
		})
		return err
	})
	return charges, err
}

// RunInbox does one run through dedupd whose ledger is in a database, by its URL,
// and in which the payments service is killed so often, and dedupd once. It makes a
// schema of its own there, and drops it.
func RunInbox(ctx context.Context, cfg Config, database string, kills int) (_ Report, err error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if kills < 1 || kills > maxKills || kills >= cfg.Orders {
		return nil, fmt.Errorf("%d kills in %d orders cannot be; take 1 to %d, and fewer than the orders", kills, cfg.Orders, maxKills)
	}
	dir, err := makeDir(cfg.Dir)
	if err != nil {
		return nil, err
	}
	defer func() {
		if !cfg.Keep {
			_ = os.RemoveAll(dir) // what is left is in the system's temporary directory
		}
	}()
	r := &run{Config: cfg, mode: WithInbox, dir: filepath.Join(dir, WithInbox.folder()), kills: kills}
	drop, err := r.makeTables(ctx, database)
	if err != nil {
		return nil, fmt.Errorf("no ledger can be made in the database: %w", err)
	}
	defer func() { err = errors.Join(err, drop()) }()
	result, err := r.do(ctx)
	if err != nil {
		return nil, fmt.Errorf("the run with %s could not be finished: %w", r.mode, err)
	}
	if cfg.Keep {
		cfg.Progress.Note("logs and data of the run with an inbox are kept in " + dir)
	}
	return Report{result}, nil
}

// makeTables makes a schema with the ledger and the inbox, and returns what drops it.
func (r *run) makeTables(ctx context.Context, database string) (drop func() error, err error) {
	u, err := url.Parse(database)
	if err != nil || u.Scheme != "postgres" && u.Scheme != "postgresql" {
		return nil, errors.New("name it as postgres://user@host:port/database") // the other may tell a password
	}
	schema := "dedupd_demo_" + strings.TrimPrefix(newChargeID(), "ch_")
	q := u.Query()
	q.Set("search_path", schema)
	u.RawQuery = q.Encode()
	r.database = u.String()
	execute := func(ctx context.Context, url, statement string) error {
		return onDatabase(ctx, url, func(conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, statement)
			return err
		})
	}
	if err := execute(ctx, database, "CREATE SCHEMA "+schema); err != nil {
		return nil, err
	}
	drop = func() error { return execute(context.WithoutCancel(ctx), database, "DROP SCHEMA "+schema+" CASCADE") }
	err = onDatabase(ctx, r.database, func(conn *pgx.Conn) error { return pgxinbox.EnsureTable(ctx, conn) })
	if err == nil {
		err = execute(ctx, r.database, "CREATE TABLE charges (id TEXT PRIMARY KEY, orders TEXT NOT NULL, amount INT8 NOT NULL)")
	}
	if err != nil {
		return nil, errors.Join(err, drop())
	}
	return drop, nil
}

func onDatabase(ctx context.Context, database string, do func(*pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, database)
	if err != nil {
		return err
	}
	return errors.Join(do(conn), conn.Close(ctx))
}

// manyCrashes kills the payments service after every so many orders, and dedupd
// halfway.
func (r *run) manyCrashes() []crash {
	var crashes []crash
	for i := range r.kills {
		if i == r.kills/2 {
			crashes = append(crashes, crash{after: r.Orders / 2, target: r.dedupd, count: &r.result.DedupdKills})
		}
		crashes = append(crashes, crash{after: (i + 1) * r.Orders / (r.kills + 1), target: r.payments, count: &r.result.PaymentsKills})
	}
	return crashes
}
