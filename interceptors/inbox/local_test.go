package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors/inbox"
	"github.com/dedupd/dedupd/interceptors/inbox/pgxinbox"
)

func localRecord(key string) inbox.Local {
	return inbox.Local{
		Identity:     &dedupv1.Identity{Namespace: "shop", Operation: "/shop/Charge", Key: []byte(key)},
		Fingerprints: fingerprint(1200), Keep: time.Hour,
	}
}

func TestWithoutDedupdTheRowAloneKeepsThePromise(t *testing.T) {
	t.Parallel()
	drivers(t, func(t *testing.T, d *driver) {
		t.Helper()
		ctx, err := inbox.WithLocal(t.Context(), localRecord("4471"))
		require.NoError(t, err)
		_, err = d.do(ctx, func(ctx context.Context, exec exec) (*receipt, error) {
			_, err := charge(ctx, exec)
			return nil, errors.Join(err, errDied)
		})
		require.ErrorIs(t, err, errDied)
		require.Empty(t, d.rowState(t), "B13: nothing is left of a run that failed")
		first, err := d.do(ctx, charge)
		require.NoError(t, err)
		again, err := d.do(ctx, charge)
		require.NoError(t, err)
		require.Equal(t, first.GetChargeId(), again.GetChargeId())

		other := localRecord("4471")
		other.Fingerprints = fingerprint(999)
		ctx, err = inbox.WithLocal(t.Context(), other)
		require.NoError(t, err)
		_, err = d.do(ctx, charge)
		require.ErrorIs(t, err, inbox.ErrKeyReused)
		require.Equal(t, []string{first.GetChargeId()}, d.effects(t))
	})
}

// H04: a key per item. The job fails at the seventh of ten, and is run again.
func TestAJobThatIsRetriedSendsEachItemOnce(t *testing.T) {
	t.Parallel()
	drivers(t, func(t *testing.T, d *driver) {
		t.Helper()
		fails := 1
		job := func() error {
			for n := range 10 {
				ctx, err := inbox.WithLocal(t.Context(), localRecord(fmt.Sprint("recipient ", n)))
				require.NoError(t, err)
				_, err = d.do(ctx, func(ctx context.Context, exec exec) (*receipt, error) {
					if n == 6 && fails <= 3 {
						fails++
						return nil, errDied
					}
					return charge(ctx, exec)
				})
				if err != nil {
					return err
				}
			}
			return nil
		}
		for range 3 {
			require.ErrorIs(t, job(), errDied)
		}
		require.NoError(t, job())
		require.Len(t, d.effects(t), 10)
	})
}

func TestAContextWithoutARecordIsRefused(t *testing.T) {
	t.Parallel()
	drivers(t, func(t *testing.T, d *driver) {
		t.Helper()
		_, err := d.do(t.Context(), charge)
		require.ErrorIs(t, err, inbox.ErrNoRecord)
		require.Empty(t, d.effects(t))
		_, err = d.do(t.Context(), charge, inbox.AllowUnkeyed())
		require.NoError(t, err)
		require.Len(t, d.effects(t), 1)
		require.Empty(t, d.rowState(t))
		_, err = d.do(t.Context(), charge, inbox.Tries(0))
		require.Error(t, err)
	})
}

func TestMarkAndDoneSayWhatIsMissing(t *testing.T) {
	t.Parallel()
	d := openDriver(t, true)
	in := func(ctx context.Context, fn func(tx pgx.Tx) error) error {
		return pgx.BeginFunc(ctx, d.pool, fn)
	}
	mark := func(ctx context.Context) func(tx pgx.Tx) error {
		return func(tx pgx.Tx) error { _, err := pgxinbox.Mark(ctx, tx); return err }
	}
	require.ErrorIs(t, in(t.Context(), mark(t.Context())), inbox.ErrNoRecord)
	ctx, err := inbox.WithLocal(t.Context(), localRecord("4471"))
	require.NoError(t, err)
	require.ErrorIs(t, in(ctx, func(tx pgx.Tx) error { return pgxinbox.Done(ctx, tx, &receipt{}) }), inbox.ErrNotMarked)
	require.ErrorIs(t, in(t.Context(), func(tx pgx.Tx) error { return pgxinbox.Done(t.Context(), tx, nil) }), inbox.ErrNoRecord)
	require.ErrorIs(t, in(ctx, func(tx pgx.Tx) error { return errors.Join(mark(ctx)(tx), mark(ctx)(tx)) }), inbox.ErrNotDone)

	tx, err := d.db.BeginTx(ctx, nil)
	require.NoError(t, err)
	answer, err := inbox.Mark(ctx, tx)
	require.NoError(t, err)
	require.Nil(t, answer)
	require.NoError(t, inbox.Done(ctx, tx, nil))
	require.NoError(t, tx.Commit())
	require.NoError(t, in(ctx, func(tx pgx.Tx) error {
		answer, err := pgxinbox.Mark(ctx, tx)
		require.NoError(t, err)
		resp, err := inbox.As[*receipt](answer)
		require.NoError(t, err)
		require.Nil(t, resp, "the first answer was nil")
		return nil
	}))
}

