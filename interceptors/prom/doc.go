// Package prom counts for Prometheus what the interceptors do. It is a package of
// its own so that a service which imports the interceptors compiles no
// Prometheus.
//
// The life of a count:
//
//  1. Client and Server register their counters with a Registerer, once; a second
//     observer of the same Registerer counts into the same ones.
//  2. interceptors.WithCallObserver and interceptors.WithObserver hand them to a
//     client and a server.
//  3. Every event adds one. Labels are method and operation names, status codes
//     and dedupd's reasons, never a key or a caller; after 1,000 names the rest
//     share "other".
//
// What it does not do: it measures no durations (gRPC's own metrics do) and
// serves no page.
package prom
