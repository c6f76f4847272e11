package guard

import (
	"context"
	"crypto/sha256"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors/policy"
)

// Left is the worst that a run's doings so far may have left behind. It decides
// whether an error may free the key.
type Left int32

// The grades, from harmless to worst.
const (
	// LeftClean: nothing that we know of.
	LeftClean Left = iota
	// LeftKeyed: effects, each under a key that a second run of the same request
	// gives its call again, and whose callee deduplicates.
	LeftKeyed
	// LeftApplied: an effect was applied.
	LeftApplied
	// LeftUnknown: an effect may have been applied.
	LeftUnknown
)

type runKey struct{}

// run is what a run's context carries.
type run struct {
	hold           *hold
	callerDeadline time.Time
	left           atomic.Int32

	mu    sync.Mutex
	calls map[[sha256.Size]byte]*numbers // made so far, by method and request
}

// restart forgets what was done so far: what a reconciler calls is not the run's
// doing.
func (r *run) restart() {
	r.left.Store(int32(LeftClean))
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = nil
}

func runFrom(ctx context.Context) *run {
	r, _ := ctx.Value(runKey{}).(*run)
	return r
}

// FenceFrom returns the fence of the grant that ctx runs under. Hand it to
// resources that refuse fences below the highest they have seen. ok is false
// outside a guarded run.
func FenceFrom(ctx context.Context) (fence int64, ok bool) {
	if r := runFrom(ctx); r != nil {
		return r.hold.fence, true
	}
	return 0, false
}

// RecordIDFrom returns the id, 32 bytes, of the record that ctx runs under; nil
// outside a guarded run.
func RecordIDFrom(ctx context.Context) []byte {
	if r := runFrom(ctx); r != nil {
		return r.hold.recordID
	}
	return nil
}

// CallNumber numbers an outgoing call of the run, named by a hash of its method
// and request, from 0: a second run of the same request then numbers its calls
// alike, in whatever order it makes them. Of calls that failed the number is
// given out again, see ReuseCallNumber. ok is false outside a guarded run. Safe
// for concurrent use.
func CallNumber(ctx context.Context, call [sha256.Size]byte) (n uint64, ok bool) {
	r := runFrom(ctx)
	if r == nil {
		return 0, false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.calls == nil {
		r.calls = map[[sha256.Size]byte]*numbers{}
	}
	if r.calls[call] == nil {
		r.calls[call] = &numbers{}
	}
	return r.calls[call].take(), true
}

// ReuseCallNumber says that the call of that number failed: the next one with the
// same method and request is taken for its repeat, not for another intent. Safe
// for concurrent use; outside a guarded run it does nothing.
func ReuseCallNumber(ctx context.Context, call [sha256.Size]byte, n uint64) {
	r := runFrom(ctx)
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if had := r.calls[call]; had != nil {
		had.failed = append(had.failed, n)
	}
}

// numbers gives numbers to equal calls.
type numbers struct {
	next   uint64
	failed []uint64
}

func (s *numbers) take() uint64 {
	if len(s.failed) > 0 {
		n := slices.Min(s.failed)
		s.failed = slices.DeleteFunc(s.failed, func(v uint64) bool { return v == n })
		return n
	}
	s.next++
	return s.next - 1
}

// CallerDeadline returns the deadline that the caller set. The run's own context
// does not end with it: a caller that leaves changes nothing. ok is false where
// the caller set none, and outside a guarded run.
func CallerDeadline(ctx context.Context) (deadline time.Time, ok bool) {
	if r := runFrom(ctx); r != nil {
		return r.callerDeadline, !r.callerDeadline.IsZero()
	}
	return time.Time{}, false
}

// LeaseEnd returns the time after which no effect of this run may land, as known
// now: the end of its lease less the margin. ok is true only in runs whose
// operation reconciles on the basis BOUNDED; there every outgoing call must carry
// a deadline no later than this. Our client interceptor sees to it for gRPC.
func LeaseEnd(ctx context.Context) (end time.Time, ok bool) {
	r := runFrom(ctx)
	if r == nil || r.hold.call.Basis != dedupv1.Basis_BASIS_BOUNDED {
		return time.Time{}, false
	}
	return r.hold.stopBy(), true
}

// MarkEffect tells the engine that an effect which it cannot see (SQL, an SDK)
// is about to be applied: from here on an error leaves the outcome unknown,
// unless it is explicitly marked as not applied. Call it before the first such
// effect. Outside a guarded run it does nothing. Safe for concurrent use.
func MarkEffect(ctx context.Context) { Mark(ctx, LeftApplied) }

// Mark raises what the run has left behind to at least l. Safe for concurrent
// use; outside a guarded run it does nothing.
func Mark(ctx context.Context, l Left) {
	r := runFrom(ctx)
	if r == nil {
		return
	}
	for {
		was := r.left.Load()
		if was >= int32(l) || r.left.CompareAndSwap(was, int32(l)) {
			return
		}
	}
}

// MarkCall marks what a call to another service, with effects, may have left behind
// once it is over: whether it failed, what its tries may have applied, and whether it
// had a key under which a second run makes the same call, and the callee looks at. A
// key that the caller chose is none: a second run might choose another. Safe for
// concurrent use; outside a guarded run it does nothing.
func MarkCall(ctx context.Context, failed bool, e policy.Effect, keyed bool) {
	switch {
	case failed && e == policy.EffectUnknown:
		Mark(ctx, LeftUnknown)
	case failed && e != policy.EffectApplied:
	case keyed:
		Mark(ctx, LeftKeyed)
	default:
		Mark(ctx, LeftApplied)
	}
}

// LeftBehind returns the worst that was marked on the run of ctx.
func LeftBehind(ctx context.Context) Left {
	if r := runFrom(ctx); r != nil {
		return Left(r.left.Load())
	}
	return LeftClean
}
