package storage

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
)

// office is one record with its entries, driven through ApplyCase; what holds
// for every call whatever the rules say is checked here.
type office struct {
	life
	entries []*DeadLetter
	parks   byte
	tokens  byte
}

func newOffice(tb testing.TB) *office {
	tb.Helper()
	return &office{life: *newLife(tb)}
}

// do applies q and keeps what it wrote.
func (o *office) do(q Request) Answer {
	o.Helper()
	before := slices.Clone(o.entries)
	copies := make([]DeadLetter, 0, len(before))
	for _, e := range before {
		copies = append(copies, *e)
	}
	change, ans := ApplyCase(Case{Record: o.rec, Entries: o.entries}, q, o.now, o.skew)
	for i, e := range before {
		require.Empty(o, cmp.Diff(&copies[i], e), "ApplyCase changed an entry that it was given")
	}
	if change.Record != nil || len(change.Entries) > 0 {
		require.True(o, ans.Verdict <= VerdictGranted || ans.Verdict == VerdictCompleted || ans.Parked, "%v wrote", ans.Verdict)
	}
	w := world{rec: o.rec, letters: o.entries}
	w.take(change)
	for i, e := range before {
		require.True(o, e.Open() || w.letters[i] == e, "a closed entry was written")
	}
	o.rec, o.entries = w.rec, w.letters
	if change.Forget {
		o.rec, o.entries = nil, nil
	}
	require.Equal(o, broken{}, w.judgeLettersAlone())
	return ans
}

// judgeLettersAlone is judgeLetters without what only a search knows.
func (w *world) judgeLettersAlone() broken {
	w.happened = okOf
	return w.judgeLetters(w.rec.StateAt(w.now, 0))
}

func (o *office) want(v Verdict, q Request) Answer {
	o.Helper()
	ans := o.do(q)
	require.Equal(o, v.String(), ans.Verdict.String(), "%T in state %v", q, ans.State)
	return ans
}

func (o *office) grant(n byte, change ...func(*Reserve)) Fence {
	o.Helper()
	return o.want(VerdictGranted, reserve(n, change...)).Record.Fence
}

// park parks an entry and returns its id.
func (o *office) park(k EntryKind, change ...func(*Park)) EntryID {
	o.Helper()
	o.parks++
	q := Park{Entry: DeadLetter{Kind: k, Identity: identity, ParkID: attempt(o.parks), HasRequest: true, Fingerprint: fpOne}, Terms: terms}
	for _, f := range change {
		f(&q)
	}
	return o.want(VerdictOK, q).Entry.ID
}

func bare(q *Park) { q.Entry.HasRequest = false }

// claim claims an entry, which must be free.
func (o *office) claim(id EntryID, change ...func(*Claim)) ClaimToken {
	o.Helper()
	o.tokens++
	q := Claim{Entry: id, Token: ClaimToken{o.tokens}, Terms: terms}
	for _, f := range change {
		f(&q)
	}
	o.want(VerdictOK, q)
	return q.Token
}

func byOperator(q *Claim) { q.Operator = true }

func (o *office) entry(id EntryID) *DeadLetter {
	o.Helper()
	i := slices.IndexFunc(o.entries, func(e *DeadLetter) bool { return e.ID == id })
	require.GreaterOrEqual(o, i, 0)
	return o.entries[i]
}

func (o *office) after(d time.Duration) *office {
	o.now = o.now.Add(d)
	return o
}

func (o *office) lapse() *office {
	o.now = o.rec.LeaseEnd.Add(o.skew)
	return o
}

// replay is a Reserve of another caller under the claim.
func replay(n byte, id EntryID, t ClaimToken, change ...func(*Reserve)) Reserve {
	q := reserve(n, change...)
	q.Identity.Caller = "replayer"
	q.Claim = &ReplayClaim{Entry: id, Token: t}
	q.Terms = terms
	return q
}

