package console

import (
	"encoding/hex"
	"html/template"
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
		"hex":    hex.EncodeToString,
		"short":  short,
		"tail":   tail,
		"key":    func(k []byte) string { return show.Secret(k, opts.ShowKeys) },
		"caller": func(k []byte) string { return show.Secret(k, opts.ShowKeys) },
		"text":   func(s string) string { return show.Printable([]byte(s)) },
		"rough":  rough,
		"time":   clock,
		"state":  func(s dedupv1.State) string { return show.Name(s, "STATE_") },
		"mode":   func(m dedupv1.Mode) string { return show.Name(m, "MODE_") },
		"kind":   func(k dedupv1.DeadLetterKind) string { return show.Name(k, "DEAD_LETTER_KIND_") },
		"letter": func(s dedupv1.DeadLetterState) string { return show.Name(s, "DEAD_LETTER_STATE_") },
		"result": func(r dedupv1.ReplayResult) string {
			if r == dedupv1.ReplayResult_REPLAY_RESULT_UNSPECIFIED {
				return "none yet"
			}
			return show.Name(r, "REPLAY_RESULT_")
		},
		"code": func(c int32) string { return codes.Code(c).String() }, //nolint:gosec // 0-16 by the proto
		"said": saidBy,
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

// saidBy is the message in a serialised google.rpc.Status.
func saidBy(raw []byte) string {
	var st statuspb.Status
	if proto.Unmarshal(raw, &st) != nil {
		return "(unreadable status)"
	}
	return show.Printable([]byte(st.GetMessage()))
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
		return "Somebody, or the service itself, has settled it meanwhile. Look at the record again before you decide."
	case "IN_PROGRESS":
		return "A lease still runs, so the effect may still be on its way. Wait for its end and look again."
	case "ENTRY_CHANGED":
		return "Somebody else has claimed or closed the entry. Look at it again."
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
