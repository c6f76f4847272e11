package storagetest

import (
	"github.com/stretchr/testify/require"

	"github.com/dedupd/dedupd/storage"
)

// memoCases are for stores that keep memos.
func memoCases() []testCase {
	return []testCase{
		{name: "a memo is what was set last under its name", run: memoLast},
		{name: "a memo outlives a restart", reopen: true, run: memoKept},
	}
}

func memosOf(f *fixture, s storage.Store) storage.Memos {
	memos, ok := s.(storage.Memos)
	if !ok {
		f.Skip("the store keeps no memos")
	}
	return memos
}

func memoLast(f *fixture) {
	memos, ctx := memosOf(f, f.Store), f.Context()
	one, other := f.namespace+"one", f.namespace+"other"
	got, err := memos.Memo(ctx, one)
	require.NoError(f, err)
	require.Empty(f, got)
	for _, text := range []string{"first\x00", "", "a longer second one"} {
		require.NoError(f, memos.SetMemo(ctx, one, []byte(text)))
		got, err = memos.Memo(ctx, one)
		require.NoError(f, err)
		require.Equal(f, text, string(got))
	}
	got, err = memos.Memo(ctx, other)
	require.NoError(f, err)
	require.Empty(f, got)
}

func memoKept(f *fixture) {
	require.NoError(f, memosOf(f, f.Store).SetMemo(f.Context(), "m", []byte("kept")))
	require.NoError(f, f.Store.Close())
	_, err := memosOf(f, f.Store).Memo(f.Context(), "m")
	require.ErrorIs(f, err, storage.ErrClosed)
	require.ErrorIs(f, memosOf(f, f.Store).SetMemo(f.Context(), "m", nil), storage.ErrClosed)
	again := f.Reopen(f)
	f.Cleanup(func() { require.NoError(f, again.Store.Close()) })
	got, err := memosOf(f, again.Store).Memo(f.Context(), "m")
	require.NoError(f, err)
	require.Equal(f, "kept", string(got))
}
