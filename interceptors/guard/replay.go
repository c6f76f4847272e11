package guard

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"time"

	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
)

// parkTime is how long the background waits for dedupd to take a dead letter.
const parkTime = 2 * time.Second

// traceHeader is the W3C name of a trace context.
const traceHeader = "traceparent"

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
	if id == nil || !bytes.Equal(recordID(id), resp.GetRecordId()) {
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

// traced adds the call's trace context to what dedupd is sent.
func (w *work) traced(ctx context.Context) context.Context {
	if w.call.Traceparent == "" {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, traceHeader, w.call.Traceparent)
}

// park keeps a record that nobody could reconcile, with the call's request, for
// an operator; it returns the entry's id in hexadecimal, empty where there is
// none yet.
func (w *work) park(ctx context.Context, why string) (entry string) {
	if w.e.parker == nil {
		return ""
	}
	req := &dedupv1.ParkRequest{}
	if w.call.Parked != nil {
		req = w.call.Parked()
	}
	if req.GetMethod() == "" {
		req.Method = w.call.Operation
	}
	req.Record = &dedupv1.ParkRequest_Identity{Identity: w.identity}
	req.Kind = dedupv1.DeadLetterKind_DEAD_LETTER_KIND_UNRECONCILED
	req.Fingerprints, req.Note = w.call.Fingerprints, why
	// Our own words: they hold no key and no request, and cannot fail to encode.
	req.Status, _ = proto.Marshal(&statuspb.Status{Code: int32(codes.FailedPrecondition), Message: cut(why, maxNote)})
	return hex.EncodeToString(w.e.parker.Park(ctx, req, parkTime).Entry)
}
