// Package cockroach keeps records in a CockroachDB or PostgreSQL database, which
// any number of dedupd processes share. Both run the same statements; which of
// the two it is, Open finds out.
//
// Life of a hot call (Reserve, Complete, Extend, Release):
//
//  1. It is gathered with the concurrent ones of its kind; a key has one lane
//     (hot.go).
//  2. One multi-row statement does, for each row, what storage.Apply would do in
//     the usual case: insert the grant of a fresh key, settle, extend or free a
//     grant by its own holder (reserve.go, complete.go, extend.go, release.go).
//     Rows are locked in the order of their ids, then the clock is read.
//  3. What it did not touch is read once for all calls and judged by Apply. Most of
//     it is answered there: repeats and refusals write nothing.
//  4. What is to be written, and whatever is about a record with open dead letters,
//     goes through judge (judge.go): a transaction locks the record and then its
//     entries, reads the clock, lets ApplyCase decide and writes over exactly the
//     versions that it read (entries.go).
//
// BeginRun, Resolve, Redact, Forget, the rarer Releases, a replay's Reserve and all
// calls about dead letters (deadletters.go) begin at 4; Lookup, Entry, the listings
// and Census only read.
//
// An error of the database is judged in errors.go and tried again in tx.go. Every
// write names its attempt id, and step 3 and 4 read before they write: trying again
// after an ambiguous commit reads back what is there and never grants twice.
//
// A call's work has a context of its own: a caller that gives up is answered at
// once, and its statement ends by itself instead of costing the connection.
//
// The package holds no rules (they are storage.ApplyCase; a test proves step 2 equal
// to it), judges by no clock of its own, takes no advisory locks and deletes nothing
// but by Sweep and Forget.
package cockroach
