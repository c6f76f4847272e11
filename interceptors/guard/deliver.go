package guard

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
)

// deliver sends a round of letters, side by side.
func (q *completer) deliver(round []*letter) {
	answers := make(chan bool, len(round))
	for _, l := range round {
		go func() {
			answers <- q.send(q.life, l)
		}()
	}
	any := false
	for range round {
		any = <-answers || any
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	if any {
		if q.down > 0 { // what failed meanwhile failed because dedupd was away
			for _, l := range q.letters {
				l.due = now
			}
		}
		q.down, q.notBefore = 0, time.Time{}
		return
	}
	backoff := q.seldom
	if q.closing {
		backoff = q.often
	}
	q.notBefore = now.Add(backoff.Wait(q.down, 0, rand.Int64N))
	q.down++
}

// send delivers one letter; ok reports that dedupd answered.
func (q *completer) send(ctx context.Context, l *letter) (ok bool) {
	try, cancel := trying(ctx, tryTime)
	defer cancel()
	err := q.transmit(try, l)
	reason, hint := reasonOf(err)
	switch {
	case err == nil:
		q.remove(l)
		return true
	case !answered(err):
		q.postpone(ctx, l, 0)
		return false
	case reason == dedupv1.Reason_REASON_QUOTA_EXCEEDED:
		q.postpone(ctx, l, hint) // until there is room: nothing is dropped for it
		return true
	case reason == dedupv1.Reason_REASON_STALE_HOLDER:
		if q.remove(l) && l.complete != nil {
			tooLate(ctx, q.log, q.observe, l.operation, []byte(l.recordID))
		}
		return true
	case q.reduce(l):
		return true // it goes out once more, without what dedupd refused
	}
	if q.remove(l) {
		q.log.LogAttrs(ctx, slog.LevelError, "dedupd refused a message for good",
			slog.String("operation", l.operation), slog.String("code", status.Code(err).String()))
		q.giveUp(ctx, l)
	}
	return true
}

func (q *completer) transmit(ctx context.Context, l *letter) (err error) {
	q.mu.Lock()
	complete, release, park := l.complete, l.release, l.park
	q.mu.Unlock()
	switch {
	case park != nil:
		_, err = q.parks.Park(ctx, park)
	case complete != nil:
		_, err = q.dedup.Complete(ctx, complete)
	default:
		_, err = q.dedup.Release(ctx, release)
	}
	return err
}

// reduce leaves out of a refused letter what it may have been refused for; false
// where there is nothing left to leave out.
func (q *completer) reduce(l *letter) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case l.complete != nil && (l.complete.GetOutcome().GetResponse() != nil || len(l.complete.GetOutcome().GetStatus()) > 0):
		req := proto.CloneOf(l.complete)
		req.Outcome = withoutAnswer(req.GetOutcome())
		l.complete = req
	case l.park.GetRequest() != nil || l.park.GetMetadata() != nil:
		req := proto.CloneOf(l.park)
		req.Request, req.Metadata = nil, nil
		l.park = req
	case l.release.GetError() != nil:
		req := proto.CloneOf(l.release)
		req.Error, req.Hold = nil, nil
		l.release = req
	default:
		return false
	}
	l.due = time.Now()
	return true
}

// remove takes a letter off the queue and the journal; false if it was gone.
func (q *completer) remove(l *letter) bool {
	q.mu.Lock()
	if l.gone {
		q.mu.Unlock()
		return false
	}
	l.gone = true
	q.tally(l, -1)
	if q.latest[l.recordID] == l {
		delete(q.latest, l.recordID)
	}
	q.mu.Unlock()
	if l.id != 0 {
		q.journal.done(l.id)
	}
	return true
}

// postpone sets the time of a letter's next try, not before floor is over, or
// gives it up.
func (q *completer) postpone(ctx context.Context, l *letter, floor time.Duration) {
	q.mu.Lock()
	l.due = time.Now().Add(q.seldom.Wait(l.tries, floor, rand.Int64N))
	l.tries++
	old := q.limits.age > 0 && time.Since(l.since) > q.limits.age
	q.mu.Unlock()
	if old && q.remove(l) {
		q.giveUp(ctx, l)
	}
}

func (q *completer) giveUp(ctx context.Context, l *letter) {
	count(q.observe.Undelivered, l.operation)
	lost := "gave up telling dedupd how a run ended; its record stays unfinished until it is reconciled or resolved"
	if l.park != nil {
		lost = "a dead letter is lost: neither dedupd nor the spool took it; its caller has the error"
	}
	q.log.LogAttrs(ctx, slog.LevelError, lost, slog.String("operation", l.operation))
}
