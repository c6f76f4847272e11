package inbox_test

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	demov1 "github.com/dedupd/dedupd/gen/dedup/demo/v1"
	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors"
	"github.com/dedupd/dedupd/interceptors/inbox"
	"github.com/dedupd/dedupd/interceptors/inbox/pgxinbox"
)

// A handler whose whole effect is in its database. Calls to other services belong
// before Do, never into it: fn may run again.
func ExampleDo() {
	charge := func(ctx context.Context, db *sql.DB, req *demov1.ChargeRequest) (*demov1.ChargeResponse, error) {
		return inbox.Do(ctx, db, func(ctx context.Context, tx *sql.Tx) (*demov1.ChargeResponse, error) {
			id := uuid.NewString()
			_, err := tx.ExecContext(ctx, "INSERT INTO charges (id, orders) VALUES ($1, $2)", id, req.GetOrder())
			return &demov1.ChargeResponse{ChargeId: id, Order: req.GetOrder(), Amount: req.GetAmount()}, err
		})
	}
	_ = charge
	// Output:
}

// The same in a transaction of one's own.
func ExampleMark() {
	charge := func(ctx context.Context, pool *pgxpool.Pool, req *demov1.ChargeRequest) (resp *demov1.ChargeResponse, err error) {
		err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			first, err := pgxinbox.Mark(ctx, tx) // before every other statement
			if err != nil {
				return err
			}
			if first != nil { // it was done before: this is its answer
				resp, err = inbox.As[*demov1.ChargeResponse](first)
				return err
			}
			resp = &demov1.ChargeResponse{ChargeId: uuid.NewString(), Order: req.GetOrder(), Amount: req.GetAmount()}
			if _, err := tx.Exec(ctx, "INSERT INTO charges (id, orders) VALUES ($1, $2)", resp.GetChargeId(), resp.GetOrder()); err != nil {
				return err
			}
			return pgxinbox.Done(ctx, tx, resp) // after every other one
		})
		return resp, err
	}
	_ = charge
	// Output:
}

// What the service says at its start.
func ExampleReconciler() {
	options := func(ctx context.Context, dedupd dedupv1.DedupServiceClient, db *sql.DB) ([]interceptors.ServerOption, error) {
		if err := inbox.EnsureTable(ctx, db); err != nil { // or put inbox.Schema() into your migrations
			return nil, err
		}
		cleaner := inbox.NewCleaner(db, inbox.CleanerConfig{Dedup: dedupd})
		go cleaner.Run(ctx) //nolint:errcheck // it ends with ctx
		return []interceptors.ServerOption{
			interceptors.WithNamespace("payments"),
			interceptors.WithInbox(inbox.Reconciler(db), demov1.PaymentsService_Charge_FullMethodName),
		}, nil
	}
	_ = options
	// Output:
}

// A single service without dedupd: the key in its request is enough.
func ExampleWithLocal() {
	charge := func(ctx context.Context, db *sql.DB, req *demov1.ChargeRequest) (*demov1.ChargeResponse, error) {
		const operation = demov1.PaymentsService_Charge_FullMethodName
		fingerprint, err := interceptors.Fingerprint(operation, req)
		if err != nil {
			return nil, err
		}
		ctx, err = inbox.WithLocal(ctx, inbox.Local{
			Identity:     &dedupv1.Identity{Namespace: "payments", Operation: operation, Key: []byte("charge:" + req.GetOrder())},
			Fingerprints: []*dedupv1.Fingerprint{fingerprint},
		})
		if err != nil {
			return nil, err
		}
		return inbox.Do(ctx, db, func(ctx context.Context, tx *sql.Tx) (*demov1.ChargeResponse, error) {
			_, err := tx.ExecContext(ctx, "INSERT INTO charges (id, orders) VALUES ($1, $2)", uuid.NewString(), req.GetOrder())
			return &demov1.ChargeResponse{Order: req.GetOrder()}, err
		})
	}
	_ = charge
	// Output:
}

// The table.
func ExampleSchema() {
	fmt.Println(inbox.Schema()[0])
	// Output:
	// CREATE TABLE IF NOT EXISTS dedupd_inbox (
	// 	record_id    BYTEA       NOT NULL PRIMARY KEY,
	// 	fence        INT8        NOT NULL,
	// 	state        TEXT        NOT NULL CHECK (state IN ('planted', 'marked', 'done')),
	// 	fingerprints BYTEA       NOT NULL,
	// 	outcome      BYTEA,
	// 	due_at       TIMESTAMPTZ NOT NULL,
	// 	ends         BOOL        NOT NULL DEFAULT false
	// )
}