func TestALocalRecordMustBeComplete(t *testing.T) {
	t.Parallel()
	for _, spoil := range []func(*inbox.Local){
		func(l *inbox.Local) { l.Identity = nil },
		func(l *inbox.Local) { l.Identity.Key = nil },
		func(l *inbox.Local) { l.Fingerprints = nil },
		func(l *inbox.Local) { l.Keep = -1 },
	} {
		l := localRecord("4471")
		spoil(&l)
		_, err := inbox.WithLocal(t.Context(), l)
		require.Error(t, err)
	}
	d := openDriver(t, true)
	_, err := handle(t.Context(), startDedupd(t).process(t), call(d), func(ctx context.Context) (*receipt, error) {
		_, err := inbox.WithLocal(ctx, localRecord("4471"))
		require.ErrorContains(t, err, "a record of dedupd already")
		return nil, nil
	})
	require.NoError(t, err)
}

// An answer that is too large to keep is said to be so; the work is not done again.
func TestAnAnswerThatIsTooLargeIsNotKept(t *testing.T) {
	t.Parallel()
	drivers(t, func(t *testing.T, d *driver) {
		t.Helper()
		ctx, err := inbox.WithLocal(t.Context(), localRecord("large"))
		require.NoError(t, err)
		large := func(ctx context.Context, exec exec) (*receipt, error) {
			r, err := charge(ctx, exec)
			r.Order = string(make([]byte, 5<<20))
			return r, err
		}
		first, err := d.do(ctx, large)
		require.NoError(t, err)
		require.Len(t, first.GetOrder(), 5<<20)
		_, err = d.do(ctx, large)
		require.ErrorIs(t, err, inbox.ErrNotStored)
		require.Len(t, d.effects(t), 1)
	})
}

// Rows follow the ends that dedupd tells: asked once they are an hour old, deleted
// after the record's tombstone.
func TestCleanUpFollowsTheEndsOfTheRecords(t *testing.T) {
	t.Parallel()
	drivers(t, func(t *testing.T, d *driver) {
		t.Helper()
		world := startDedupd(t)
		c := d.cleaner(inbox.CleanerConfig{Dedup: dedupv1.NewDedupServiceClient(world)})
		local := d.cleaner(inbox.CleanerConfig{})
		dueIn := func() (days float64) {
			require.NoError(t, d.pool.QueryRow(t.Context(), "SELECT extract(epoch FROM due_at - now())/86400 FROM dedupd_inbox").Scan(&days))
			return days
		}
		age := func() {
			_, err := d.pool.Exec(t.Context(), "UPDATE dedupd_inbox SET due_at = now() - interval '1 second'")
			require.NoError(t, err)
		}
		clean := func(c *inbox.Cleaner, deleted int64, asked int) {
			t.Helper()
			did, err := c.Clean(t.Context())
			require.NoError(t, err)
			require.Equal(t, deleted, did.Deleted)
			require.Equal(t, asked, did.Asked)
		}
		_, err := handle(t.Context(), world.process(t), call(d), func(ctx context.Context) (*receipt, error) {
			r, err := d.do(ctx, charge)
			require.NoError(t, err)
			clean(c, 0, 0) // too young to be asked about
			age()
			clean(c, 0, 1) // its run goes on: asked again tomorrow
			require.InDelta(t, 1, dueIn(), 0.01)
			return r, err
		})
		require.NoError(t, err)
		age()
		clean(local, 0, 0)
		clean(c, 0, 1)
		require.InDelta(t, 37, dueIn(), 0.1, "7 days of retention, 30 of tombstone, an hour")
		clean(c, 0, 0)
		age()
		clean(c, 1, 0)
		require.Empty(t, d.rowState(t))

		ctx, err := inbox.WithLocal(t.Context(), localRecord("4471"))
		require.NoError(t, err)
		_, err = d.do(ctx, charge)
		require.NoError(t, err)
		require.InDelta(t, 1./24, dueIn(), 0.01)
		age()
		clean(local, 1, 0)
	})
}

// A record that dedupd does not know may have been lost rather than ended, and a
// dedupd that is away says nothing: both keep the row.
func TestCleanUpKeepsARowThatDedupdDoesNotSpeakOf(t *testing.T) {
	t.Parallel()
	drivers(t, func(t *testing.T, d *driver) {
		t.Helper()
		_, err := handle(t.Context(), startDedupd(t).process(t), call(d), charging(d))
		require.NoError(t, err)
		_, err = d.pool.Exec(t.Context(), "UPDATE dedupd_inbox SET due_at = now() - interval '1 second'")
		require.NoError(t, err)
		other := startDedupd(t)
		failed := make(chan error, 1)
		ctx, stop := context.WithCancel(t.Context())
		c := d.cleaner(inbox.CleanerConfig{
			Dedup: dedupv1.NewDedupServiceClient(other), Every: time.Hour,
			Failed: func(err error) { failed <- err; stop() },
		})
		other.cut("Lookup")
		require.NoError(t, c.Run(ctx))
		require.Error(t, <-failed)
		other.cut()
		did, err := c.Clean(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, did.Asked)
		var days float64
		require.NoError(t, d.pool.QueryRow(t.Context(), "SELECT extract(epoch FROM due_at - now())/86400 FROM dedupd_inbox").Scan(&days))
		require.InDelta(t, 37, days, 0.1)
	})
}

func TestTheTableCanBeMadeByManyAtOnce(t *testing.T) {
	t.Parallel()
	d := openDriver(t, true)
	_, err := d.pool.Exec(t.Context(), "DROP TABLE dedupd_inbox")
	require.NoError(t, err)
	made := make(chan error, 8)
	for range cap(made) {
		go func() { made <- pgxinbox.EnsureTable(t.Context(), d.pool) }()
	}
	for range cap(made) {
		require.NoError(t, <-made)
	}
	require.Len(t, inbox.Schema(), 2)
}
