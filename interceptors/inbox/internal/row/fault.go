package row

import (
	"context"
	"database/sql/driver"
	"errors"
	"io"
	"net"
	"strings"
)

// sqlState returns the SQLSTATE in err, whichever driver made it; empty for none.
func sqlState(err error) string {
	var e interface {
		error
		SQLState() string
	}
	if errors.As(err, &e) {
		return e.SQLState()
	}
	return ""
}

func duplicate(err error) bool {
	switch sqlState(err) {
	case "23505", "42P07", "42710":
		return true
	}
	return false
}

// contended reports that the database rolled the transaction back for another's
// sake: run again it may pass.
func contended(err error) bool {
	switch sqlState(err) {
	case "40001", "40P01", "CR000": // serialization, deadlock, restart
		return true
	}
	return errors.Is(err, errAgain)
}

// lockTimedOut reports that somebody else's transaction kept the row for too long.
func lockTimedOut(err error) bool { return sqlState(err) == "55P03" }

// away reports that the session broke or the server is not serving: before the
// commit was sent, nothing has been applied.
func away(err error) bool {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return false
	}
	state := sqlState(err)
	switch state {
	case "57P01", "57P02", "57P03", "57P05", "53300", "25P03", "40003":
		return true // ended, starting, full, stood idle for too long, ambiguous
	case "":
		var network *net.OpError
		return errors.Is(err, driver.ErrBadConn) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
			errors.Is(err, net.ErrClosed) || errors.As(err, &network)
	}
	return strings.HasPrefix(state, "08")
}

// refusedCommit reports that a commit surely did not happen: the database says so
// by a code that is not about the session.
func refusedCommit(err error) bool {
	return sqlState(err) != "" && !away(err)
}