func TestClaim(t *testing.T) {
	t.Parallel()
	long := func(q *Claim) { q.Lease = MaxClaim }
	for name, c := range map[string]struct {
		arrange func(o *office) EntryID
		change  func(*Claim)
		want    Verdict
	}{
		"parked":       {func(o *office) EntryID { return o.park(EntryExhausted) }, nil, VerdictOK},
		"unreconciled": {func(o *office) EntryID { return o.park(EntryUnreconciled) }, nil, VerdictOK},
		"claimed": {func(o *office) EntryID {
			id := o.park(EntryExhausted)
			o.claim(id, long)
			return id
		}, nil, VerdictEntryChanged},
		"claimed, lapsed": {func(o *office) EntryID {
			id := o.park(EntryExhausted)
			o.claim(id)
			o.after(DefaultClaim)
			return id
		}, nil, VerdictOK},
		"claimed, about to lapse": {func(o *office) EntryID {
			id := o.park(EntryExhausted)
			o.claim(id)
			o.after(DefaultClaim - tick)
			return id
		}, nil, VerdictEntryChanged},
		"discarded": {func(o *office) EntryID {
			id := o.park(EntryExhausted)
			o.want(VerdictOK, Discard{Entry: id})
			return id
		}, byOperator, VerdictEntryChanged},
		"told to wait, but named": {func(o *office) EntryID {
			id := o.park(EntryExhausted)
			o.want(VerdictOK, Settle{Entry: id, Token: o.claim(id), Result: ResultFailed, NotBefore: time.Hour})
			return id
		}, nil, VerdictOK},
		"without a request":              {func(o *office) EntryID { return o.park(EntryOverdue, bare) }, nil, VerdictEntryChanged},
		"without a request, by a person": {func(o *office) EntryID { return o.park(EntryOverdue, bare) }, byOperator, VerdictOK},
		"while a run goes on":            {func(o *office) EntryID { o.grant(1); return o.park(EntryExhausted) }, byOperator, VerdictInProgress},
		"while a run goes on, to look":   {func(o *office) EntryID { o.grant(1); return o.park(EntryOverdue, bare) }, byOperator, VerdictOK},
		"once the run has lapsed": {func(o *office) EntryID {
			o.grant(1)
			id := o.park(EntryExhausted)
			o.lapse()
			return id
		}, nil, VerdictOK},
		"absent and old":           {func(o *office) EntryID { id := o.park(EntryExhausted); o.after(retention); return id }, nil, VerdictKeyExpired},
		"absent and nearly old":    {func(o *office) EntryID { id := o.park(EntryExhausted); o.after(retention - tick); return id }, nil, VerdictOK},
		"absent and old, by force": {func(o *office) EntryID { id := o.park(EntryExhausted); o.after(retention); return id }, func(q *Claim) { q.Force = true }, VerdictOK},
		"absent and parked anew":   {func(o *office) EntryID { o.park(EntryExhausted); o.after(retention); return o.park(EntryExhausted) }, nil, VerdictOK},
		"released and old": {func(o *office) EntryID {
			o.want(VerdictOK, release(1, o.grant(1), EffectNone))
			id := o.park(EntryExhausted)
			o.after(retention)
			return id
		}, nil, VerdictOK},
		"expired":           {func(o *office) EntryID { everyState()[10].arrange(o); return o.park(EntryExhausted) }, nil, VerdictKeyExpired},
		"expired, by force": {func(o *office) EntryID { everyState()[10].arrange(o); return o.park(EntryExhausted) }, func(q *Claim) { q.Force = true }, VerdictOK},
		"no such entry":     {func(*office) EntryID { return EntryID{1} }, nil, VerdictNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOffice(t)
			id := c.arrange(o)
			q := Claim{Entry: id, Token: ClaimToken{99}, Terms: terms}
			if c.change != nil {
				c.change(&q)
			}
			ans := o.want(c.want, q)
			if c.want != VerdictOK {
				return
			}
			require.Equal(t, o.now.Add(DefaultClaim), ans.Entry.ClaimEnd)
			require.Equal(t, q.Operator, ans.Entry.ByOperator)
			require.Zero(t, ans.Entry.ClaimFence)
			o.after(DefaultClaim - tick)
			require.Same(t, ans.Entry, o.want(VerdictOK, q).Entry, "a repeat does not prolong it")
			o.after(tick)
			o.want(VerdictEntryChanged, q)
		})
	}
}

