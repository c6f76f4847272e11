package policy

import (
	"fmt"

	"google.golang.org/grpc/codes"
)

// Retry says whether a call is worth another try.
type Retry uint8

const (
	// AsTable is the zero value: in a [Row] of [Table.With] it keeps what the
	// table says. It is never an answer.
	AsTable Retry = iota
	// Permanent errors come again however often the call is tried.
	Permanent
	// Transient errors may be gone at the next try.
	Transient
	// Wait means that somebody else is at work on the same key: ask again after
	// the hint. It uses up no attempt.
	Wait
	// Stop means that this call is not tried again although its error is not
	// permanent: the caller's context has ended, or the server asked for no retry.
	Stop
)

// String returns the lower-case name of r.
func (r Retry) String() string {
	return name(int(r), "as table", "permanent", "transient", "wait", "stop")
}

// Effect says whether a call may have applied something, as far as its client
// can tell. Larger is worse to assume wrongly, so of two opinions the larger
// counts until an outcome is known.
type Effect uint8

const (
	// EffectAsTable is the zero value: in a [Row] of [Table.With] it keeps what
	// the table says. It is never an answer.
	EffectAsTable Effect = iota
	// EffectNone means that this try applied nothing.
	EffectNone
	// EffectUnknown means that it may have applied something, or still may.
	EffectUnknown
	// EffectApplied means that it did.
	EffectApplied
)

// String returns the lower-case name of e.
func (e Effect) String() string { return name(int(e), "as table", "none", "unknown", "applied") }

// Ending says what a handler's return means for its record, if the run left
// nothing behind that the error does not tell of.
type Ending uint8

const (
	// EndingAsTable is the zero value: in a [Row] of [Table.With] it keeps what
	// the table says. It is never an answer.
	EndingAsTable Ending = iota
	// Completed means that the outcome is stored and every repeat gets it.
	Completed
	// Released means that nothing was applied; the key may run again.
	Released
	// ReleasedKept is Released, with the error kept for a short hold for waiting
	// repeats of the same request.
	ReleasedKept
	// Unknown means that the effect may or may not have happened.
	Unknown
)

// String returns the lower-case name of e.
func (e Ending) String() string {
	return name(int(e), "as table", "completed", "released", "released, kept", "unknown")
}

func name(i int, names ...string) string {
	if i < len(names) {
		return names[i]
	}
	return fmt.Sprintf("invalid(%d)", i)
}

// Row is what one status code means.
type Row struct {
	Retry  Retry  // is it worth another try?
	Effect Effect // seen by a client, after the request was sent
	Ending Ending // returned by a handler
}

// allCodes is the number of codes that gRPC defines, OK included.
const allCodes = int(codes.Unauthenticated) + 1

// Table tells what every status code means. Its zero value is not usable; start
// from [Default].
type Table struct {
	rows [allCodes]Row
}

// Default returns the table of the classification that the interceptors use
// unless a method overrides it.
func Default() Table {
	// One row per code. UNAVAILABLE does not prove that the server did nothing,
	// so a client takes it as unknown; a handler that returns it says that it
	// could not start, and an owner who means otherwise marks the error or
	// overrides the row.
	return Table{rows: [allCodes]Row{
		codes.OK:                 {Permanent, EffectApplied, Completed},
		codes.Canceled:           {Transient, EffectUnknown, Unknown},
		codes.Unknown:            {Transient, EffectUnknown, Unknown},
		codes.InvalidArgument:    {Permanent, EffectNone, ReleasedKept},
		codes.DeadlineExceeded:   {Transient, EffectUnknown, Unknown},
		codes.NotFound:           {Permanent, EffectNone, ReleasedKept},
		codes.AlreadyExists:      {Permanent, EffectNone, ReleasedKept},
		codes.PermissionDenied:   {Permanent, EffectNone, Released},
		codes.ResourceExhausted:  {Transient, EffectNone, Released},
		codes.FailedPrecondition: {Permanent, EffectNone, ReleasedKept},
		codes.Aborted:            {Transient, EffectNone, Released},
		codes.OutOfRange:         {Permanent, EffectNone, ReleasedKept},
		codes.Unimplemented:      {Permanent, EffectNone, ReleasedKept},
		codes.Internal:           {Transient, EffectUnknown, Unknown},
		codes.Unavailable:        {Transient, EffectUnknown, Released},
		codes.DataLoss:           {Permanent, EffectUnknown, Unknown},
		codes.Unauthenticated:    {Permanent, EffectNone, Released},
	}}
}

// Row returns what the table says of c. A code that gRPC does not define means
// what UNKNOWN means.
func (t Table) Row(c codes.Code) Row {
	if int(c) >= allCodes {
		c = codes.Unknown
	}
	return t.rows[c]
}

// With returns a copy of t in which c means r; zero fields of r keep what t
// says. It refuses OK, which always means applied, codes that gRPC does not
// define, and values that only an answer may have: Wait, Stop and, for an
// error, Completed.
func (t Table) With(c codes.Code, r Row) (Table, error) {
	if c == codes.OK || int(c) >= allCodes {
		return t, fmt.Errorf("code %v cannot be overridden, name one of the 16 error codes", c)
	}
	if r.Retry > Transient {
		return t, fmt.Errorf("code %v: retry must be permanent or transient, not %v", c, r.Retry)
	}
	if r.Effect > EffectApplied {
		return t, fmt.Errorf("code %v: effect must be none, unknown or applied, not %v", c, r.Effect)
	}
	if r.Ending == Completed || r.Ending > Unknown {
		return t, fmt.Errorf("code %v: ending must be released, released and kept, or unknown, not %v", c, r.Ending)
	}
	row := &t.rows[c]
	if r.Retry != AsTable {
		row.Retry = r.Retry
	}
	if r.Effect != EffectAsTable {
		row.Effect = r.Effect
	}
	if r.Ending != EndingAsTable {
		row.Ending = r.Ending
	}
	return t, nil
}

// ErrorsUnknown returns a copy of t in which every error of a handler leaves
// the outcome unknown: the method policy `errors: ERROR_RULE_UNKNOWN`.
func (t Table) ErrorsUnknown() Table {
	for c := range t.rows {
		if codes.Code(c) != codes.OK {
			t.rows[c].Ending = Unknown
		}
	}
	return t
}
