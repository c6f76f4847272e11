package consumer

import (
	"errors"
	"math/rand/v2"
	"time"

	"google.golang.org/protobuf/proto"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors"
	"github.com/dedupd/dedupd/interceptors/guard"
	"github.com/dedupd/dedupd/interceptors/policy"
)

// unknownDeliveries stands for the deliveries that a broker does not count: waits
// are then up to eight times the base.
const unknownDeliveries = 4

var errExhausted = errors.New("the message has had its runs; look at why its handler fails, then replay it")

// Action is what a broker is to be told of a delivery.
type Action uint8

const (
	// Nack means not settled: deliver it again after Decision.Delay.
	Nack Action = iota
	// Ack means handled, by this run or an earlier one, and that is on disk.
	Ack
	// DeadLetter means parked, durably: take it off the queue.
	DeadLetter
)

// String names the action as a metric label would.
func (a Action) String() string {
	switch a {
	case Ack:
		return "ack"
	case DeadLetter:
		return "dead_letter"
	case Nack:
	}
	return "nack"
}

// Decision is what becomes of a delivery.
type Decision struct {
	Action Action
	// Delay is how long the broker is to wait before it delivers the message again;
	// zero: at once.
	Delay time.Duration
	// Cause is why it is a dead letter.
	Cause Cause
	// Err is the last error: of the handler, or of dedupd. Nil with Ack.
	Err error
	// Duplicate: an earlier run has handled the message, this delivery has only been
	// told.
	Duplicate bool
	// Result is the handler's, of whichever run; with Ack of HandleResult only.
	Result proto.Message
	// Runs is how many runs the message was given so far, as Config.MaxRuns counts
	// them; 0 where this delivery was not granted its key.
	Runs int64

	away    bool   // dedupd cannot be reached, or the consumer is stopping
	refused []byte // the record that it may not use
}

func dead(cause Cause, err error) Decision {
	return Decision{Action: DeadLetter, Cause: cause, Err: err}
}

// wait is a random delay after so many tries, on top of a hint.
func (c *Consumer) wait(tries int64, hint time.Duration) time.Duration {
	return c.backoff.Wait(int(min(max(tries, 1), 64))-1, hint, rand.Int64N)
}

// awayDelay is the delay while something cannot be reached, which says nothing of
// the message.
func (c *Consumer) awayDelay(m Message, hint time.Duration) time.Duration {
	tries := m.Deliveries
	if tries == 0 {
		tries = unknownDeliveries
	}
	return c.wait(int64(min(tries, 64)), hint)
}

// ended decides after a run whose own answer stands.
func (c *Consumer) ended(m Message, v *delivery, recordID []byte) Decision {
	unknown := v.ending.Outcome == nil && v.ending.Effect == dedupv1.Effect_EFFECT_UNKNOWN
	switch {
	case v.err == nil:
		return Decision{Action: Ack, Result: v.answer}
	case v.ending.Outcome != nil:
		return dead(CauseFinal, v.err)
	case guard.RunRefusal(v.err, recordID) != nil:
		return c.refused(m, v.err)
	case unknown && !c.cfg.settles():
		return dead(CauseUnknown, v.err)
	case !unknown && c.cfg.Errors.Classify(policy.Try{Err: v.err}).Retry == policy.Permanent:
		return dead(CausePermanent, v.err)
	case v.runs >= int64(c.cfg.MaxRuns):
		return dead(CauseExhausted, v.err)
	}
	return Decision{Action: Nack, Delay: c.wait(v.runs, 0), Err: v.err}
}

// stored decides on a message whose record has an answer.
func (v *delivery) stored(operation string, res guard.Result) Decision {
	outcome := res.Stored.GetOutcome()
	result, err := interceptors.AnswerOf(outcome, operation)
	reason, _ := interceptors.ReasonOf(err)
	switch {
	case err == nil:
		return Decision{Action: Ack, Result: result, Duplicate: !res.Applied}
	case res.Stored.GetKept():
		return dead(CausePermanent, err)
	case len(outcome.GetStatus()) > 0 || reason != dedupv1.Reason_REASON_OUTCOME_NOT_STORED:
		return dead(CauseFinal, err)
	case v.result:
		return dead(CauseResultLost, err)
	}
	return Decision{Action: Ack, Duplicate: !res.Applied}
}

// refused decides on a delivery that the engine did not settle.
func (c *Consumer) refused(m Message, err error) Decision {
	refusal, ok := errors.AsType[*guard.RefusalError](err)
	if !ok { // ctx has ended, or the consumer is closed: another process may take it
		return Decision{Action: Nack, Err: err, away: true}
	}
	switch reason := refusal.Reason; {
	case reason == dedupv1.Reason_REASON_OUTCOME_UNKNOWN && refusal.RetryAfter == 0:
		return dead(CauseUnknown, err)
	case reason == dedupv1.Reason_REASON_OUTCOME_UNKNOWN, reason == dedupv1.Reason_REASON_IN_PROGRESS:
		return Decision{Action: Nack, Delay: c.wait(1, refusal.RetryAfter), Err: err}
	case reason == dedupv1.Reason_REASON_KEY_REUSED, reason == dedupv1.Reason_REASON_KEY_EXPIRED:
		d := dead(CauseRefused, err)
		d.refused = refusal.RecordID
		return d
	case reason == dedupv1.Reason_REASON_KEY_INVALID:
		return dead(CauseRefused, err)
	}
	// dedupd is away, or full, or does not let this service in: none of it is the
	// message's fault.
	return Decision{Action: Nack, Delay: c.awayDelay(m, refusal.RetryAfter), Err: err, away: true}
}
