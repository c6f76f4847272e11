package interceptors

import (
	"context"
	"errors"

	"google.golang.org/protobuf/proto"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors/guard"
)

// What a reconciler rests on: why no earlier run can act any more once it has
// looked. There is no default.
const (
	// Bounded: no effect of a run lands after its lease. The handler stops when
	// its context ends, its outgoing calls carry deadlines (gRPC calls through our
	// client interceptor do so by themselves), and callees do not commit after
	// them.
	Bounded = dedupv1.Basis_BASIS_BOUNDED
	// Fenced: the resource refuses fences below the highest it has seen, and the
	// reconciler's look registers its own fence first.
	Fenced = dedupv1.Basis_BASIS_FENCED
	// Inbox: effect, record id and fingerprint commit together.
	Inbox = dedupv1.Basis_BASIS_INBOX
)

// Attempt is what a reconciler is told of its grant.
type Attempt = guard.Attempt

// ReconcileFunc finds out what an earlier run of the same request did, whose end
// nobody knows. It runs on a context like a handler's, for at most 30 s, before
// anything is run again, and must compare that what it finds is of this very
// request. Any error, panic or timeout counts as VerdictStillUnknown, whatever
// its code.
type ReconcileFunc func(ctx context.Context, a Attempt, req proto.Message) (Verdict, error)

// Verdict is what a reconciler found. The zero value is VerdictStillUnknown.
type Verdict struct {
	ruling  guard.Verdict // where not applied
	applied bool
	resp    proto.Message
	err     error
}

// VerdictApplied says that the effect of this request happened, and gives the
// handler's answer to it. It is stored, and every repeat gets it.
func VerdictApplied(resp proto.Message) Verdict { return Verdict{applied: true, resp: resp} }

// VerdictFailed says that the handler's answer to this request was an error, for
// good. It is stored like a response.
func VerdictFailed(err error) Verdict {
	if err == nil {
		return VerdictStillUnknown()
	}
	return Verdict{applied: true, err: err}
}

// VerdictNotApplied says that the effect has not happened, effects of calls
// further down included, and can no longer happen: the door is closed behind
// every earlier run. The handler is run.
func VerdictNotApplied() Verdict { return Verdict{ruling: guard.NotApplied()} }

// VerdictNotSeen says that the effect has not happened as far as a look can
// tell. It is taken on the basis Bounded only, and counts as StillUnknown until
// two leases have passed since the last running lease ended, then as NotApplied.
// It assumes that no process resumes after a pause longer than that.
func VerdictNotSeen() Verdict { return Verdict{ruling: guard.NotSeen()} }

// VerdictPartial says that a part of the effect happened: the record is held
// until an operator resolves it. note says what is missing, for people; never a
// key or a request.
func VerdictPartial(note string) Verdict { return Verdict{ruling: guard.Partial(note)} }

// VerdictStillUnknown says that it could not be found out; repeats ask again.
func VerdictStillUnknown() Verdict { return Verdict{} }

var errNoAnswer = errors.New("the reconciler ruled applied without an answer")

// GuardReconciler makes of look what a guard.Call takes, for doors other than
// gRPC's.
func GuardReconciler(look func(ctx context.Context, a Attempt) (Verdict, error)) guard.Reconciler {
	return guardReconciler(look, allowList{}, new(Verdict))
}

// reconciler adapts fn for one request; what it found stays in found.
func (m *method) reconciler(req proto.Message, found *Verdict) guard.Reconciler {
	if m.inbox != nil {
		return m.inbox
	}
	if m.reconcile == nil {
		return nil
	}
	return guardReconciler(func(ctx context.Context, a Attempt) (Verdict, error) {
		return m.reconcile(ctx, a, req)
	}, m.allow, found)
}

func guardReconciler(look func(ctx context.Context, a Attempt) (Verdict, error), allow allowList, found *Verdict) guard.Reconciler {
	return func(ctx context.Context, a Attempt) (guard.Verdict, error) {
		v, err := look(ctx, a)
		if err != nil {
			return guard.StillUnknown(), err
		}
		if !v.applied {
			return v.ruling, nil
		}
		if v.resp == nil && v.err == nil {
			return guard.StillUnknown(), errNoAnswer
		}
		o, err := newOutcome(v.resp, v.err, nil, nil, allow, a.MaxOutcomeBytes)
		if err != nil {
			return guard.StillUnknown(), err
		}
		*found = v
		return guard.Applied(o), nil
	}
}
