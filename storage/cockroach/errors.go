package cockroach

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"github.com/cockroachdb/cockroach-go/v2/crdb"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/dedupd/dedupd/storage"
)

// fault is what an error of the database means for the call that met it.
type fault uint8

const (
	// faultFinal: asking again would meet it again.
	faultFinal fault = iota
	// faultContention: the database rolled the work back; ask again.
	faultContention
	// faultConnection: nothing was sent, or the server said that it is not
	// serving; ask again, on another connection.
	faultConnection
	// faultAmbiguous: the work may have been committed. Every write names its
	// attempt id, so asking again reads back what is there (Apply gives the same
	// attempt the same answer) and writes only what is not.
	faultAmbiguous
)

// String returns the name that an Observer gets.
func (f fault) String() string {
	switch f {
	case faultContention:
		return "contention"
	case faultConnection:
		return "connection"
	case faultAmbiguous:
		return "ambiguous"
	case faultFinal:
	}
	return "final"
}

// judgeFault tells what err means. Codes come before connection errors: a server
// that says why it ends the session is believed.
func judgeFault(err error) fault {
	var ambiguous *crdb.AmbiguousCommitError
	var pg *pgconn.PgError
	var connect *pgconn.ConnectError
	isPg := errors.As(err, &pg)
	switch {
	case errors.Is(err, errChanged):
		return faultContention
	case isPg && judgeCode(pg.Code) == faultContention, errors.Is(err, pgx.ErrTxCommitRollback):
		return faultContention
	case errors.As(err, &connect):
		if isPg && judgeCode(pg.Code) == faultFinal {
			return faultFinal // a wrong password, no such database
		}
		return faultConnection
	case errors.As(err, &ambiguous):
		return faultAmbiguous
	case isPg:
		return judgeCode(pg.Code)
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return faultFinal // the call's time is over
	case pgconn.SafeToRetry(err):
		return faultConnection
	case connectionLost(err):
		return faultAmbiguous
	}
	return faultFinal
}

// judgeCode tells what a code says. A session that the server ends (57P01) or
// that breaks (08…) may have committed first.
func judgeCode(code string) fault {
	switch code {
	case "40001", "40P01", "CR000", "55P03", "57014", "25P03": // serialization, deadlock, restart; lock, statement or idle transaction timed out
		return faultContention
	case "57P03", "53300", "25006", "26000", "0A000": // starting, full, read only; a statement the server forgot or planned anew
		return faultConnection
	case "40003", "57P01", "57P02", "57P05":
		return faultAmbiguous
	}
	if strings.HasPrefix(code, "08") {
		return faultAmbiguous
	}
	return faultFinal
}

func connectionLost(err error) bool {
	var network net.Error
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) ||
		errors.As(err, &network) || strings.Contains(err.Error(), "conn closed") // pgx has no name for it
}

// errChanged: the row is not what was read, although it was locked (locks of
// CockroachDB are best effort).
var errChanged = errors.New("the record changed while it was judged")

// unavailable turns a fault into what the seam speaks of. The caller's own end
// and a closed store stay what they are.
func unavailable(caller context.Context, err error) error {
	switch {
	case err == nil, errors.Is(err, storage.ErrClosed):
		return err
	case caller.Err() != nil && errors.Is(err, caller.Err()):
		return caller.Err()
	}
	return fmt.Errorf("%w: %w", storage.ErrUnavailable, err)
}
