// Package inbox commits a call's key together with its effect, for services whose
// effect is in PostgreSQL or CockroachDB. A crash anywhere between the effect and the
// end of the call then answers itself: the database says whether it happened, and
// what the answer was. This package is for database/sql; pgxinbox beside it is the
// same for pgx.
//
// The life of a call:
//
//  1. dedupd grants the key; the handler runs inside Do, or in a transaction of its
//     own between Mark and Done.
//  2. Mark is the transaction's first statement: it inserts the record's row with
//     the grant's fence, or takes over one that a reconciler has planted. A row that
//     is done already is the answer; one of a later holder is ErrStaleHolder.
//  3. The effect.
//  4. Done writes the answer into the row. All three commit together, or not at all.
//  5. The handler returns that answer, which completes the record at dedupd.
//  6. Whoever meets the key after a crash or a pause asks the Reconciler
//     (interceptors.WithInbox): it plants its own fence by the same statement, which
//     waits for a transaction in flight. The answer is there: it is given. It is not:
//     every earlier holder is shut out, and the handler runs.
//  7. A Cleaner deletes rows after the ends that dedupd tells.
//
// Without dedupd the row alone keeps the promise for one database: name the record
// with WithLocal.
//
// What it does not do: it protects nothing outside of its transaction, and one run
// has one transaction. Keep calls to other services out of it; made through
// interceptors.ClientOptions before it they have keys of their own.
package inbox
