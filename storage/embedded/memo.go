package embedded

import (
	"bytes"
	"context"
	"errors"

	"github.com/cockroachdb/pebble/v2"

	"github.com/dedupd/dedupd/storage"
)

var _ storage.Memos = (*Store)(nil)

func memoKey(name string) []byte { return append([]byte{prefixMemo}, name...) }

// Memo implements storage.Memos.
func (s *Store) Memo(ctx context.Context, name string) ([]byte, error) {
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	defer s.life.RUnlock()
	value, closer, err := s.db.Get(memoKey(name))
	switch {
	case errors.Is(err, pebble.ErrNotFound):
		return nil, nil
	case err != nil:
		return nil, s.unavailable(err)
	}
	text := bytes.Clone(value)
	if err := closer.Close(); err != nil {
		return nil, s.unavailable(err)
	}
	return text, nil
}

// SetMemo implements storage.Memos.
func (s *Store) SetMemo(ctx context.Context, name string, text []byte) error {
	if err := s.begin(ctx); err != nil {
		return err
	}
	defer s.life.RUnlock()
	b := s.db.NewBatch()
	if err := b.Set(memoKey(name), text, nil); err != nil {
		return err
	}
	return s.commit(ctx, b, s.clock.now())
}
