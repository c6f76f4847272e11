package storage

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The rows arrange a record; the tests below park on each.
type arranged struct {
	name    string
	arrange func(o *office)
	state   State
}

func everyState() []arranged {
	return []arranged{
		{"absent", func(*office) {}, StateAbsent},
		{"a mark", func(o *office) { o.want(VerdictOK, release(7, 0, EffectNone)) }, StateAbsent},
		{"reserved", func(o *office) { o.grant(1) }, StateReserved},
		{"lapsed", func(o *office) { o.grant(1); o.lapse() }, StateUnknown},
		{"released", func(o *office) { o.want(VerdictOK, release(1, o.grant(1), EffectNone)) }, StateReleased},
		{"kept", func(o *office) { o.want(VerdictOK, releaseKept(1, o.grant(1), time.Minute)) }, StateReleased},
		{"bound", func(o *office) { o.want(VerdictOK, release(1, o.grant(1), EffectRepeatable)) }, StateReleased},
		{"unknown", func(o *office) { o.want(VerdictOK, release(1, o.grant(1), EffectUnknown)); o.lapse() }, StateUnknown},
		{"completed", func(o *office) { o.want(VerdictOK, complete(1, o.grant(1), success("x"))) }, StateCompleted},
		{"failed", func(o *office) { o.want(VerdictOK, complete(1, o.grant(1), failure("x"))) }, StateCompleted},
		{"expired", func(o *office) { o.want(VerdictOK, complete(1, o.grant(1), success("x"))); o.after(retention) }, StateExpired},
		{"over", func(o *office) {
			o.want(VerdictOK, complete(1, o.grant(1), success("x")))
			o.after(retention + tombstone)
		}, StateAbsent},
	}
}

func TestParkHoldsARecordInEveryStateButExpired(t *testing.T) {
	t.Parallel()
	for _, a := range everyState() {
		t.Run(a.name, func(t *testing.T) {
			t.Parallel()
			o := newOffice(t)
			a.arrange(o)
			before := o.rec
			e := o.entry(o.park(EntryExhausted))
			require.Equal(t, a.state, o.state(), "Park changes no state")
			require.Equal(t, a.state != StateExpired, e.Pinned)
			require.Equal(t, o.now, e.ParkedAt)
			if a.state == StateExpired {
				require.Same(t, before, o.rec, "a pin would bring it back")
				return
			}
			require.EqualValues(t, 1, o.rec.Pins)
			if a.state == StateAbsent {
				require.Equal(t, StateAbsent, o.rec.State, "a stub")
				if before != nil {
					require.Equal(t, before.Fence, o.rec.Fence, "it keeps the fence")
				}
			}
			for range 3 {
				o.after(retention + tombstone)
				require.False(t, o.rec.OverAt(o.now))
				require.NotEqual(t, StateExpired, o.state())
			}
		})
	}
}

// Once the last entry is closed, the tombstone time begins no earlier than then.
func TestAnUnpinnedRecordExpires(t *testing.T) {
	t.Parallel()
	for _, a := range everyState() {
		for _, late := range []bool{false, true} {
			t.Run(a.name, func(t *testing.T) {
				t.Parallel()
				o := newOffice(t)
				a.arrange(o)
				id := o.park(EntryExhausted)
				before := *o.rec
				if late {
					o.after(2 * (retention + tombstone))
				}
				o.want(VerdictOK, Discard{Entry: id, Terms: terms})
				require.Zero(t, o.rec.Pins)
				switch {
				case a.state == StateExpired:
				case a.state == StateAbsent:
					require.Equal(t, StateAbsent, o.state())
					require.Equal(t, max(before.DropAt, o.now), o.rec.DropAt, "a stub may be swept, a mark not before its time")
				case before.DropAt == 0:
					require.Zero(t, o.rec.DropAt)
				default:
					require.Equal(t, max(before.ExpiresAt, o.now), o.rec.ExpiresAt)
					require.Equal(t, before.DropAt-before.ExpiresAt, o.rec.DropAt-o.rec.ExpiresAt)
				}
				e := o.entry(id)
				require.Equal(t, o.now.Add(DefaultEntryHold), e.DropAt)
				require.Equal(t, o.now, e.ClosedAt)
			})
		}
	}
}

func TestIDsAreInTheOrderOfParkingAndTheSameWhoeverJudges(t *testing.T) {
	t.Parallel()
	a, b := newOffice(t), newOffice(t)
	first := a.park(EntryExhausted)
	require.Equal(t, first, b.park(EntryExhausted))
	require.NotEqual(t, first, a.park(EntryUnreconciled), "another kind at the same instant")
	a.after(tick)
	a.want(VerdictOK, Discard{Entry: first})
	second := a.park(EntryExhausted)
	require.Positive(t, slices.Compare(second[:], first[:]))
}

func TestParkAtTheCap(t *testing.T) {
	t.Parallel()
	full := func(q *Park) { q.Full = true }
	for kind, refused := range map[EntryKind]bool{EntryExhausted: true, EntryUnreconciled: true, EntryOverdue: false, EntryConflict: false} {
		o := newOffice(t)
		q := Park{Entry: DeadLetter{Kind: kind, Identity: identity, ParkID: attempt(50)}, Full: true}
		if refused {
			o.want(VerdictFull, q)
			require.Nil(t, o.rec)
			o.park(kind)
		} else {
			o.want(VerdictOK, q)
		}
		o.park(kind, full)
		require.Len(t, o.entries, 1)
		require.EqualValues(t, 2, o.entries[0].Count, "an open one takes it in")
	}
}

func TestAParkedAttemptListIsBounded(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	fence := o.grant(1)
	o.want(VerdictOK, complete(1, fence, success("x")))
	for i := range 2 * MaxEntryAttempts {
		ans := o.want(VerdictStaleHolder, complete(byte(2+i), 1, failure("x")))
		require.True(t, ans.Parked)
	}
	require.Len(t, o.entries, 1)
	require.Len(t, o.entries[0].Attempts, MaxEntryAttempts)
	require.EqualValues(t, 2*MaxEntryAttempts, o.entries[0].Count)
	long := make([]EntryAttempt, 20)
	long[19].Code = 9
	id := o.park(EntryExhausted, func(q *Park) { q.Entry.Attempts = long })
	require.Equal(t, long[4:], o.entry(id).Attempts, "the last ones")
}
