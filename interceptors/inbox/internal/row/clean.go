package row

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors/internal/tries"
)

const (
	cleanBatch = 500
	askWidth   = 8               // look-ups at a time
	askTime    = 5 * time.Second // for one
	// askAgain is when dedupd is asked again about a record that may still change.
	askAgain = 24 * time.Hour
	// absentKeep is how long a row of a record that dedupd does not know is kept: no
	// shorter than its own retention and tombstone unless set, for it may have lost
	// the record rather than outlived it.
	absentKeep = 37 * 24 * time.Hour
	// endSlack is kept beyond the end that dedupd tells, whose clock is another's.
	endSlack = time.Hour
)

// Cleaned is what a round of Clean did.
type Cleaned struct {
	Deleted int64 // rows whose records have ended
	Asked   int   // records that dedupd was asked about
	More    bool  // there is more to do at once
}

// clean deletes rows whose end has passed and asks dedupd about those whose end is
// not known yet, one batch of each. A nil dedup asks nobody: for local rows.
func clean(ctx context.Context, q Queries, dedup dedupv1.DedupServiceClient) (Cleaned, error) {
	var c Cleaned
	var err error
	if c.Deleted, err = q.Exec(ctx, deleteSQL, cleanBatch); err != nil {
		return c, fmt.Errorf("inbox: rows that have ended cannot be deleted: %w", err)
	}
	c.More = c.Deleted == cleanBatch
	if dedup == nil {
		return c, nil
	}
	ids, err := due(ctx, q)
	if err != nil {
		return c, err
	}
	ends, err := ask(ctx, dedup, ids)
	for i, e := range ends {
		if e.asked {
			c.Asked++
			_, fault := q.Exec(ctx, laterSQL, ids[i], e.known, interval(e.in))
			err = errors.Join(err, fault)
		}
	}
	c.More = err == nil && (c.More || len(ids) == cleanBatch)
	return c, err
}

func due(ctx context.Context, q Queries) ([][]byte, error) {
	var ids [][]byte
	err := q.Rows(ctx, dueSQL, []any{cleanBatch}, func(scan func(...any) error) error {
		var id []byte
		err := scan(&id)
		ids = append(ids, id)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("inbox: rows to ask about cannot be read: %w", err)
	}
	return ids, nil
}

// end is what dedupd says of a record: known, and gone in so long; or ask again
// then.
type end struct {
	asked bool
	known bool
	in    time.Duration
}

// ask looks the records up. One that cannot be told about is left for the next round.
func ask(ctx context.Context, dedup dedupv1.DedupServiceClient, ids [][]byte) ([]end, error) {
	ends := make([]end, len(ids))
	var g errgroup.Group
	g.SetLimit(askWidth)
	for i, id := range ids {
		g.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, askTime)
			defer cancel()
			resp, err := dedup.Lookup(ctx, &dedupv1.LookupRequest{Record: &dedupv1.LookupRequest_RecordId{RecordId: id}})
			if err != nil {
				return fmt.Errorf("inbox: dedupd does not say how long a record lasts: %w", err)
			}
			ends[i] = endOf(resp.GetRecord())
			return nil
		})
	}
	return ends, g.Wait()
}

func endOf(rec *dedupv1.RecordInfo) end {
	switch rec.GetState() {
	case dedupv1.State_STATE_COMPLETED, dedupv1.State_STATE_EXPIRED:
		return end{asked: true, known: true, in: rec.GetEnds().GetAbsentIn().AsDuration() + endSlack}
	case dedupv1.State_STATE_ABSENT:
		return end{asked: true, known: true, in: absentKeep}
	case dedupv1.State_STATE_RESERVED, dedupv1.State_STATE_UNKNOWN, dedupv1.State_STATE_RELEASED, dedupv1.State_STATE_UNSPECIFIED:
	}
	return end{asked: true, in: askAgain}
}

// DefaultEvery is the pause between a cleaner's rounds when CleanerConfig.Every is
// zero.
const DefaultEvery = time.Minute

// CleanerConfig configures a Cleaner.
type CleanerConfig struct {
	// Dedup reaches dedupd, which tells when a record ends. Nil: only rows whose end
	// is known are deleted, those of local records.
	Dedup dedupv1.DedupServiceClient
	// Every is the pause between rounds; zero means DefaultEvery.
	Every time.Duration
	// Failed is told of a round that failed; the next one tries again. Nil: nobody.
	Failed func(error)
}

// Cleaner deletes rows whose records have ended. Any number of them may run on one
// table.
type Cleaner struct {
	CleanerConfig
	queries Queries
}

// NewCleaner returns a cleaner of the table that q sees.
func NewCleaner(q Queries, c CleanerConfig) *Cleaner {
	c.Every = cmp.Or(c.Every, DefaultEvery)
	return &Cleaner{CleanerConfig: c, queries: q}
}

// Clean does one round: at most 500 rows are deleted, and dedupd is asked about at
// most 500.
func (c *Cleaner) Clean(ctx context.Context) (Cleaned, error) {
	return clean(ctx, c.queries, c.Dedup)
}

// Run cleans until ctx ends, and returns nil then.
func (c *Cleaner) Run(ctx context.Context) error {
	for {
		done, err := c.Clean(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil && c.Failed != nil {
			c.Failed(err)
		}
		wait := c.Every
		if done.More {
			wait /= 100 // others get at the table in between
		}
		if !tries.Pause(ctx, wait) {
			return nil
		}
	}
}
