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
//  4. What Apply would write goes through judge (judge.go): a transaction locks the
//     row, reads the clock, lets Apply decide and writes over exactly the version
//     that it read.
//
// BeginRun, Resolve and the rarer Releases begin at 4; Lookup and List only read.
//
// An error of the database is judged in errors.go and tried again in tx.go. Every
// write names its attempt id, and step 3 and 4 read before they write: trying again
// after an ambiguous commit reads back what is there and never grants twice.
//
// A call's work has a context of its own: a caller that gives up is answered at
// once, and its statement ends by itself instead of costing the connection.
//
// The package holds no rules (they are storage.Apply; a test proves step 2 equal to
// it), tells no time of its own, takes no advisory locks and deletes nothing but by
// Sweep.
package cockroach
