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
// Everything here is a pure function of its arguments: no transport, no store,
// no clock, no randomness of its own. All types are values that are safe for
// concurrent use. Retry budgets and breakers are no part of it.
package policy
