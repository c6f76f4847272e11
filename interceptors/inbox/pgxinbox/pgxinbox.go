package pgxinbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"google.golang.org/protobuf/proto"

	"github.com/dedupd/dedupd/interceptors/guard"
	"github.com/dedupd/dedupd/interceptors/inbox"
	"github.com/dedupd/dedupd/interceptors/inbox/internal/row"
)

// DB is a pgxpool.Pool, or what wraps one. A single connection serves one caller at a
// time only.
type DB interface {
	BeginTx(ctx context.Context, opts pgx.TxOptions) (pgx.Tx, error)
	runner
}

// Do runs fn in a transaction that holds the record of ctx; see inbox.Do.
func Do[R proto.Message](ctx context.Context, db DB, fn func(ctx context.Context, tx pgx.Tx) (R, error), opts ...inbox.Option) (R, error) {
	return row.Do(ctx, beginner{db}.begin, func(ctx context.Context, t transaction) (R, error) { return fn(ctx, t.tx) }, opts)
}

// Mark claims the record of ctx for tx, as its first statement; see inbox.Mark.
func Mark(ctx context.Context, tx pgx.Tx) (*inbox.Answer, error) {
	return row.Mark(ctx, queries{tx})
}

// Done writes the answer of the record that Mark has claimed in tx; see inbox.Done.
func Done(ctx context.Context, tx pgx.Tx, resp proto.Message) error {
	return row.Done(ctx, queries{tx}, resp)
}

// Reconciler settles unknown outcomes by the inbox in db; see inbox.Reconciler.
func Reconciler(db DB) guard.Reconciler { return row.Reconciler(beginner{db}) }

// EnsureTable makes the inbox's table where it is not there; see inbox.EnsureTable.
func EnsureTable(ctx context.Context, db DB) error { return row.EnsureTable(ctx, queries{db}) }

// NewCleaner returns what deletes rows after their records' ends; see
// inbox.NewCleaner.
func NewCleaner(db DB, c inbox.CleanerConfig) *inbox.Cleaner { return row.NewCleaner(queries{db}, c) }

// runner is what a pool and a transaction have in common.
type runner interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// queries puts pgx under the table.
type queries struct{ on runner }

func (q queries) Row(ctx context.Context, query string, args []any, dest ...any) (bool, error) {
	err := q.on.QueryRow(ctx, query, args...).Scan(dest...)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	return err == nil, err
}

func (q queries) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	tag, err := q.on.Exec(ctx, query, args...)
	return tag.RowsAffected(), err
}

func (q queries) Rows(ctx context.Context, query string, args []any, each func(scan func(...any) error) error) error {
	rows, err := q.on.Query(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := each(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}

// beginner begins transactions.
type beginner struct{ db DB }

func (b beginner) Begin(ctx context.Context, isolation sql.IsolationLevel) (row.Tx, error) {
	return b.begin(ctx, isolation)
}

func (b beginner) begin(ctx context.Context, isolation sql.IsolationLevel) (transaction, error) {
	level, err := isoLevel(isolation)
	if err != nil {
		return transaction{}, err
	}
	tx, err := b.db.BeginTx(ctx, pgx.TxOptions{IsoLevel: level})
	return transaction{queries: queries{tx}, tx: tx}, err
}

func isoLevel(isolation sql.IsolationLevel) (pgx.TxIsoLevel, error) {
	switch isolation {
	case sql.LevelDefault:
		return "", nil
	case sql.LevelReadUncommitted:
		return pgx.ReadUncommitted, nil
	case sql.LevelReadCommitted:
		return pgx.ReadCommitted, nil
	case sql.LevelRepeatableRead:
		return pgx.RepeatableRead, nil
	case sql.LevelSerializable:
		return pgx.Serializable, nil
	case sql.LevelWriteCommitted, sql.LevelSnapshot, sql.LevelLinearizable:
	}
	return "", fmt.Errorf("inbox: the database has no isolation level %s", isolation)
}

// transaction is a transaction of pgx, whose statements each have their own context.
type transaction struct {
	queries
	tx pgx.Tx
}

func (t transaction) Commit(ctx context.Context) error   { return t.tx.Commit(ctx) }
func (t transaction) Rollback(ctx context.Context) error { return t.tx.Rollback(ctx) }
