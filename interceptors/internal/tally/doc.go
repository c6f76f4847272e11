// Package tally says which metrics the interceptors have, for every system that
// counts them: prom and otel only make the instruments.
//
// The life of a count:
//
//  1. Client and Server ask a Meter for their instruments, by the names below.
//  2. The interceptors tell the observers that they return.
//  3. Every event adds to its instrument. Labels are method and operation names,
//     status codes and dedupd's reasons, never a key or a caller; after 1,000 names
//     the rest share "other".
//
// What it does not do: it measures no durations, which gRPC's own metrics do, and
// knows no system that counts.
package tally
