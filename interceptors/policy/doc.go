// Package policy says what the end of a call means: is it worth another try,
// may something have been applied, what does a handler's return say about its
// run, and how long to wait before the next try.
//
// The life of a failed try:
//
//  1. The client's retry loop hands a [Try] to [Table.Classify]: the error, how
//     much of the request was sent, whether the caller's own context has ended,
//     and the server's pushback.
//  2. The answer is read from one table of the 17 codes, then corrected by what
//     the code alone does not tell: dedupd's own reasons (known by their domain),
//     gRPC's "larger than max" wordings, a stream reset by the transport.
//  3. [Answer.Retry] says whether to go on; [Backoff.Wait] says after how long,
//     with the server's hint as a floor; [Answer.Effect] is what is reported, and
//     what decides between an error and "outcome unknown", if this was the end.
//  4. A server hands a handler's error to [Table.Ending], which reads the same
//     table: is the run RELEASED, RELEASED with its error kept, or UNKNOWN?
//
// Two types keep state beside it, one of each for a connection: [Budget] bounds
// the calls that are retrying, and [Breaker] holds tries back from a server that
// [VerdictOf] found ill.
//
// Everything else here is a pure function of its arguments: no clock, no
// randomness of its own. There is no transport and no store, and no goroutine is
// started. All types are safe for concurrent use.
package policy
