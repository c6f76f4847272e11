package cockroach

import (
	"cmp"
	"errors"
	"fmt"
	"time"
)

// Options say which database, and how it is used. Only URL has no default.
type Options struct {
	// URL is a connection string, postgres://…, for CockroachDB and PostgreSQL
	// alike; which it is, the store finds out. pgx's own parameters count too:
	// default_query_exec_mode=exec is for transaction poolers.
	URL string
	// MaxConns bounds the connections of this process. The default is 16.
	MaxConns int
	// CallTimeout bounds one call with all its tries, whatever its caller's
	// deadline: a caller that gives up is answered at once, its statement ends by
	// itself. The default is 10 s.
	CallTimeout time.Duration
	// NoGather sends each call alone instead of gathering concurrent ones.
	NoGather bool
	// Observer is told what happens inside.
	Observer Observer
}

// Observer is told what a store does. Nil functions are not called; the others
// are called from many goroutines and must not block. No argument ever holds a
// key, a request or a response.
type Observer struct {
	// Batch: a statement of the kind ("reserve", "complete", "extend", "release")
	// carried so many calls.
	Batch func(kind string, calls int)
	// Retry: a try failed and is made again ("contention", "ambiguous",
	// "connection").
	Retry func(cause string)
	// Swept: a sweep deleted rows, the oldest so long after the end of its time;
	// both are zero where there was nothing to delete.
	Swept func(rows int, backlog time.Duration)
}

// Defaults and limits of Options.
const (
	DefaultMaxConns    = 16
	DefaultCallTimeout = 10 * time.Second
	minConns           = 2
)

func (o Options) withDefaults() Options {
	o.MaxConns = cmp.Or(o.MaxConns, DefaultMaxConns)
	o.CallTimeout = cmp.Or(o.CallTimeout, DefaultCallTimeout)
	return o
}

func (o Options) validate() error {
	switch {
	case o.URL == "":
		return errors.New("the database's URL is missing: give postgres://user@host:port/database")
	case o.MaxConns < minConns:
		return fmt.Errorf("a pool of %d connections is too small: give at least %d", o.MaxConns, minConns)
	case o.CallTimeout < time.Second:
		return fmt.Errorf("a call timeout of %v is too short: give at least 1s", o.CallTimeout)
	}
	return nil
}

func (o Observer) batch(kind string, calls int) {
	if o.Batch != nil {
		o.Batch(kind, calls)
	}
}

func (o Observer) retry(cause string) {
	if o.Retry != nil {
		o.Retry(cause)
	}
}

func (o Observer) swept(rows int, backlog time.Duration) {
	if o.Swept != nil {
		o.Swept(rows, backlog)
	}
}
