package consumer

import (
	"context"
	"log/slog"
	"time"

	"google.golang.org/grpc/status"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors/guard"
)

// parkTime is for parking one dead letter.
const parkTime = 10 * time.Second

// Cause says why a message is a dead letter.
type Cause uint8

const (
	// CauseNone is the cause of no dead letter.
	CauseNone Cause = iota
	// CauseExhausted means that its handler has failed, or died, in Config.MaxRuns runs.
	CauseExhausted
	// CausePermanent means that its handler's error would come again in every run. Nothing
	// was applied.
	CausePermanent
	// CauseFinal means that its handler's error is its answer for good (interceptors.Final).
	CauseFinal
	// CauseUnknown means that nobody knows whether its effect happened, and no delivery will
	// find out.
	CauseUnknown
	// CauseRefused means that it may not run: its key is missing, malformed, used for another
	// message before, or past its retention.
	CauseRefused
	// CauseResultLost means that it was handled, but the result is not stored, so that what
	// follows from it (HandleResult) cannot go on.
	CauseResultLost
)

// String names the cause as a metric label would.
func (c Cause) String() string {
	switch c {
	case CauseExhausted:
		return "exhausted"
	case CausePermanent:
		return "permanent"
	case CauseFinal:
		return "final"
	case CauseUnknown:
		return "unknown"
	case CauseRefused:
		return "refused"
	case CauseResultLost:
		return "result_lost"
	case CauseNone:
	}
	return "none"
}

// Letter is a message that is not going to be delivered again.
type Letter struct {
	// Identity and RecordID name its record. A message with CauseRefused is not its
	// key's: it has a record of its own, under a hash of its id and body.
	Identity *dedupv1.Identity
	RecordID []byte
	// Fingerprint is the message's; nil with CauseRefused.
	Fingerprint *dedupv1.Fingerprint
	// Refused is the id of the record that it may not use, with CauseRefused; nil
	// where its key is missing or malformed.
	Refused []byte
	Message Message
	Cause   Cause
	// Err is the last error, of the handler or of dedupd. Its text may hold what the
	// handler put there.
	Err error
	// Runs is how many runs its handler was given so far, as Config.MaxRuns counts
	// them; 0 where that is not known.
	Runs int64
}

// DeadLetters keeps messages that no delivery can settle. It must be safe for
// concurrent use.
type DeadLetters interface {
	// Park returns nil once the letter is kept durably: its message is then taken
	// off the queue. It may be called again for the same record, when the message
	// is delivered once more because the process died in between: keep one letter
	// for a record and its cause. An error leaves the message in the queue.
	Park(ctx context.Context, l Letter) error
}

// park hands a dead letter over. The message stays in the queue where that fails.
func (c *Consumer) park(ctx context.Context, l Letter, d Decision) Decision {
	l.Cause, l.Err, l.Runs, l.Refused = d.Cause, d.Err, d.Runs, d.refused
	l.RecordID = guard.RecordID(l.Identity)
	attrs := []slog.Attr{
		slog.String("operation", c.cfg.Operation), slog.String("record", guard.ShortRecordID(l.RecordID)),
		slog.String("cause", d.Cause.String()), slog.String("code", status.Code(d.Err).String()), slog.Int64("runs", d.Runs),
	}
	parking, cancel := context.WithTimeout(context.WithoutCancel(ctx), parkTime)
	defer cancel()
	err := c.cfg.DeadLetters.Park(parking, l)
	if err == nil {
		c.cfg.Logger.LogAttrs(ctx, slog.LevelWarn, "a message was parked as a dead letter", attrs...)
		return d
	}
	if c.cfg.Observer.ParkFailed != nil {
		c.cfg.Observer.ParkFailed(c.cfg.Operation)
	}
	c.cfg.Logger.LogAttrs(ctx, slog.LevelError, "a dead letter could not be parked; its message stays in the queue",
		append(attrs, slog.String("park", status.Code(err).String()))...)
	return Decision{Action: Nack, Delay: c.awayDelay(l.Message, 0), Err: err, Runs: d.Runs}
}
