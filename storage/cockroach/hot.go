package cockroach

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dedupd/dedupd/internal/gather"
	"github.com/dedupd/dedupd/storage"
)

// The hot calls: one multi-row statement for all concurrent ones of a kind, each
// row touched only where Apply would do just that. What is not touched goes on to
// one read for all, and from there, only where something is to be written, to
// judge.

// kind is one of the hot calls.
type kind uint8

const (
	kindReserve kind = iota
	kindComplete
	kindExtend
	kindRelease
	kinds
)

// String returns the name that an Observer gets.
func (k kind) String() string {
	return [kinds]string{"reserve", "complete", "extend", "release"}[k]
}

// statement writes the calls, one per id and in the order of their ids. Their
// answers come back in the same order, nil where the statement touched no row.
type statement func(ctx context.Context, conn *pgxpool.Conn, calls []*call) ([]*storage.Answer, error)

// item is a hot call.
type item struct {
	id      storage.RecordID
	req     storage.Request
	outcome []byte // encoded, of Complete, and of Release the error to keep
}

type call = gather.Call[item, storage.Answer]

// Bounds of a batch.
const (
	postgresLanes  = 4 // statements of a kind in flight, of a database that answers slowly
	cockroachLanes = 2 // more contend for the same ranges
	maxBatchCalls  = 256
	maxBatchBytes  = 4 << 20
	rowBytes       = 1 << 10 // of a row without its outcome, at most about
)

// brisk is how long a statement takes that costs work and no waiting.
func brisk(calls int) time.Duration {
	return 1200*time.Microsecond + time.Duration(calls)*40*time.Microsecond
}

// startGathering gives each kind its gatherer. A key has one lane, so that no two
// statements in flight wait for each other's row.
func (s *Store) startGathering(opts Options) {
	bounds := gather.Options[item]{
		Slots: postgresLanes, MaxCalls: maxBatchCalls,
		Lane: func(it item) int { return int(it.id[0]) }, Brisk: brisk,
		MaxBytes: maxBatchBytes, Size: func(it item) int { return rowBytes + len(it.outcome) },
	}
	if s.db.cockroach {
		bounds.Slots = cockroachLanes
	}
	if opts.NoGather {
		bounds = gather.Options[item]{Slots: opts.MaxConns, MaxCalls: 1}
	}
	s.statements = [kinds]statement{s.reserveAll, s.completeAll, s.extendAll, s.releaseAll}
	for k := range kinds {
		s.gathered[k] = gather.New(func(batch []*call) { s.flush(k, batch) }, bounds)
	}
}

// hot sends a call with others of its kind.
func (s *Store) hot(ctx context.Context, k kind, it item) (storage.Answer, error) {
	if !s.begin() {
		return storage.Answer{}, storage.ErrClosed
	}
	defer s.calls.Done()
	return s.gathered[k].Do(ctx, it)
}

// flush answers a batch.
func (s *Store) flush(k kind, batch []*call) {
	ctx, cancel := context.WithTimeout(context.Background(), s.timeout)
	defer cancel()
	first, again := s.sort(batch)
	pending := append(s.send(ctx, k, first), again...)
	s.settle(ctx, pending)
}

// sort orders a batch by id, so that any two statements lock rows in one order,
// and parts the first call of each id from those that repeat it.
func (s *Store) sort(batch []*call) (first, again []*call) {
	batch = s.waiting(batch)
	slices.SortStableFunc(batch, func(a, b *call) int { return bytes.Compare(a.In.id[:], b.In.id[:]) })
	first = make([]*call, 0, len(batch))
	for i, c := range batch {
		if i > 0 && batch[i-1].In.id == c.In.id {
			again = append(again, c)
		} else {
			first = append(first, c)
		}
	}
	return first, again
}

// waiting drops the calls that nobody waits for any longer, and answers those
// whose time ran out in the queue of a database that does not keep up.
func (s *Store) waiting(calls []*call) []*call {
	return slices.DeleteFunc(calls, func(c *call) bool {
		err := c.Context().Err()
		if err == nil && time.Since(c.Since) > s.timeout {
			err = fmt.Errorf("%w: the call was not sent within %v", storage.ErrUnavailable, s.timeout)
		}
		if err != nil {
			c.Answer(storage.Answer{}, err)
		}
		return err != nil
	})
}

// send writes calls by one statement and answers those whose rows it touched; the
// rest is returned. Sending again after an ambiguous error is safe: what was
// committed is then not touched, and found by the read. A statement that fails for
// one row is split until that row is alone.
func (s *Store) send(ctx context.Context, k kind, calls []*call) (pending []*call) {
	var answers []*storage.Answer
	err := s.retry(ctx, ctx, func() error {
		return s.onConn(ctx, ctx, func(conn *pgxpool.Conn) (err error) {
			if calls = s.waiting(calls); len(calls) == 0 { // who is gone is granted nothing
				return nil
			}
			s.observer.batch(k.String(), len(calls))
			answers, err = s.statements[k](ctx, conn, calls)
			return err
		})
	})
	if err != nil {
		if len(calls) > 1 && ctx.Err() == nil && judgeFault(err) == faultFinal {
			half := len(calls) / 2
			return append(s.send(ctx, k, calls[:half:half]), s.send(ctx, k, calls[half:])...)
		}
		fail(calls, err) //nolint:contextcheck // each call has a context of its own
		return nil
	}
	for i, c := range calls {
		if answers[i] == nil {
			pending = append(pending, c)
			continue
		}
		c.Answer(*answers[i], nil)
	}
	return pending
}

