// Package embedded is the store that lives inside dedupd's own process: Pebble
// in one directory, or in memory for tests.
//
// The life of a call:
//
//  1. The key's lock is taken (keylock.go). A caller waits for it no longer than
//     its context, and holds it until the answer is final, so that nobody reads
//     a record that is not on disk yet.
//  2. The record is read and decoded (layout.go, codec.go), and its open dead
//     letters where they hold it or the call is about one; the clock is read
//     (clock.go), and storage.ApplyCase judges (judge.go).
//  3. Where there is something to write, record, dead letters and index entries
//     go to Pebble as one batch (commit.go). The caller waits for the fsync holding nothing
//     but its key: one fsync serves all batches that wait for it.
//  4. The clock is read once more for the answer, and the key is given back.
//
// A write that fails on disk stops the whole store (failstop.go): from there on
// nothing is acknowledged and nothing reaches the disk, until it is opened
// again. It does not sweep by itself, keeps no rules of its own, and does not
// serve two processes.
package embedded
