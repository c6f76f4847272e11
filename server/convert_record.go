package server

import (
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"log/slog"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/storage"
)

func listOf(req *dedupv1.ListRecordsRequest) (storage.List, error) {
	q := storage.List{
		Namespace: req.GetNamespace(),
		Operation: req.GetOperation(),
		Caller:    req.GetCaller(),
		Key:       req.GetKey(),
		OlderThan: req.GetOlderThan().AsDuration(),
		Limit:     int(cmp.Or(req.GetPageSize(), defaultPage)),
	}
	switch len(req.GetPageToken()) {
	case 0:
	case len(q.After):
		q.After = storage.RecordID(req.GetPageToken())
	default:
		return q, invalid("page_token", "page_token is not one that a page has given")
	}
	for _, s := range req.GetStates() {
		q.States = append(q.States, stateFrom(s))
	}
	return q, nil
}

// infoOf describes a record, which may be nil, as judged at now by a store whose
// clocks differ by up to skew.
func infoOf(id storage.RecordID, rec *storage.Record, state storage.State, now storage.Instant, skew time.Duration) *dedupv1.RecordInfo {
	info := &dedupv1.RecordInfo{RecordId: id[:], State: stateOf(state)}
	if rec == nil {
		return info
	}
	info.Identity = identityTo(rec.Identity)
	info.Mode = modeOf(rec.Mode)
	info.Fence = int64(rec.Fence)
	info.Grants = rec.Grants
	info.Version = binary.BigEndian.AppendUint64(nil, uint64(rec.VersionAt(now, skew))) //nolint:gosec // the bits of a version
	unfinished := state == storage.StateReserved || state == storage.StateUnknown
	if left := rec.LeaseEnd.Sub(now); left > 0 && unfinished {
		info.LeaseLeft = durationpb.New(left)
	}
	if rec.GrantedAt != 0 {
		info.Age = wireDuration(now.Sub(rec.GrantedAt))
	}
	info.Ends = endsOf(rec, now)
	info.CreatedAt = timeOf(rec.CreatedAt)
	info.GrantedAt = timeOf(rec.GrantedAt)
	info.LeaseEndsAt = timeOf(rec.LeaseEnd)
	info.CompletedAt = timeOf(rec.CompletedAt)
	info.Bound = rec.Bound
	info.ByOperator = rec.ByOperator()
	info.Note = rec.Note
	info.Pins = rec.Pins
	info.Redacted = rec.Redacted
	info.Traceparent = traceparentOf(rec)
	return info
}

func identityTo(id storage.Identity) *dedupv1.Identity {
	return &dedupv1.Identity{
		Namespace: id.Namespace,
		Operation: id.Operation,
		Caller:    []byte(id.Caller),
		Key:       []byte(id.Key),
	}
}

// endsOf is nil for a record that has no end.
func endsOf(rec *storage.Record, now storage.Instant) *dedupv1.Ends {
	if rec == nil || rec.DropAt == 0 {
		return nil
	}
	expires := cmp.Or(rec.ExpiresAt, rec.DropAt)
	return &dedupv1.Ends{
		ExpiresIn: wireDuration(expires.Sub(now)),
		AbsentIn:  wireDuration(rec.DropAt.Sub(now)),
		ExpiresAt: timeOf(expires),
		AbsentAt:  timeOf(rec.DropAt),
	}
}

func modeOf(m storage.Mode) dedupv1.Mode {
	switch m {
	case storage.ModeRun:
		return dedupv1.Mode_MODE_RUN
	case storage.ModeReconcile:
		return dedupv1.Mode_MODE_RECONCILE
	}
	return dedupv1.Mode_MODE_UNSPECIFIED
}

func stateOf(s storage.State) dedupv1.State {
	switch s {
	case storage.StateAbsent:
		return dedupv1.State_STATE_ABSENT
	case storage.StateReserved:
		return dedupv1.State_STATE_RESERVED
	case storage.StateReleased:
		return dedupv1.State_STATE_RELEASED
	case storage.StateUnknown:
		return dedupv1.State_STATE_UNKNOWN
	case storage.StateCompleted:
		return dedupv1.State_STATE_COMPLETED
	case storage.StateExpired:
		return dedupv1.State_STATE_EXPIRED
	}
	return dedupv1.State_STATE_UNSPECIFIED
}

func stateFrom(s dedupv1.State) storage.State {
	switch s {
	case dedupv1.State_STATE_ABSENT:
		return storage.StateAbsent
	case dedupv1.State_STATE_RESERVED:
		return storage.StateReserved
	case dedupv1.State_STATE_RELEASED:
		return storage.StateReleased
	case dedupv1.State_STATE_UNKNOWN:
		return storage.StateUnknown
	case dedupv1.State_STATE_COMPLETED:
		return storage.StateCompleted
	case dedupv1.State_STATE_EXPIRED:
		return storage.StateExpired
	case dedupv1.State_STATE_UNSPECIFIED:
	}
	return 0
}

// wireDuration is never negative: what a peer acts on is a time that is left, or
// an age.
func wireDuration(d time.Duration) *durationpb.Duration { return durationpb.New(max(0, d)) }

// timeOf is nil for "none".
func timeOf(i storage.Instant) *timestamppb.Timestamp {
	if i == 0 {
		return nil
	}
	return timestamppb.New(i.Time())
}

func hexAttr(name string, sum [32]byte) slog.Attr {
	return slog.String(name, hex.EncodeToString(sum[:]))
}
