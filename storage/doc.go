// Package storage is the seam between dedupd's server and its databases, and
// the home of the rules.
//
// How a call flows through it:
//
//  1. The server turns a request of the wire into a Reserve, Complete, … of this
//     package and hands it to a Store.
//  2. The store reads the record and its own clock, atomically for that record.
//  3. Apply (transition.go) judges: (record or nothing, request, now) → (record to
//     write or nothing, answer). It is pure, and the only place of the rules.
//     ApplyCase does the same for a record with its open dead letters.
//  4. The store makes the new record durable, and only then returns the answer.
//
// The package has no I/O and imports the standard library alone. Stores live in
// its sub-packages; storagetest is the suite that each of them passes.
package storage
