// Package server is dedupd itself: the gRPC services over a storage.Store, with
// the chain that every call goes through, and the ports they are served on.
//
// The life of a Reserve:
//
//  1. chain.go counts it, catches panics, logs it, and checks the message's
//     limits; while draining it is turned away.
//  2. dedup.go turns it into a storage.Reserve (convert.go) and asks the store,
//     which judges it by storage.Apply; retry.go asks again while the store is
//     out of reach, within the caller's deadline and one budget.
//  3. IN_PROGRESS with `wait`: waiters.go holds the call until the holder is
//     done, its lease has lapsed, or the time is over.
//  4. The answer goes back through convert.go, a refusal through errors.go: one
//     table from verdicts and faults to codes and reasons.
//
// A dead letter has the same file name in every layer: deadletter.go here. What
// operators ask is in admin.go, stats.go and erase.go; what needs somebody is
// counted by census.go, and told by metrics and alerts.
//
// Conn is the same path without a network. The package never imports a store's
// package, decides no rule of the protocol and keeps nothing between calls but
// the callers it holds.
package server