func TestSettle(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		kind   EntryKind
		result EntryResult
		lapsed bool
		state  EntryState
		counts int64 // replays
	}{
		"replayed":              {EntryExhausted, ResultReplayed, false, EntryResolved, 1},
		"replayed, late":        {EntryExhausted, ResultReplayed, true, EntryResolved, 1},
		"already done":          {EntryUnreconciled, ResultAlreadyDone, false, EntryResolved, 1},
		"superseded":            {EntryOverdue, ResultSuperseded, false, EntryResolved, 1},
		"failed":                {EntryExhausted, ResultFailed, false, EntryParked, 1},
		"failed, late":          {EntryExhausted, ResultFailed, true, EntryParked, 1},
		"given back":            {EntryExhausted, ResultGivenBack, false, EntryParked, 0},
		"a conflict, by person": {EntryConflict, ResultAlreadyDone, false, EntryResolved, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOffice(t)
			id := o.park(c.kind)
			token := o.claim(id, byOperator)
			if c.lapsed {
				o.after(time.Hour)
			}
			o.want(VerdictEntryChanged, Settle{Entry: id, Token: ClaimToken{99}, Result: c.result})
			q := Settle{Entry: id, Token: token, Result: c.result, Status: []byte("replayed"), NotBefore: time.Minute, Terms: Terms{EntryHold: time.Hour}}
			before := o.entry(id)
			e := o.want(VerdictOK, q).Entry
			require.Equal(t, c.state, e.State)
			require.Equal(t, c.result, e.Result)
			require.Equal(t, c.counts, e.Replays)
			require.Equal(t, c.result == ResultFailed, len(e.ReplayStatus) > 0)
			require.Equal(t, before.Code, e.Code, "it stays in its group")
			require.Equal(t, before.Status, e.Status)
			require.Equal(t, before.Signature, e.Signature)
			if c.state == EntryParked {
				require.Equal(t, o.now.Add(time.Minute), e.NotBefore)
				require.False(t, e.ByOperator)
			} else {
				require.Equal(t, o.now.Add(time.Hour), e.DropAt)
			}
			require.Same(t, e, o.want(VerdictOK, q).Entry, "a repeat changes nothing")
		})
	}
	o := newOffice(t)
	id := o.park(EntryConflict)
	o.want(VerdictEntryChanged, Settle{Entry: id, Token: o.claim(id), Result: ResultReplayed})
	require.True(t, o.entry(id).Open(), "a conflict is a person's to close")
}

func TestRequeueAndDiscardActOnParkedEntriesOnly(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	id := o.park(EntryExhausted)
	requeue, discard := Requeue{Entry: id, Note: "again"}, Discard{Entry: id, Note: "no", Terms: terms}
	token := o.claim(id)
	o.want(VerdictEntryChanged, requeue)
	o.want(VerdictEntryChanged, discard)
	o.want(VerdictOK, Settle{Entry: id, Token: token, Result: ResultFailed, NotBefore: time.Hour})
	e := o.want(VerdictOK, requeue).Entry
	require.Zero(t, e.NotBefore)
	require.True(t, e.Requested && e.ByOperator)
	require.Same(t, e, o.want(VerdictOK, requeue).Entry)
	token = o.claim(id)
	require.True(t, o.entry(id).ByOperator, "an owner's claim has an operator's wish")
	o.after(DefaultClaim)
	o.want(VerdictOK, requeue)
	require.Equal(t, EntryParked, o.entry(id).State)
	o.want(VerdictEntryChanged, Settle{Entry: id, Token: token, Result: ResultReplayed})
	o.want(VerdictOK, discard)
	o.want(VerdictOK, discard)
	o.want(VerdictEntryChanged, requeue)
	require.Equal(t, "no", o.entry(id).Note)
	overdue := o.park(EntryOverdue, bare)
	o.want(VerdictEntryChanged, Requeue{Entry: overdue})
	for _, q := range []Request{Requeue{}, Discard{}, Settle{}} {
		o.want(VerdictNotFound, q)
	}
}
