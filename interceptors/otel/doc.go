// Package otel tells OpenTelemetry's traces and metrics what the interceptors do. It
// is a package of its own so that a service which imports the interceptors compiles
// no OpenTelemetry.
//
// The life of a traced call:
//
//  1. Client puts one span around the whole call; the tries within it are spans of
//     otelgrpc's own, if that is installed.
//  2. Every retry, wait and refusal of budget or breaker is an event of the span.
//  3. At the end the span gets its attributes: attempts, whether the answer was
//     replayed or is unknown, and the first 12 hexadecimal digits of the record id.
//  4. On a server, Server puts a span around every run of a keyed handler, under
//     the span of the call that got the grant, whose trace context is stored with
//     the key.
//  5. A call that is answered from a record has its span linked to that one, on
//     the server and on the client.
//  6. ClientMetrics, ServerMetrics and ParkerMetrics count what package prom counts.
//
// What it does not do: no span holds a key, a request or a response, nor the
// message of an error, and no metric a record.
package otel
