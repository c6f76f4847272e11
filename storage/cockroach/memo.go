package cockroach

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dedupd/dedupd/storage"
)

const (
	memoSQL    = `/* dedupd memo */ SELECT memo FROM dedup_memos WHERE name = $1`
	setMemoSQL = `/* dedupd memo */ INSERT INTO dedup_memos (name, memo) VALUES ($1, $2)
ON CONFLICT (name) DO UPDATE SET memo = excluded.memo`
)

var _ storage.Memos = (*Store)(nil)

// Memo reads what any replica has set.
func (s *Store) Memo(ctx context.Context, name string) ([]byte, error) {
	return reading(ctx, s, func(ctx context.Context, conn *pgxpool.Conn) (text []byte, err error) {
		err = conn.QueryRow(ctx, memoSQL, name).Scan(&text)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil, nil
		}
		return text, err
	})
}

// SetMemo is one statement that may run twice.
func (s *Store) SetMemo(ctx context.Context, name string, text []byte) error {
	_, err := reading(ctx, s, func(ctx context.Context, conn *pgxpool.Conn) (none struct{}, err error) {
		_, err = conn.Exec(ctx, setMemoSQL, name, notNull(text))
		return none, err
	})
	return err
}
