// Package jetstream handles the messages of a NATS JetStream pull consumer once
// each, however often the server delivers them.
//
// The life of a message, in Worker.Run:
//
//  1. A free worker pulls one message: none waits here without being worked on.
//  2. consumer.Consumer.Handle decides, and meanwhile tells the server every third
//     of AckWait that the message is in progress.
//  3. The decision becomes Ack, Nak with a delay, or Term with the cause.
//
// What it does not do: it makes no stream and no consumer, it does not connect, and
// it does not order messages.
package jetstream
