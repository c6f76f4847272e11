package row

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/dedupd/dedupd/interceptors/guard"
)

// forgotten is what an operator reads of a row that was committed without Done.
const forgotten = "a transaction was committed with the inbox's mark and without its answer: see whether its effect is there, then resolve the record"

// Reconciler returns what settles an unknown outcome by the table: it plants the
// grant's fence, or finds the answer.
func Reconciler(db DB) guard.Reconciler {
	return func(ctx context.Context, a guard.Attempt) (guard.Verdict, error) {
		var stood *found
		err := plantedIn(ctx, db, func(q Queries) (err error) {
			stood, err = recordOfAttempt(a).take(ctx, q, plantSQL())
			return err
		})
		switch {
		case lockTimedOut(err):
			return guard.StillUnknown(), nil // its transaction is going on: ask again
		case err != nil:
			return guard.StillUnknown(), fmt.Errorf("inbox: the record cannot be reconciled: %w", err)
		case stood == nil:
			return guard.NotApplied(), nil
		case stood.state == done && guard.SameRequest(stood.fingerprints, a.Fingerprints):
			return guard.Applied(stood.outcome), nil
		case stood.state == done:
			// The row is another request's for good, so nothing of this one can happen;
			// run, it is told so by its own Mark.
			return guard.NotApplied(), nil
		case stood.state == planted:
			return guard.StillUnknown(), ErrStaleHolder
		}
		return guard.Partial(forgotten), nil
	}
}

// plantedIn runs fn in a transaction that waits for others for LockWait only, and
// again where it was contended.
func plantedIn(ctx context.Context, db DB, fn func(Queries) error) error {
	for n := 1; ; n++ {
		err := plantOnce(ctx, db, fn)
		if err == nil || n == DefaultTries || !contended(err) && !away(err) || !pause(ctx, n) {
			return err
		}
	}
}

func plantOnce(ctx context.Context, db DB, fn func(Queries) error) error {
	// READ COMMITTED: a row that is committed while we wait for it is to be seen.
	tx, err := db.Begin(ctx, sql.LevelReadCommitted)
	if err != nil {
		return err
	}
	for _, name := range []string{"lock_timeout", "idle_in_transaction_session_timeout"} {
		if _, err = tx.Exec(ctx, fmt.Sprintf("SET LOCAL %s = %d", name, LockWait/time.Millisecond)); err != nil {
			break
		}
	}
	if err == nil {
		err = fn(tx)
	}
	if err != nil {
		rollback(ctx, tx)
		return err
	}
	commit, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitTime)
	defer cancel()
	return tx.Commit(commit)
}
