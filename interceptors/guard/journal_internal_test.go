package guard

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/testing/protocmp"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
)

func letterOf(n, size int) *letter {
	id := &dedupv1.Identity{Namespace: "test", Operation: "/pay.v1.Pay/Charge", Key: fmt.Append(nil, "order ", n)}
	return &letter{
		recordID: string(RecordID(id)), operation: id.GetOperation(), stands: n%2 == 0,
		fingerprints: []*dedupv1.Fingerprint{{Version: 1, Digest: []byte{byte(n)}}},
		complete: &dedupv1.CompleteRequest{Identity: id, Fence: int64(n + 1), Outcome: &dedupv1.Outcome{
			Result: &dedupv1.Outcome_Response{Response: &dedupv1.Response{Value: bytes.Repeat([]byte{'x'}, size)}},
		}},
	}
}

func reopened(t *testing.T, j *journal) (*journal, []*letter) {
	t.Helper()
	j.close()
	next, letters, torn, err := openJournal(j.dir)
	require.NoError(t, err)
	require.Zero(t, torn)
	t.Cleanup(next.close)
	return next, letters
}

func TestAJournalNeverGrowsOverItsLimit(t *testing.T) {
	t.Parallel()
	j, _, _, err := openJournal(t.TempDir())
	require.NoError(t, err)
	j.limit = 4 << 10
	kept := letterOf(0, 100)
	require.NoError(t, j.append(kept))
	for n := 1; n < 200; n++ {
		l := letterOf(n, 500)
		require.NoError(t, j.append(l), "what is done makes room")
		info, err := j.f.Stat()
		require.NoError(t, err)
		require.LessOrEqual(t, info.Size(), j.limit)
		j.done(l.id)
	}
	full := 0
	for n := range 20 {
		if err := j.append(letterOf(n, 500)); err != nil {
			require.ErrorIs(t, err, errJournalFull)
			full++
		}
	}
	require.InDelta(t, 14, full, 2)

	_, letters := reopened(t, j)
	require.Len(t, letters, 21-full)
	require.Empty(t, cmp.Diff(kept.complete, letters[0].complete, protocmp.Transform()))
	require.Empty(t, cmp.Diff(kept.fingerprints, letters[0].fingerprints, protocmp.Transform()))
	require.True(t, letters[0].stands)
	require.Equal(t, kept.recordID, letters[0].recordID)
	require.False(t, letters[2].stands)
}

func TestAReleaseIsJournaledToo(t *testing.T) {
	t.Parallel()
	j, _, _, err := openJournal(t.TempDir())
	require.NoError(t, err)
	l := letterOf(1, 1)
	l.release, l.complete = &dedupv1.ReleaseRequest{Identity: l.complete.GetIdentity(), Fence: 7, Effect: dedupv1.Effect_EFFECT_UNKNOWN}, nil
	require.NoError(t, j.append(l))
	_, letters := reopened(t, j)
	require.Len(t, letters, 1)
	require.Empty(t, cmp.Diff(l.release, letters[0].release, protocmp.Transform()))
}

func TestAJournalThatCannotBeWrittenCostsNothingButItself(t *testing.T) {
	t.Parallel()
	failed := 0
	e, err := New(Config{Dedup: dedupv1.NewDedupServiceClient(nil), Namespace: "test", Journal: t.TempDir(), Observer: Observer{
		JournalFailed: func() { failed++ },
	}})
	require.NoError(t, err)
	e.completer.journal.close() // as a disk that is gone
	e.completer.end()           // nobody to deliver to
	require.True(t, e.completer.add(t.Context(), letterOf(2, 1)))
	require.Equal(t, 1, failed)
	require.True(t, e.completer.knows([]byte(letterOf(2, 1).recordID)))
	e.Close()
}

func TestTwoRequestsAreTheSameByAnyVersionThatBothKnow(t *testing.T) {
	t.Parallel()
	f := func(version uint32, digest string) *dedupv1.Fingerprint {
		return &dedupv1.Fingerprint{Version: version, Digest: []byte(digest)}
	}
	require.True(t, SameRequest([]*dedupv1.Fingerprint{f(1, "a"), f(2, "b")}, []*dedupv1.Fingerprint{f(2, "b"), f(3, "c")}))
	require.False(t, SameRequest([]*dedupv1.Fingerprint{f(1, "a")}, []*dedupv1.Fingerprint{f(2, "a")}))
	require.False(t, SameRequest([]*dedupv1.Fingerprint{f(1, "a")}, []*dedupv1.Fingerprint{f(1, "b")}))
	require.False(t, SameRequest(nil, nil))
}
