package row

import "fmt"

// The statements. Comments name their purpose to whoever looks at the server.
const (
	// takeSQL inserts the row or takes it over where it is planted by a fence that is
	// not higher. It waits for a transaction in flight on the same row.
	takeSQL = `/* dedupd inbox %[1]s */ INSERT INTO dedupd_inbox (record_id, fence, state, fingerprints, due_at)
VALUES ($1, $2, '%[1]s', $3, now() + $4::interval)
ON CONFLICT (record_id) DO UPDATE
SET fence = excluded.fence, state = excluded.state, fingerprints = excluded.fingerprints,
	due_at = excluded.due_at, ends = false
WHERE dedupd_inbox.state = 'planted' AND dedupd_inbox.fence <= excluded.fence
RETURNING fence`

	readSQL = `/* dedupd inbox read */ SELECT fence, state, fingerprints, outcome FROM dedupd_inbox WHERE record_id = $1`

	// doneSQL writes the answer. due_at and ends stay as they are under dedupd, which
	// tells the end later; without it the end is known now.
	doneSQL = `/* dedupd inbox done */ UPDATE dedupd_inbox
SET state = 'done', outcome = $3, ends = ends OR $4, due_at = CASE WHEN $4 THEN now() + $5::interval ELSE due_at END
WHERE record_id = $1 AND fence = $2 AND state = 'marked'
RETURNING fence`

	deleteSQL = `/* dedupd inbox clean */ DELETE FROM dedupd_inbox WHERE record_id IN (
	SELECT record_id FROM dedupd_inbox WHERE ends AND due_at <= now() ORDER BY due_at LIMIT $1) AND ends AND due_at <= now()`

	dueSQL = `/* dedupd inbox due */ SELECT record_id FROM dedupd_inbox WHERE NOT ends AND due_at <= now() ORDER BY due_at LIMIT $1`

	laterSQL = `/* dedupd inbox later */ UPDATE dedupd_inbox SET ends = $2, due_at = now() + $3::interval
WHERE record_id = $1 AND NOT ends AND due_at <= now()`
)

func markSQL() string  { return fmt.Sprintf(takeSQL, marked) }
func plantSQL() string { return fmt.Sprintf(takeSQL, planted) }
