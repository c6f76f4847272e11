// Package replay sends dead letters again, from the process that owns them:
// dedupd itself calls nobody.
//
// The life of a replay:
//
//  1. Claim: an entry is taken from dedupd for a lease, under a token made here.
//     What is claimed by somebody else, or whose key has a run going on, is left.
//  2. Send: the stored request goes to the stored method, by the owner's own
//     connection and so through its whole chain, with the entry's key and the
//     claim. No generated code is needed: of a message type that is not linked in
//     the bytes go as they were stored.
//     An entry that was edited from another waits until that one is closed.
//  3. The service's interceptor hands the claim to dedupd, which binds the run to
//     the entry's record: however many replay it and whoever they are, the effect
//     happens once, and work that was done meanwhile is answered from the record.
//  4. Settle: the claim ends with what came of it. What the record says wins, also
//     over an answer that was lost on the way back.
//  5. While the service is down one entry at a time probes it, with growing waits.
//     A failed entry waits longer after each failure, and is never given up: that
//     is an operator's word (`dedupd dlq discard`).
//
// What it does not do: it makes no key and edits no request, and it holds no
// claim longer than one call.
package replay
