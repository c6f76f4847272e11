// Package interceptors makes the second time harmless for gRPC services: a line
// on each side, ClientOptions and ServerOptions, and a retried call has its
// effect once and gets the first answer again.
//
// The life of a keyed call:
//
//  1. Client: the call's key is chosen once (WithKey or its metadata; derived from
//     request fields that the method names; inside a keyed handler the call's
//     child key; or a fresh one where the method asks for keys) and kept over all
//     attempts. With it go the request's fingerprint and the attempt's number.
//  2. Server: the method's policy is read from its proto option, the key from the
//     metadata, the caller from authentication, never from metadata.
//  3. The engine (package guard) reserves the key with dedupd, or waits for the
//     run that has it, or answers from the record.
//  4. The handler runs on a context that does not end when the caller leaves, and
//     its answer goes out once dedupd has stored it.
//  5. Client: an error is classified (package policy). It is tried again, with
//     jitter and within the deadline, only under a key or where the method is
//     declared safe, within the connection's retry budget and past its breaker.
//     Where the tries do not tell what happened dedupd is asked (WithDedupd); if
//     nobody knows the error says so (ErrOutcomeUnknown).
//
// For callees that know nothing of keys WithGuarded moves steps 3 and 4 to the
// client's side, around every try.
//
// Bring it to the servers first, then to their clients: a client that gives a call
// a key trusts its server to look at it until an answer shows that it does not.
//
// What it does not do: it never deduplicates or resends streams, never retries
// an unprotected call, and never invents an answer. It imports neither dedupd's
// server nor a store: it reaches dedupd through the generated client.
package interceptors
