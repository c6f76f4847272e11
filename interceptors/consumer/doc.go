// Package consumer makes the handlers of an at-least-once queue run once per
// message, whichever broker delivers it and however often.
//
// The life of a delivery, in Consumer.Handle:
//
//  1. The message is kept alive at its broker from here to the end.
//  2. Its key is its id, or made of business facts (Config.Key); its fingerprint
//     tells it from another message under the same key. A message without a key is
//     parked: nothing protects it.
//  3. The engine (package guard) reserves the key, waits while an earlier delivery
//     is being handled elsewhere, asks the reconciler where an earlier run ended in
//     the dark, runs the handler, and completes.
//  4. The Decision is taken from how that ended: Ack, only after dedupd has the
//     outcome on disk; Nack, with the delay after which the broker should deliver
//     it again; or DeadLetter. A message is parked after so many runs of its handler,
//     counted on its record, however often it was delivered.
//  5. A dead letter is handed to DeadLetters, which keeps it durably. Until that has
//     happened the decision is Nack.
//
// What it does not do: it knows no broker (the packages beside it do), it does not
// order messages, and it never acknowledges what is not settled.
package consumer