// settle answers what no statement touched: from one read for all where nothing
// is to be written, which is what most repeats are, else one by one. Calls of one
// key are answered in their order.
func (s *Store) settle(ctx context.Context, calls []*call) {
	if len(calls) == 0 {
		return
	}
	found, now, err := s.read(ctx, calls)
	unread := err != nil && judgeFault(err) == faultFinal && ctx.Err() == nil // be it because of one row
	if err != nil && !unread {
		fail(calls, err) //nolint:contextcheck // each call has a context of its own
		return
	}
	slow := make(map[storage.RecordID][]*call)
	for _, c := range calls {
		id := c.In.id
		if !unread && len(slow[id]) == 0 {
			if ans, ok := s.answered(found[id], c.In.req, now); ok {
				c.Answer(ans, nil)
				continue
			}
		}
		slow[id] = append(slow[id], c)
	}
	for _, of := range slow {
		s.work.Go(func() { s.judgeAll(of) }) //nolint:contextcheck // each call has a context of its own
	}
}

// answered judges a call by the record alone, where that is all it takes: nothing
// is to be written, and the record has no entries to look at.
func (s *Store) answered(rec *storage.Record, req storage.Request, now storage.Instant) (storage.Answer, bool) {
	if rec != nil && rec.Pins > 0 {
		return storage.Answer{}, false
	}
	change, ans := storage.ApplyCase(storage.Case{Record: rec}, req, now, s.Skew())
	return ans, !writes(change) && ans.Conflict == nil
}

// judgeAll answers calls of one key one after the other.
func (s *Store) judgeAll(calls []*call) {
	for _, c := range calls {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(c.Context()), s.timeout)
		ans, err := s.judge(ctx, c.Context(), c.In.id, c.In.req)
		cancel()
		c.Answer(ans, unavailable(c.Context(), err))
	}
}

func fail(calls []*call, err error) {
	for _, c := range calls {
		c.Answer(storage.Answer{}, unavailable(c.Context(), err))
	}
}

// readSQL locks nothing. Its clock is from before it saw any row: a row that
// changed meanwhile is not judged by a time after the change.
const readSQL = `/* dedupd read */ SELECT ` + recordColumns + `, statement_timestamp() FROM dedup_records WHERE id = ANY($1::BYTEA[])`

const statementClockSQL = `/* dedupd read */ SELECT statement_timestamp()`

// read reads the rows of calls once each.
func (s *Store) read(ctx context.Context, calls []*call) (map[storage.RecordID]*storage.Record, storage.Instant, error) {
	ids := make([][]byte, 0, len(calls))
	seen := make(map[storage.RecordID]bool, len(calls))
	for _, c := range calls {
		if !seen[c.In.id] {
			seen[c.In.id] = true
			ids = append(ids, c.In.id[:])
		}
	}
	return s.readIDs(ctx, ctx, ids)
}

func (s *Store) readIDs(ctx, caller context.Context, ids [][]byte) (found map[storage.RecordID]*storage.Record, now storage.Instant, err error) {
	err = s.retry(ctx, caller, func() error {
		return s.onConn(ctx, caller, func(conn *pgxpool.Conn) (err error) {
			found, now, err = s.readOn(ctx, conn, ids)
			return err
		})
	})
	return found, now, err
}

func (s *Store) readOn(ctx context.Context, conn *pgxpool.Conn, ids [][]byte) (map[storage.RecordID]*storage.Record, storage.Instant, error) {
	rows, err := conn.Query(ctx, s.clock.text(readSQL), ids)
	if err != nil {
		return nil, 0, err
	}
	defer rows.Close()
	found := make(map[storage.RecordID]*storage.Record, len(ids))
	var now storage.Instant
	for rows.Next() {
		rec, err := s.codec.scanRecord(rows, (*stamp)(&now))
		if err != nil {
			return nil, 0, err
		}
		found[rec.ID()] = rec
	}
	if err := rows.Err(); err != nil || len(found) > 0 {
		return found, now, err
	}
	// Nothing is there: only the time is needed.
	err = conn.QueryRow(ctx, s.clock.text(statementClockSQL)).Scan((*stamp)(&now))
	return found, now, err
}

// find returns the place of the call whose record is kept under id.
func find(calls []*call, id []byte) (int, bool) {
	return slices.BinarySearchFunc(calls, id, func(c *call, id []byte) int { return bytes.Compare(c.In.id[:], id) })
}

// collect scans rows, which come in any order, that are a record and the clock
// after its write.
func (s *Store) collect(rows pgx.Rows, calls []*call, state storage.State) ([]*storage.Answer, error) {
	defer rows.Close()
	answers := make([]*storage.Answer, len(calls))
	for rows.Next() {
		var now storage.Instant
		rec, err := s.codec.scanRecord(rows, (*stamp)(&now))
		if err != nil {
			return nil, err
		}
		id := rec.ID()
		i, ok := find(calls, id[:])
		if !ok {
			return nil, errCorrupt
		}
		answers[i] = &storage.Answer{Verdict: storage.VerdictOK, State: state, Record: rec, Now: now}
	}
	return answers, rows.Err()
}
