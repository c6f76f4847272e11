package console

import (
	"encoding/hex"
	"html/template"
	"strconv"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/internal/show"
)

// helpers are the words of the templates.
func helpers(opts Options) template.FuncMap {
	return template.FuncMap{
		"hex":     hex.EncodeToString,
		"short":   short,
		"tail":    tail,
		"key":     func(k []byte) string { return show.Secret(k, opts.ShowKeys) },
		"caller":  func(k []byte) string { return show.Secret(k, opts.ShowKeys) },
		"text":    func(s string) string { return show.Printable([]byte(s)) },
		"rough":   rough,
		"time":    clock,
		"state":   func(s dedupv1.State) string { return show.Name(s, "STATE_") },
		"mode":    func(m dedupv1.Mode) string { return show.Name(m, "MODE_") },
		"kind":    func(k dedupv1.DeadLetterKind) string { return show.Name(k, "DEAD_LETTER_KIND_") },
		"letter":  func(s dedupv1.DeadLetterState) string { return show.Name(s, "DEAD_LETTER_STATE_") },
		"replays": replays,
		"waits":   waits,
		"code":    codeName,
		"said":    saidBy,
	}
}

func short(id []byte) string {
	s := hex.EncodeToString(id)
	return s[:min(len(s), show.ShortID)]
}

// tail is the part of an entry's id that tells it from those parked at the same
// time: the front of it is the time.
func tail(id []byte) string {
	s := hex.EncodeToString(id)
	return s[max(0, len(s)-show.ShortID):]
}

func rough(d *durationpb.Duration) string {
	if d == nil {
		return ""
	}
	return show.Rough(d.AsDuration())
}

func clock(t *timestamppb.Timestamp) string {
	if t == nil {
		return ""
	}
	return t.AsTime().UTC().Format(time.DateTime) + "Z"
}

func codeName(c int32) string { return codes.Code(c).String() } //nolint:gosec // 0-16 by the proto

// waits reports whether an entry waits for somebody: what is claimed or closed takes
// neither a replay nor a discard.
func waits(e *dedupv1.DeadLetter) bool {
	return e.GetState() == dedupv1.DeadLetterState_DEAD_LETTER_STATE_PARKED
}

// replays tells how many were tried and how the last claim ended.
func replays(e *dedupv1.DeadLetter) string {
	tried := "none"
	if e.GetReplays() > 0 {
		tried = strconv.FormatInt(e.GetReplays(), 10)
	}
	switch e.GetResult() {
	case dedupv1.ReplayResult_REPLAY_RESULT_REPLAYED:
		return tried + "; the last ran it, with success"
	case dedupv1.ReplayResult_REPLAY_RESULT_ALREADY_DONE:
		return tried + "; the last found the work done"
	case dedupv1.ReplayResult_REPLAY_RESULT_SUPERSEDED:
		return tried + "; its caller's retry, or a verdict, settled it"
	case dedupv1.ReplayResult_REPLAY_RESULT_FAILED:
		return tried + "; the last one failed"
	case dedupv1.ReplayResult_REPLAY_RESULT_GIVEN_BACK:
		return tried + "; the last claim was given back without a try"
	case dedupv1.ReplayResult_REPLAY_RESULT_UNSPECIFIED:
	}
	switch {
	case e.GetReplays() == 0 || e.GetState() == dedupv1.DeadLetterState_DEAD_LETTER_STATE_DISCARDED:
		return tried
	case e.GetState() == dedupv1.DeadLetterState_DEAD_LETTER_STATE_REPLAYING:
		return tried + ", going on now"
	}
	return tried + "; nobody told how it ended"
}

// saidBy is the code and message in a serialised google.rpc.Status.
func saidBy(raw []byte) string {
	var st statuspb.Status
	switch {
	case proto.Unmarshal(raw, &st) != nil:
		return "(unreadable status)"
	case st.GetMessage() == "":
		return codeName(st.GetCode())
	}
	return codeName(st.GetCode()) + ": " + show.Printable([]byte(st.GetMessage()))
}

// reasonOf is dedupd's own reason in an error, or "".
func reasonOf(st *status.Status) string {
	for _, d := range st.Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok && info.GetDomain() == "dedup.v1" {
			return info.GetReason()
		}
	}
	return ""
}

// nextStep says what an operator can do about a refusal.
func nextStep(reason string) string {
	switch reason {
	case "RECORD_CHANGED":
		return "Somebody, or the service itself, has changed it meanwhile; your verdict was not taken. Look at the record again, and decide by what it says now."
	case "IN_PROGRESS":
		return "A lease still runs, so the effect may still be on its way. Wait for its end and look again."
	case "ENTRY_CHANGED":
		return "Somebody else has claimed or closed the entry; nothing was changed. Look at it again."
	case "ENTRY_NOT_FOUND":
		return "It may have been swept, or forgotten."
	case "STORE_UNAVAILABLE":
		return "The store cannot be reached; /readyz says why. Nothing was changed that is not shown here."
	}
	return ""
}

// field reads a trimmed form value.
func field(values interface{ Get(key string) string }, name string) string {
	return strings.TrimSpace(values.Get(name))
}
