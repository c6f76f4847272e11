package storage

import "errors"

var (
	// ErrClosed is returned by every call after Close.
	ErrClosed = errors.New("store is closed")
	// ErrUnavailable wraps faults of the store itself: what was asked was not
	// acknowledged, and asking again with the same attempt id is safe.
	ErrUnavailable = errors.New("store unavailable")
	// ErrLocked is returned by opening a store that another process has open.
	ErrLocked = errors.New("store is in use by another process")
)

// InvalidError reports input that breaks a limit.
type InvalidError struct {
	Field   string // path of the field, as in the proto
	Message string // names the limit and what was given, never the value
	Key     bool   // the key itself is at fault
}

// Error returns the message.
func (e *InvalidError) Error() string { return e.Message }
