package cockroach

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/dedupd/dedupd/internal/gather"
	"github.com/dedupd/dedupd/storage"
)

// together makes one batch of Reserves; what each is answered comes with its place.
func together(t *testing.T, s *Store, holders []*holder) []answer {
	t.Helper()
	queued := make(chan *call)
	g := gather.New(func(batch []*call) { queued <- batch[0] }, gather.Options[item]{MaxCalls: 1, Slots: len(holders)})
	answers := make([]answer, len(holders))
	var asking sync.WaitGroup
	var batch []*call
	for i, h := range holders {
		asking.Go(func() {
			ans, err := g.Do(t.Context(), item{id: h.id, req: h.Reserve})
			answers[i] = answer{ans, err}
		})
		batch = append(batch, <-queued)
	}
	s.flush(kindReserve, batch)
	asking.Wait()
	return answers
}

type answer struct {
	storage.Answer
	err error
}

func newHolders(n int) []*holder {
	holders := make([]*holder, n)
	for i := range holders {
		holders[i] = newHolder(fmt.Sprintf("k%d", i))
	}
	return holders
}

func TestAStatementThatFailsForOneRowIsSplitAndFailsForItAlone(t *testing.T) {
	t.Parallel()
	s := open(t, migrated(t))
	holders := newHolders(20)
	bad := holders[7]
	var mu sync.Mutex
	var sizes []int
	s.statements[kindReserve] = func(ctx context.Context, conn *pgxpool.Conn, calls []*call) ([]*storage.Answer, error) {
		mu.Lock()
		sizes = append(sizes, len(calls))
		mu.Unlock()
		if slices.ContainsFunc(calls, func(c *call) bool { return c.In.id == bad.id }) {
			return nil, &pgconn.PgError{Code: "22000"}
		}
		return s.reserveAll(ctx, conn, calls)
	}
	for i, ans := range together(t, s, holders) {
		if holders[i] == bad {
			require.ErrorIs(t, ans.err, storage.ErrUnavailable)
			continue
		}
		require.NoError(t, ans.err)
		require.Equal(t, storage.VerdictGranted, ans.Verdict)
	}
	require.Equal(t, 20, sizes[0])
	require.Less(t, len(sizes), 20, "halves, not rows")
}

func TestAStoredValueThatCannotBeReadIsAFaultOfItsKeyAlone(t *testing.T) {
	t.Parallel()
	s := open(t, migrated(t))
	holders := newHolders(5)
	for _, h := range holders {
		granted(t, s, h)
	}
	bad := holders[2]
	_, err := s.pool.Exec(t.Context(), `UPDATE dedup_records SET fingerprint = '\xff' WHERE id = $1`, bad.id[:])
	require.NoError(t, err)
	for i, ans := range together(t, s, holders) {
		if holders[i] == bad {
			require.ErrorIs(t, ans.err, storage.ErrUnavailable)
			require.ErrorIs(t, ans.err, errCorrupt)
			continue
		}
		require.NoError(t, ans.err)
		require.Equal(t, storage.VerdictGranted, ans.Verdict)
	}
	_, err = bad.complete(t.Context(), s)
	require.ErrorIs(t, err, storage.ErrUnavailable)
}

// B07: repeats of one key in a batch share one read, and write nothing.
func TestCallsOfOneKeyInABatchAreAnsweredInTheirOrder(t *testing.T) {
	t.Parallel()
	s := open(t, migrated(t))
	var holders []*holder
	for range 10 {
		holders = append(holders, newHolder("same"))
	}
	holders = append(holders, holders[0])
	answers := together(t, s, holders)
	for i, ans := range answers {
		require.NoError(t, ans.err)
		want := storage.VerdictInProgress
		if holders[i] == holders[0] {
			want = storage.VerdictGranted
		}
		require.Equal(t, want.String(), ans.Verdict.String())
	}
	require.Equal(t, answers[0].Record, answers[10].Record, "the repeat gets the same grant")
}

// The list of ended attempts is bounded by Apply, not by the statement.
func TestReleasesGoOnWhenTheListOfEndedAttemptsIsFull(t *testing.T) {
	t.Parallel()
	s := open(t, migrated(t))
	h := newHolder("k")
	var attempts []storage.AttemptID
	for range 12 {
		granted(t, s, h)
		ans, err := h.release(t.Context(), s)
		require.NoError(t, err)
		require.Equal(t, storage.StateReleased, ans.State)
		attempts = append(attempts, h.Attempt)
		require.Equal(t, attempts[max(0, len(attempts)-8):], ans.Record.Ended)
		h.again()
	}
}

