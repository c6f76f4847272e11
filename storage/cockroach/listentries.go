package cockroach

import (
	"context"
	"errors"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dedupd/dedupd/storage"
)

// chosenSQL is the condition of a storage.ListEntries, with the parameters of
// choice. An unused part is folded away when the statement is planned, so that
// "open only" is what the index over open entries asks for. States and times are
// judged by the clock that was read before ($1).
const chosenSQL = `($2 = '' OR e.namespace = $2) AND ($3 = '' OR e.operation = $3) AND ($4::BYTEA = '' OR e.caller = $4)
  AND ($5::BYTEA = '' OR e.record_id = $5) AND ($6::INT2[] IS NULL OR e.kind = ANY($6::INT2[]))
  AND ($7::INT4[] IS NULL OR e.code = ANY($7::INT4[])) AND ($8::BYTEA = '' OR e.signature = $8)
  AND (NOT $9::BOOL OR e.state <= 2)
  AND ($10::INT2[] IS NULL OR CASE WHEN e.state = 2 AND e.claim_end <= $1::TIMESTAMPTZ THEN 1 ELSE e.state END = ANY($10::INT2[]))
  AND ($11::TIMESTAMPTZ IS NULL OR e.parked_at <= $11) AND ($12::TIMESTAMPTZ IS NULL OR e.parked_at >= $12)
  AND (NOT $13::BOOL OR e.has_request AND (e.not_before IS NULL OR e.not_before <= $1::TIMESTAMPTZ))
  AND (NOT $14::BOOL OR e.requested)`

// judgedStates are the states that q chooses, none for all; zero is no entry's.
func judgedStates(q storage.ListEntries) []storage.EntryState {
	switch {
	case !q.Ready:
		return q.States
	case len(q.States) > 0 && !slices.Contains(q.States, storage.EntryParked):
		return []storage.EntryState{0}
	}
	return []storage.EntryState{storage.EntryParked}
}

// choice are the parameters of chosenSQL.
func choice(q storage.ListEntries, now storage.Instant) []any {
	var kinds, states []int16
	for _, k := range q.Kinds {
		kinds = append(kinds, int16(k))
	}
	for _, st := range judgedStates(q) {
		states = append(states, int16(st))
	}
	var record []byte
	if q.Record != (storage.RecordID{}) {
		record = q.Record[:]
	}
	var older, younger pgtype.Timestamptz
	if q.OlderThan > 0 {
		older = at(now.Add(-q.OlderThan))
	}
	if q.YoungerTo > 0 {
		younger = at(now.Add(-q.YoungerTo))
	}
	return []any{
		at(now), q.Namespace, q.Operation, notNull(q.Caller), notNull(record), kinds, q.Codes, []byte(q.Signature),
		q.OpenOnly(), states, older, younger, q.Ready, q.Requested,
	}
}

const (
	// A page looks at a bounded number of the rows of the index that serves it
	// (list.go).
	endOfPageSQL = `/* dedupd entries */ SELECT e.id FROM dedup_dead_letters AS e
WHERE ($1 = '' OR e.namespace = $1) AND ($2::BYTEA = '' OR e.record_id = $2) AND (NOT $3::BOOL OR e.state <= 2)
  AND ($4::BYTEA = '' OR e.id > $4) ORDER BY e.id LIMIT 1 OFFSET $5`
	newestEndOfPageSQL = `/* dedupd entries */ SELECT e.id FROM dedup_dead_letters AS e
WHERE ($1 = '' OR e.namespace = $1) AND ($2::BYTEA = '' OR e.record_id = $2) AND (NOT $3::BOOL OR e.state <= 2)
  AND ($4::BYTEA = '' OR e.id < $4) ORDER BY e.id DESC LIMIT 1 OFFSET $5`

	listEntriesSQL = `/* dedupd entries */ SELECT ` + entryColumns + ` FROM dedup_dead_letters AS e
WHERE ` + chosenSQL + ` AND ($15::BYTEA = '' OR e.id > $15) AND ($16::BYTEA = '' OR e.id <= $16) ORDER BY e.id LIMIT $17`
	listNewestEntriesSQL = `/* dedupd entries */ SELECT ` + entryColumns + ` FROM dedup_dead_letters AS e
WHERE ` + chosenSQL + ` AND ($15::BYTEA = '' OR e.id < $15) AND ($16::BYTEA = '' OR e.id >= $16) ORDER BY e.id DESC LIMIT $17`
)

// Entries pages through entries in the order of their ids, without their requests.
func (s *Store) Entries(ctx context.Context, q storage.ListEntries) (storage.EntryPage, error) {
	return reading(ctx, s, func(ctx context.Context, conn *pgxpool.Conn) (storage.EntryPage, error) {
		page := storage.EntryPage{}
		endSQL, listSQL := endOfPageSQL, listEntriesSQL
		if q.Newest {
			endSQL, listSQL = newestEndOfPageSQL, listNewestEntriesSQL
		}
		var after, end, record []byte
		if q.Record != (storage.RecordID{}) {
			record = q.Record[:]
		}
		if q.After != (storage.EntryID{}) {
			after = q.After[:]
		}
		var err error
		if page.Now, err = s.readClock(ctx, conn); err != nil {
			return page, err
		}
		err = conn.QueryRow(ctx, endSQL, q.Namespace, notNull(record), q.OpenOnly(), notNull(after), maxScanned-1).Scan(&end)
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return page, err
		}
		limit := min(q.Limit, maxPageRows)
		args := append(choice(q, page.Now), notNull(after), notNull(end), limit)
		if page.Entries, err = s.scanEntries(ctx, conn, listSQL, args); err != nil {
			return page, err
		}
		switch {
		case len(page.Entries) == limit:
			page.Next = page.Entries[limit-1].ID
		case len(end) == len(page.Next):
			page.Next = storage.EntryID(end)
		}
		return page, nil
	})
}

