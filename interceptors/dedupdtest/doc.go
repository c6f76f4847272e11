// Package dedupdtest proves, in a service's own tests, that its handlers and
// reconcilers keep the promise: at most one effect per key, and the first answer
// for every repeat. It brings an in-memory dedupd, so nothing has to be started.
//
// The life of a scenario, such as Kit.KillBetween:
//
//  1. Kit.Serve has started the service with the options of production on an
//     in-memory connection, as one "process" with its own way to the in-memory
//     dedupd.
//  2. The scenario makes the call under a fresh key, and spoils it: the reply is
//     lost, the process dies between effect and record, its lease lapses.
//  3. It makes the call again, where the scenario says so from another process.
//  4. It counts the effects that the handler's fake of the outer world reported
//     (Kit.Effect), compares the answers, and fails the test where the promise is
//     broken. The Report tells the rest.
//
// What it does not do: it keeps nothing, it proves nothing of effects that are
// not reported to it, and it does not replace tests against a real dedupd's disk.
package dedupdtest
