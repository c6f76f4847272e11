package guard

import (
	"bytes"
	"context"
	"errors"
	"time"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
)

var errNoReplays = errors.New("this dedupd does not know of replays; nothing was run, update it")

// Replay is what a run is told that replays a dead letter.
type Replay struct {
	// Caller is whose key it is: the original caller, not the replayer. It may be
	// empty.
	Caller []byte
	// Entry is the dead letter's id, 16 bytes.
	Entry []byte
}

// ReplayFrom tells whose call the run of ctx replays. ok is false for a run that
// replays nothing, and outside a guarded run.
func ReplayFrom(ctx context.Context) (replay Replay, ok bool) {
	r := runFrom(ctx)
	if r == nil || r.hold.call.Replay == nil {
		return Replay{}, false
	}
	return Replay{Caller: r.hold.identity.GetCaller(), Entry: r.hold.call.Replay.GetEntryId()}, true
}

// replays takes over whose record a replay is about; false where dedupd has not
// bound the answer to the entry's record, which one that knows of no replays does
// not.
func (w *work) replays(resp *dedupv1.ReserveResponse) bool {
	if resp.GetTraceparent() != "" {
		w.trace = resp.GetTraceparent()
	}
	if w.call.Replay == nil {
		return true
	}
	id := resp.GetReplayed()
	if id == nil || !bytes.Equal(RecordID(id), resp.GetRecordId()) {
		return false
	}
	w.identity, w.recordID = id, resp.GetRecordId()
	return true
}

// disclaim gives back a grant that is not the entry's record, and refuses.
func (w *work) disclaim(ctx context.Context, attemptID []byte, resp *dedupv1.ReserveResponse) error {
	if g := resp.GetGranted(); g != nil {
		if h := w.granted(g, attemptID, time.Now()); h != nil {
			h.giveBack(ctx)
		}
	}
	return w.refuse(dedupv1.Reason_REASON_KEY_INVALID, 0, errNoReplays)
}
