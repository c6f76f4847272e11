package storage

import (
	"bytes"
	"encoding/gob"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
)

const (
	lease     = 30 * time.Second
	retention = 24 * time.Hour
	tombstone = 48 * time.Hour
	tick      = time.Microsecond
)

var (
	terms    = Terms{Retention: retention, Tombstone: tombstone}
	identity = Identity{Namespace: "pay", Operation: "/pay.v1.Pay/Charge", Caller: "alice", Key: "order-1"}
	fpOne    = fingerprint("one")
	fpTwo    = fingerprint("two")
)

func fingerprint(s string) Fingerprint { return Fingerprint{{Version: 1, Server: s}} }

func attempt(n byte) AttemptID { return AttemptID{n} }

func success(s string) *Outcome {
	return &Outcome{HasResponse: true, TypeURL: "t", Response: []byte(s)}
}

func failure(s string) *Outcome { return &Outcome{Code: 3, Status: []byte("\x08\x03" + s)} }

// life is one record driven through Apply; what holds for every call whatever
// the rules say is checked here, once for all tests.
type life struct {
	testing.TB
	rec  *Record
	now  Instant
	skew time.Duration
	high Fence // the highest fence granted
}

func newLife(tb testing.TB) *life {
	tb.Helper()
	return &life{TB: tb, now: 1_700_000_000_000_000}
}

// do applies q and keeps what it wrote.
func (l *life) do(q Request) Answer {
	l.Helper()
	before := copyOf(l, l.rec)
	next, ans := Apply(l.rec, q, l.now, l.skew)
	if l.rec != nil {
		require.Empty(l, cmp.Diff(before, l.rec), "Apply changed the record that it was given")
	}
	checkStep(l, l.rec, next, ans)
	if ans.Verdict == VerdictGranted && next != nil {
		require.Greater(l, next.Fence, l.high, "the fence grows with every grant, also over absence")
		l.high = next.Fence
	}
	if next != nil {
		l.rec = next
	}
	return ans
}

// checkStep holds one step against what is true of all of them.
func checkStep(tb testing.TB, rec, next *Record, ans Answer) {
	tb.Helper()
	if next == nil {
		return
	}
	require.LessOrEqual(tb, ans.Verdict, VerdictGranted, "%v wrote a record", ans.Verdict)
	require.LessOrEqual(tb, len(next.Ended), maxEnded)
	require.LessOrEqual(tb, len(next.Superseded), maxSuperseded)
	require.Same(tb, next, ans.Record)
	if rec != nil {
		require.Greater(tb, next.Version, rec.Version)
		require.GreaterOrEqual(tb, next.Fence, rec.Fence)
	}
}

// want applies q and expects the verdict.
func (l *life) want(v Verdict, q Request) Answer {
	l.Helper()
	ans := l.do(q)
	require.Equal(l, v.String(), ans.Verdict.String(), "%T in state %v", q, ans.State)
	return ans
}

// grant reserves for attempt n and expects to get the key.
func (l *life) grant(n byte, change ...func(*Reserve)) Fence {
	l.Helper()
	return l.want(VerdictGranted, reserve(n, change...)).Record.Fence
}

// after lets d pass.
func (l *life) after(d time.Duration) *life {
	l.now = l.now.Add(d)
	return l
}

// lapse lets the current lease end.
func (l *life) lapse() *life {
	l.now = l.rec.LeaseEnd.Add(l.skew)
	return l
}

func (l *life) state() State { return l.rec.StateAt(l.now, l.skew) }

// copyOf is a copy that shares nothing.
func copyOf(tb testing.TB, r *Record) *Record {
	tb.Helper()
	if r == nil {
		return nil
	}
	var b bytes.Buffer
	require.NoError(tb, gob.NewEncoder(&b).Encode(r))
	c := new(Record)
	require.NoError(tb, gob.NewDecoder(&b).Decode(c))
	return c
}

func reserve(n byte, change ...func(*Reserve)) Reserve {
	q := Reserve{Identity: identity, Fingerprint: fpOne, Attempt: attempt(n), Lease: lease}
	for _, f := range change {
		f(&q)
	}
	return q
}

func as(f Fingerprint) func(*Reserve) { return func(q *Reserve) { q.Fingerprint = f } }

func rerun(q *Reserve) { q.OnUnknown = OnUnknownRerun }

func reconcile(b Basis) func(*Reserve) {
	return func(q *Reserve) { q.OnUnknown, q.Basis = OnUnknownReconcile, b }
}

func complete(n byte, f Fence, o *Outcome) Complete {
	return Complete{Attempt: attempt(n), Fence: f, Outcome: o, Terms: terms}
}

func extend(n byte, f Fence) Extend { return Extend{Attempt: attempt(n), Fence: f, Lease: lease} }

func beginRun(n byte, f Fence) BeginRun { return BeginRun{Attempt: attempt(n), Fence: f} }

func release(n byte, f Fence, e Effect) Release {
	return Release{Identity: identity, Attempt: attempt(n), Fence: f, Effect: e, Terms: terms}
}

// releaseKept releases with an error to be kept.
func releaseKept(n byte, f Fence, hold time.Duration) Release {
	q := release(n, f, EffectNone)
	q.Error, q.Hold = failure("kept"), hold
	return q
}

func resolveReleased(version int64) Resolve { return Resolve{Version: version, Terms: terms} }

func resolveCompleted(version int64, o *Outcome) Resolve {
	return Resolve{Version: version, Completed: true, Outcome: o, Terms: terms}
}
