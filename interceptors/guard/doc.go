// Package guard runs work at most once per key. It is the engine under the gRPC
// server interceptor and knows nothing of servers, so that other doors (HTTP,
// queues) can stand on the same rules.
//
// The life of a call, in Engine.Do:
//
//  1. Reserve: ask dedupd for the key, waiting while somebody else holds it. A
//     lost reply is asked for again under the same attempt id; a Reserve that
//     ends unread is given back in the background, so that no grant that nobody
//     knows of blocks the key.
//  2. Answered from the record: the stored outcome is the result, or a *RefusalError
//     says why the work may not run.
//  3. Granted in mode RECONCILE: an earlier run ended in the dark. The Reconciler
//     finds out what it did; only when it can no longer have happened BeginRun
//     makes the grant a running one. What it cannot tell is asked again in the
//     background (prober).
//  4. Run: on a context with the caller's values, but neither its cancel nor its
//     deadline. The lease is extended every third of it; the context ends with
//     ErrLeaseLost before a lease that cannot be extended lapses.
//  5. Complete or Release, detached from the caller and retried. The run's own
//     answer is given once dedupd has acknowledged it; if another holder was
//     quicker the stored answer is given instead, and where nobody can know, a
//     *RefusalError that is ErrOutcomeUnknown.
//  6. What dedupd did not acknowledge goes on in the background (completer), and
//     into a journal on disk if there is one; repeats that meet this process are
//     answered from there where dedupd alone would have to say unknown.
//
// Work that another process finishes is handed over by Handoff: its token is all
// that Resume needs there.
//
// What it does not do: it never guesses an outcome and never runs work without a
// durable grant.
package guard
