// Package nethttp makes HTTP requests happen once: public APIs whose clients send
// an Idempotency-Key, receivers of webhooks, and outgoing requests.
//
// It follows draft-ietf-httpapi-idempotency-key-header-07 (15 October 2025); what
// it adds is in the README.
//
// The life of a keyed request:
//
//  1. Middleware finds the route's policy and reads the key: an sf-string or the
//     bare token, which name the same key as gRPC's. What is malformed, or missing
//     where it is required, is a 400.
//  2. The caller is told by authentication, never by a header that the client may
//     write; the body is read whole, up to a limit; both make up, with method, path
//     and query, what is reserved with dedupd (package guard).
//  3. The handler runs on a context that does not end when its client leaves. Its
//     response is held back, whole, until dedupd has stored it: flushing does
//     nothing, hijacking is refused. Routes that stream take no keys.
//  4. The response goes out; every repeat gets its status, allowed headers and body
//     again, with Idempotency-Replayed: true. Refusals are problem details, as in
//     RFC 9457, with types of their own.
//
// Webhook is the same for events: the key is the event's id, a repeat waits for the
// first delivery, and nothing is answered 2xx before the effect. Transport is the
// other side: an http.RoundTripper that gives requests keys, tries them again where
// that is safe, and guards those to callees that know nothing of keys.
//
// What it does not do: it deduplicates no response that is streamed while the handler
// runs, and no WebSocket or other upgrade; it checks no signature and authenticates
// nobody by itself.
package nethttp
