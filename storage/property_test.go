package storage

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// drawn draws calls and times for one record.
type drawn struct {
	*rapid.T
	life  *life
	grant map[AttemptID]Fence // what each attempt was granted, in this life of the record
}

func (d *drawn) attempt() AttemptID {
	return attempt(rapid.ByteRange(1, 14).Draw(d.T, "attempt"))
}

// fence is mostly the attempt's own, at times another's or none that ever was.
func (d *drawn) fence(a AttemptID) Fence {
	if rapid.IntRange(0, 4).Draw(d.T, "whose fence") > 0 {
		return max(d.grant[a], 1)
	}
	if d.life.rec != nil && rapid.Bool().Draw(d.T, "the record's") {
		return max(d.life.rec.Fence, 1)
	}
	return Fence(rapid.Int64Range(1, 5).Draw(d.T, "fence"))
}

func (d *drawn) outcome() *Outcome {
	return rapid.SampledFrom([]*Outcome{success("a"), success("b"), failure("a")}).Draw(d.T, "outcome")
}

func (d *drawn) fingerprint() Fingerprint {
	return fingerprint(rapid.SampledFrom([]string{"1", "1", "1", "2", "3", "4", "5", "6", "7"}).Draw(d.T, "fingerprint"))
}

func (d *drawn) request() Request {
	a := d.attempt()
	switch rapid.SampledFrom([]string{"reserve", "reserve", "reserve", "begin", "complete", "extend", "release", "release", "give back", "look up", "resolve"}).Draw(d.T, "call") {
	case "reserve":
		q := Reserve{Identity: identity, Attempt: a, Fingerprint: d.fingerprint(), Lease: lease}
		q.OnUnknown = rapid.SampledFrom([]OnUnknown{OnUnknownRefuse, OnUnknownReconcile, OnUnknownRerun}).Draw(d.T, "on unknown")
		if q.OnUnknown == OnUnknownReconcile {
			q.Basis = rapid.SampledFrom([]Basis{BasisBounded, BasisFenced, BasisInbox}).Draw(d.T, "basis")
		}
		return q
	case "begin":
		return BeginRun{Attempt: a, Fence: d.fence(a)}
	case "complete":
		return Complete{Attempt: a, Fence: d.fence(a), Outcome: d.outcome(), Terms: terms}
	case "extend":
		return Extend{Attempt: a, Fence: d.fence(a), Lease: lease}
	case "give back":
		return Release{Identity: identity, Attempt: a, Effect: EffectNone, Terms: terms}
	case "look up":
		return Lookup{Fingerprint: d.fingerprint()}
	case "resolve":
		q := Resolve{Version: rapid.Int64Range(1, 3).Draw(d.T, "version"), Completed: rapid.Bool().Draw(d.T, "completed"), Terms: terms}
		if d.life.rec != nil && rapid.Bool().Draw(d.T, "the right version") {
			q.Version = d.life.rec.Version
		}
		return q
	}
	q := Release{Identity: identity, Attempt: a, Fence: d.fence(a), Terms: terms}
	q.Effect = rapid.SampledFrom([]Effect{EffectNone, EffectRepeatable, EffectUnknown}).Draw(d.T, "effect")
	if rapid.Bool().Draw(d.T, "keep an error") {
		q.Error, q.Hold = failure("kept"), 10*time.Second
	}
	return q
}

// pass lets time pass, often to just around a limit.
func (d *drawn) pass() {
	r, now := d.life.rec, d.life.now
	if r != nil && rapid.Bool().Draw(d.T, "to a limit") {
		limit := rapid.SampledFrom([]Instant{r.LeaseEnd, r.RunEnd, r.HoldEnd, r.ExpiresAt, r.DropAt}).Draw(d.T, "limit")
		limit += Instant(rapid.IntRange(-1, 1).Draw(d.T, "around"))
		d.life.now = max(now, limit)
		return
	}
	d.life.after(rapid.SampledFrom([]time.Duration{0, tick, time.Second, lease / 2}).Draw(d.T, "passes"))
}

// What holds for every row of calls; life.do and checkStep hold the rest: the
// fence and the version only grow, also over absence, refusals write nothing,
// what Apply was given is as it was, and what a record remembers is bounded.
func TestEveryRowOfCalls(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		d := &drawn{T: rt, life: newLife(t), grant: map[AttemptID]Fence{}}
		var version int64
		for range rapid.IntRange(1, 60).Draw(rt, "calls") {
			d.pass()
			before, was := d.life.rec, d.life.state()
			if was == StateAbsent {
				clear(d.grant)
			}
			q := d.request()
			ans := d.life.do(q)

			if d.life.rec != before {
				require.Greater(rt, d.life.rec.Version, version, "the version grows")
				version = d.life.rec.Version
			}
			if was == StateCompleted || was == StateExpired {
				require.Same(rt, before, d.life.rec, "what is completed is never written again")
			}
			if r, ok := q.(Reserve); ok && ans.Verdict == VerdictGranted {
				fence, again := d.grant[r.Attempt]
				require.True(rt, !again || fence == ans.Record.Fence, "an attempt is granted once")
				d.grant[r.Attempt] = ans.Record.Fence
			}
			d.repeat(q, ans)
		}
	})
}

// repeat asks again at once: a lost reply is harmless.
func (d *drawn) repeat(q Request, first Answer) {
	if r, ok := q.(Resolve); ok && first.Verdict == VerdictOK {
		require.Equal(d.T, r.Version, d.life.rec.ResolvedFrom)
	}
	again, ans := Apply(d.life.rec, q, d.life.now, d.life.skew)
	require.Nil(d.T, again, "the repeat of %+v wrote", q)
	require.Equal(d.T, first.Verdict, ans.Verdict, "%+v", q)
	require.Equal(d.T, first.State, ans.State)
	require.Empty(d.T, cmp.Diff(first.Outcome, ans.Outcome))
	require.Empty(d.T, cmp.Diff(first.Record, ans.Record))
}
