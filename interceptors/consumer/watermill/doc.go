// Package watermill is a middleware for Watermill's router that handles each
// message once, however often its Pub/Sub delivers it.
//
// The life of a message:
//
//  1. The middleware asks consumer.Consumer.HandleResult, under the message's UUID;
//     what the handler produces is stored with the record.
//  2. Ack: it returns what the first run produced, also for a duplicate, for the
//     router to publish: a crash between handling and publishing loses nothing, and
//     copies that are published have the same UUIDs.
//  3. DeadLetter: the message is parked; it returns nothing, and the router
//     acknowledges.
//  4. Nack: it holds the message for the delay, since Watermill's nack has none, and
//     returns the error, so that the router nacks.
//
// What it does not do: no Pub/Sub of Watermill's can be told that a message is
// still being worked on, so one whose deliveries time out is delivered again; that
// copy then waits for the first.
package watermill