// The clock is read once the row is held: a wait for it costs no lease.
func TestALeaseIsCountedFromTheMomentTheRowIsHeld(t *testing.T) {
	t.Parallel()
	s := open(t, migrated(t))
	h := newHolder("k")
	h.Lease = time.Minute
	granted(t, s, h)
	tx, err := s.pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `SELECT id FROM dedup_records WHERE id = $1 FOR UPDATE`, h.id[:])
	require.NoError(t, err)
	extended := make(chan answer)
	go func() {
		ans, err := h.extend(t.Context(), s)
		extended <- answer{ans, err}
	}()
	var released storage.Instant
	require.NoError(t, tx.QueryRow(t.Context(), `SELECT clock_timestamp() FROM pg_sleep(0.3)`).Scan((*stamp)(&released)))
	require.NoError(t, tx.Commit(t.Context()))
	ans := <-extended
	require.NoError(t, ans.err)
	require.GreaterOrEqual(t, ans.Record.LeaseEnd, released.Add(storage.MaxLease))
	require.GreaterOrEqual(t, ans.Now, ans.Record.LeaseEnd.Add(-storage.MaxLease), "what is left is measured after the write")
}

// A batch holds many keys, a slow one among them does not hold the others' lane.
func TestOneLockedRowDoesNotHoldCallsThatNeedATransaction(t *testing.T) {
	t.Parallel()
	s := open(t, migrated(t))
	holders := newHolders(2)
	for _, h := range holders {
		released(t, s, h)
	}
	tx, err := s.pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `SELECT id FROM dedup_records WHERE id = $1 FOR UPDATE`, holders[0].id[:])
	require.NoError(t, err)
	blocked := make(chan answer)
	go func() {
		ans, err := holders[0].reserve(t.Context(), s)
		blocked <- answer{ans, err}
	}()
	granted(t, s, holders[1])
	granted(t, s, newHolder("fresh"))
	require.Empty(t, blocked)
	require.NoError(t, tx.Rollback(t.Context()))
	ans := <-blocked
	require.NoError(t, ans.err)
	require.Equal(t, storage.VerdictGranted, ans.Verdict)
}

// No ghost grants: what a caller that has gone would be granted is not written.
func TestACallerThatIsGoneWhenItsRowIsLockedIsGrantedNothing(t *testing.T) {
	t.Parallel()
	opts := migrated(t)
	s, other := open(t, opts), open(t, opts)
	h := newHolder("k")
	released(t, s, h)
	ctx, cancel := context.WithCancel(t.Context())
	s.wrapTx = func(fn func(pgx.Tx) error) func(pgx.Tx) error {
		return func(tx pgx.Tx) error {
			cancel()
			return fn(tx)
		}
	}
	_, err := h.reserve(ctx, s)
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, s.Close())
	found := lookup(t, other, h.id)
	require.Equal(t, storage.StateReleased, found.State)
	require.Equal(t, int64(1), found.Record.Grants)
}

func TestACallerThatIsGoneWhenAConnectionIsFreeIsGrantedNothing(t *testing.T) {
	t.Parallel()
	opts := migrated(t)
	other := open(t, opts)
	opts.MaxConns = 2
	s := open(t, opts)
	for range 20 {
		first, err := s.pool.Acquire(t.Context())
		require.NoError(t, err)
		second, err := s.pool.Acquire(t.Context())
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		h := newHolder(fmt.Sprint(time.Now().UnixNano()))
		gone := make(chan error)
		go func() {
			_, err := h.reserve(ctx, s)
			gone <- err
		}()
		granted(t, other, newHolder("meanwhile"+h.Identity.Key))
		cancel()
		require.ErrorIs(t, <-gone, context.Canceled)
		first.Release()
		second.Release()
		granted(t, s, newHolder("after"+h.Identity.Key))
		require.Equal(t, storage.StateAbsent.String(), lookup(t, other, h.id).State.String())
	}
}

func TestALargeListingComesInPagesThatFitIntoMemory(t *testing.T) {
	t.Parallel()
	s := open(t, migrated(t))
	const records = 6
	for i := range records {
		h := newHolder(fmt.Sprint(i))
		granted(t, s, h)
		_, err := s.Complete(t.Context(), h.id, storage.Complete{
			Attempt: h.Attempt, Fence: h.fence,
			Outcome: &storage.Outcome{HasResponse: true, Response: incompressible(storage.CeilMaxOutcome)},
		})
		require.NoError(t, err)
	}
	var after storage.RecordID
	var pages, seen int
	for {
		page, err := s.List(t.Context(), storage.List{After: after, Limit: 1000})
		require.NoError(t, err)
		require.LessOrEqual(t, len(page.Records), maxPageBytes/storage.CeilMaxOutcome)
		pages, seen = pages+1, seen+len(page.Records)
		if after = page.Next; after == (storage.RecordID{}) {
			break
		}
	}
	require.Equal(t, records, seen)
	require.Greater(t, pages, 1)
}