func (s *Store) scanEntries(ctx context.Context, conn *pgxpool.Conn, sql string, args []any) ([]*storage.DeadLetter, error) {
	rows, err := conn.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var entries []*storage.DeadLetter
	for rows.Next() {
		e, err := s.codec.scanEntry(rows)
		if err != nil {
			return nil, err
		}
		entries = append(entries, e.DeadLetter)
	}
	return entries, rows.Err()
}

// Neither database's max() takes bytes everywhere; hex digits are in their order.
const groupsSQL = `/* dedupd groups */ SELECT e.namespace, e.operation, e.kind, e.code, e.signature,
  count(*), sum(e.parks)::INT8, min(e.parked_at), max(e.parked_at), decode(max(encode(e.id, 'hex')), 'hex')
FROM dedup_dead_letters AS e WHERE ` + chosenSQL + `
GROUP BY e.namespace, e.operation, e.kind, e.code, e.signature
ORDER BY count(*) DESC, sum(e.parks) DESC, e.namespace, e.operation, e.kind, e.code, e.signature LIMIT $15`

// Groups counts entries by what they have in common, largest group first.
func (s *Store) Groups(ctx context.Context, q storage.ListEntries) ([]storage.EntryGroup, error) {
	return reading(ctx, s, func(ctx context.Context, conn *pgxpool.Conn) ([]storage.EntryGroup, error) {
		now, err := s.readClock(ctx, conn)
		if err != nil {
			return nil, err
		}
		rows, err := conn.Query(ctx, groupsSQL, append(choice(q, now), min(q.Limit, maxPageRows))...)
		if err != nil {
			return nil, err
		}
		return pgx.CollectRows(rows, func(row pgx.CollectableRow) (g storage.EntryGroup, err error) {
			var signature, sample []byte
			err = row.Scan(&g.Namespace, &g.Operation, (*uint8)(&g.Kind), &g.Code, &signature,
				&g.Entries, &g.Count, (*stamp)(&g.Oldest), (*stamp)(&g.Newest), &sample)
			if err == nil && len(sample) != len(g.Sample) {
				err = errCorrupt
			}
			if err == nil {
				g.Signature, g.Sample = string(signature), storage.EntryID(sample)
			}
			return g, err
		})
	})
}

const (
	unfinishedSQL = `/* dedupd census */ SELECT namespace, operation,
  CASE WHEN state = 2 AND lease_end + $2::INTERVAL <= $1::TIMESTAMPTZ THEN 4 ELSE state END AS judged, count(*), min(granted_at)
FROM dedup_records WHERE state % 2 = 0 GROUP BY namespace, operation, judged ORDER BY namespace, operation, judged`

	openEntriesSQL = `/* dedupd census */ SELECT namespace, kind, count(*), min(parked_at)
FROM dedup_dead_letters WHERE state <= 2 GROUP BY namespace, kind ORDER BY namespace, kind`
)

// Census counts what needs somebody, by the indexes over what is unfinished and
// what is open.
func (s *Store) Census(ctx context.Context) (storage.Census, error) {
	return reading(ctx, s, func(ctx context.Context, conn *pgxpool.Conn) (storage.Census, error) {
		now, err := s.readClock(ctx, conn)
		if err != nil {
			return storage.Census{}, err
		}
		census := storage.Census{Now: now}
		rows, err := conn.Query(ctx, unfinishedSQL, at(now), s.Skew())
		if err != nil {
			return census, err
		}
		census.Unfinished, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (c storage.UnfinishedCount, err error) {
			err = row.Scan(&c.Namespace, &c.Operation, (*uint8)(&c.State), &c.Records, (*stamp)(&c.Oldest))
			return c, err
		})
		if err != nil {
			return census, err
		}
		if rows, err = conn.Query(ctx, openEntriesSQL); err != nil {
			return census, err
		}
		census.Entries, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (c storage.EntryCount, err error) {
			err = row.Scan(&c.Namespace, (*uint8)(&c.Kind), &c.Entries, (*stamp)(&c.Oldest))
			return c, err
		})
		return census, err
	})
}

// readClock reads the clock before a read sees anything.
func (s *Store) readClock(ctx context.Context, conn *pgxpool.Conn) (now storage.Instant, err error) {
	err = conn.QueryRow(ctx, s.clock.text(statementClockSQL)).Scan((*stamp)(&now))
	return now, err
}

// reading runs a call that only reads.
func reading[T any](ctx context.Context, s *Store, read func(ctx context.Context, conn *pgxpool.Conn) (T, error)) (T, error) {
	return do(ctx, s, func(ctx, caller context.Context) (v T, err error) {
		err = s.retry(ctx, caller, func() error {
			return s.onConn(ctx, caller, func(conn *pgxpool.Conn) (err error) {
				v, err = read(ctx, conn)
				return err
			})
		})
		return v, err
	})
}
