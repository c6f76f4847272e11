package inbox

import (
	"context"
	"database/sql"
	"errors"

	"github.com/dedupd/dedupd/interceptors/inbox/internal/row"
)

// runner is what *sql.DB and *sql.Tx have in common.
type runner interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// queries puts database/sql under the table.
type queries struct{ runner }

func (q queries) Row(ctx context.Context, query string, args []any, dest ...any) (bool, error) {
	err := q.QueryRowContext(ctx, query, args...).Scan(dest...)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	return err == nil, err
}

func (q queries) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	res, err := q.ExecContext(ctx, query, args...)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

func (q queries) Rows(ctx context.Context, query string, args []any, each func(scan func(...any) error) error) error {
	rows, err := q.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close() //nolint:errcheck // rows.Err tells
	for rows.Next() {
		if err := each(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}

// beginner begins transactions of a database.
type beginner struct{ db *sql.DB }

func (b beginner) Begin(ctx context.Context, isolation sql.IsolationLevel) (row.Tx, error) {
	return b.begin(ctx, isolation)
}

// begin waits for a connection for as long as ctx allows. The transaction's own
// context outlives ctx: database/sql would cut a commit off with it.
func (b beginner) begin(ctx context.Context, isolation sql.IsolationLevel) (*transaction, error) {
	conn, err := b.db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	begun := context.AfterFunc(ctx, end)
	tx, err := conn.BeginTx(life, &sql.TxOptions{Isolation: isolation})
	if !begun() && err == nil {
		err = errors.Join(ctx.Err(), tx.Rollback())
	}
	if err != nil {
		end()
		return nil, errors.Join(err, conn.Close())
	}
	return &transaction{queries: queries{tx}, tx: tx, conn: conn, end: end}, nil
}

// transaction is a transaction and the connection that it has.
type transaction struct {
	queries
	tx   *sql.Tx
	conn *sql.Conn
	end  context.CancelFunc
}

func (t *transaction) Commit(ctx context.Context) error {
	return t.finish(ctx, t.tx.Commit)
}

func (t *transaction) Rollback(ctx context.Context) error {
	return t.finish(ctx, t.tx.Rollback)
}

// finish bounds by ctx what has no context of its own.
func (t *transaction) finish(ctx context.Context, do func() error) error {
	defer t.end()
	stop := context.AfterFunc(ctx, t.end)
	err := do()
	stop()
	_ = t.conn.Close() // it goes back to its pool, or is broken
	return err
}
