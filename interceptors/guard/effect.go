package guard

import (
	"bytes"
	"context"
	"errors"
	"time"

	"google.golang.org/protobuf/proto"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
)

// This file is for effects that take part in the promise: resources that keep a
// run's record beside its effect, as package inbox does.

// AttemptFrom returns the grant that ctx runs under, for a run or a reconciler.
// ok is false outside a guarded run.
func AttemptFrom(ctx context.Context) (a Attempt, ok bool) {
	if r := runFrom(ctx); r != nil {
		return r.hold.attempt(), true
	}
	return Attempt{}, false
}

// KeptWithEffect says that the effect's own resource keeps o as the answer of this
// run, in one atomic step with the effect, and that the Reconciler of a call on
// the basis INBOX returns just that. If the run ends with an equal outcome, its
// answer is then given although dedupd cannot be reached: no later run can
// answer otherwise. Outside a guarded run it does nothing. Safe for concurrent
// use.
func KeptWithEffect(ctx context.Context, o *dedupv1.Outcome) {
	if r := runFrom(ctx); r != nil {
		r.hold.kept.Store(o)
	}
}

// IsKeptWithEffect reports whether the run of ctx has called KeptWithEffect.
func IsKeptWithEffect(ctx context.Context) bool {
	r := runFrom(ctx)
	return r != nil && r.hold.kept.Load() != nil
}

// RefuseRun returns the error with which a run ends whose resource refused it: the
// door answers with reason, as if dedupd had said so. nil outside a guarded run.
func RefuseRun(ctx context.Context, reason dedupv1.Reason, retryAfter time.Duration, cause error) *RefusalError {
	if r := runFrom(ctx); r != nil {
		return r.hold.refuse(reason, retryAfter, cause)
	}
	return nil
}

// RunRefusal finds in err, which a run has returned, the refusal of that very run's
// record (RefuseRun); nil for every other error.
func RunRefusal(err error, recordID []byte) *RefusalError {
	if r, ok := errors.AsType[*RefusalError](err); ok && bytes.Equal(r.RecordID, recordID) {
		return r
	}
	return nil
}

// answerStands reports whether the run's own answer o may be given although dedupd
// has not acknowledged it.
func (h *hold) answerStands(o *dedupv1.Outcome) bool {
	if h.call.ownAnswerStands() {
		return true
	}
	kept := h.kept.Load()
	return h.call.Basis == dedupv1.Basis_BASIS_INBOX && !h.call.SharedWithRerun &&
		kept != nil && proto.Equal(kept, o)
}

// SameRequest reports whether two fingerprints, each one digest per version of the
// hash rule, are of the same request, by dedupd's own rule: they are compared
// under the highest version that both have; where a side saw fields that its
// build does not know, equal client digests count too.
func SameRequest(a, b []*dedupv1.Fingerprint) bool {
	var x, y *dedupv1.Fingerprint
	for _, f := range a {
		for _, g := range b {
			if f.GetVersion() == g.GetVersion() && (x == nil || f.GetVersion() > x.GetVersion()) {
				x, y = f, g
			}
		}
	}
	if x == nil {
		return false
	}
	return bytes.Equal(x.GetDigest(), y.GetDigest()) ||
		(x.GetUnknownFields() || y.GetUnknownFields()) &&
			len(x.GetClientDigest()) > 0 && bytes.Equal(x.GetClientDigest(), y.GetClientDigest())
}
