package storage

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What happens to the open entries of a record follows from what happens to it.
func TestWhatBecomesOfEntries(t *testing.T) {
	t.Parallel()
	const open = EntryResult(0)
	kinds := []EntryKind{EntryExhausted, EntryUnreconciled, EntryOverdue, EntryConflict}
	for name, c := range map[string]struct {
		act  func(o *office, fence Fence)
		want [4]EntryResult
	}{
		"Complete with success": {
			func(o *office, f Fence) { o.want(VerdictOK, complete(1, f, success("x"))) },
			[4]EntryResult{ResultSuperseded, ResultSuperseded, ResultSuperseded, open},
		},
		"a late one": {
			func(o *office, f Fence) { o.lapse(); o.want(VerdictOK, complete(1, f, success("x"))) },
			[4]EntryResult{ResultSuperseded, ResultSuperseded, ResultSuperseded, open},
		},
		"Complete with an error": {
			func(o *office, f Fence) { o.want(VerdictOK, complete(1, f, failure("x"))) },
			[4]EntryResult{open, open, ResultSuperseded, open},
		},
		"Release(NONE)": {
			func(o *office, f Fence) { o.want(VerdictOK, release(1, f, EffectNone)) },
			[4]EntryResult{open, open, ResultSuperseded, open},
		},
		"Release(REPEATABLE)": {
			func(o *office, f Fence) { o.want(VerdictOK, release(1, f, EffectRepeatable)) },
			[4]EntryResult{open, open, ResultSuperseded, open},
		},
		"Release(UNKNOWN)": {
			func(o *office, f Fence) { o.want(VerdictOK, release(1, f, EffectUnknown)) },
			[4]EntryResult{},
		},
		"a lapse":                    {func(o *office, _ Fence) { o.lapse() }, [4]EntryResult{}},
		"Extend":                     {func(o *office, f Fence) { o.after(time.Second).want(VerdictOK, extend(1, f)) }, [4]EntryResult{}},
		"a repeat of another's call": {func(o *office, _ Fence) { o.want(VerdictInProgress, reserve(2)) }, [4]EntryResult{}},
		"Resolve(COMPLETED)": {
			func(o *office, _ Fence) { o.lapse(); o.want(VerdictOK, resolveCompleted(o.rec.Version, nil)) },
			[4]EntryResult{ResultSuperseded, ResultSuperseded, ResultSuperseded, open},
		},
		"Resolve(RELEASED)": {
			func(o *office, _ Fence) { o.lapse(); o.want(VerdictOK, resolveReleased(o.rec.Version)) },
			[4]EntryResult{open, ResultSuperseded, ResultSuperseded, open},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOffice(t)
			fence := o.grant(1)
			ids := make([]EntryID, 0, len(kinds))
			for _, k := range kinds {
				ids = append(ids, o.park(k))
			}
			c.act(o, fence)
			for i, id := range ids {
				e := o.entry(id)
				require.Equal(t, c.want[i], e.Result, kinds[i])
				require.Equal(t, c.want[i] == open, e.Open(), kinds[i])
			}
		})
	}
}

// Its key may have come to a new life, of which it knows nothing.
func TestAnEntryThatItsRecordDoesNotCountIsNotResolvedWithIt(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	fence := o.grant(1)
	id := o.park(EntryExhausted)
	o.rec.Pins, o.entry(id).Pinned = 0, false // as one that is parked past the retention
	o.want(VerdictOK, complete(1, fence, success("x")))
	require.True(t, o.entry(id).Open())
}

func TestReserveUnderAClaim(t *testing.T) {
	t.Parallel()
	failed := everyState()[9].arrange
	for name, c := range map[string]struct {
		arrange func(o *office) // before the entry is parked and claimed
		claim   func(*Claim)
		later   func(o *office, id EntryID, t ClaimToken) // after it
		change  func(*Reserve)
		want    Verdict
		result  EntryResult
	}{
		"absent":       {want: VerdictGranted},
		"released":     {arrange: everyState()[4].arrange, want: VerdictGranted},
		"a kept error": {arrange: everyState()[5].arrange, want: VerdictGranted},
		"a kept error, other request while bound": {arrange: everyState()[6].arrange, change: as(fpTwo), want: VerdictKeyReused},
		"unknown, REFUSE":                         {arrange: everyState()[7].arrange, want: VerdictOutcomeUnknown},
		"unknown, RERUN":                          {arrange: everyState()[7].arrange, change: rerun, want: VerdictGranted},
		"completed":                               {arrange: everyState()[8].arrange, claim: byOperator, want: VerdictCompleted, result: ResultAlreadyDone},
		"completed, other request":                {arrange: everyState()[8].arrange, claim: byOperator, change: as(fpTwo), want: VerdictKeyReused},
		"a final error, by its owner":             {arrange: failed, want: VerdictCompleted},
		"a final error, by an operator":           {arrange: failed, claim: byOperator, want: VerdictGranted},
		"a final error, other request":            {arrange: failed, claim: byOperator, change: as(fpTwo), want: VerdictKeyReused},
		"a final error, by its own attempt":       {arrange: failed, claim: byOperator, change: func(q *Reserve) { q.Attempt = attempt(1) }, want: VerdictCompleted},
		"expired, by force":                       {arrange: everyState()[10].arrange, claim: func(q *Claim) { q.Force = true }, want: VerdictKeyExpired},
		"absent and grown old":                    {later: func(o *office, _ EntryID, _ ClaimToken) { o.after(retention - tick) }, claim: func(q *Claim) { q.Lease = retention }, want: VerdictGranted},
		"absent and old":                          {later: func(o *office, _ EntryID, _ ClaimToken) { o.after(retention) }, claim: func(q *Claim) { q.Lease = 2 * retention }, want: VerdictKeyExpired},
		"another token":                           {change: func(q *Reserve) { q.Claim = &ReplayClaim{Entry: q.Claim.Entry} }, want: VerdictClaimInvalid},
		"another entry":                           {change: func(q *Reserve) { q.Claim = &ReplayClaim{Token: q.Claim.Token} }, want: VerdictClaimInvalid},
		"another namespace":                       {change: func(q *Reserve) { q.Identity.Namespace = "x" }, want: VerdictClaimInvalid},
		"another operation":                       {change: func(q *Reserve) { q.Identity.Operation = "x" }, want: VerdictClaimInvalid},
		"another key":                             {change: func(q *Reserve) { q.Identity.Key = "x" }, want: VerdictClaimInvalid},
		"lapsed":                                  {later: func(o *office, _ EntryID, _ ClaimToken) { o.after(DefaultClaim) }, want: VerdictClaimInvalid},
		"given back": {later: func(o *office, id EntryID, t ClaimToken) {
			o.want(VerdictOK, Settle{Entry: id, Token: t, Result: ResultGivenBack})
		}, want: VerdictClaimInvalid},
		"settled, nothing done": {later: func(o *office, id EntryID, t ClaimToken) {
			o.want(VerdictOK, Settle{Entry: id, Token: t, Result: ResultReplayed})
		}, want: VerdictClaimInvalid},
		"redacted": {later: func(o *office, _ EntryID, _ ClaimToken) { o.want(VerdictOK, Redact{}) }, want: VerdictClaimInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOffice(t)
			if c.arrange != nil {
				c.arrange(o)
			}
			id := o.park(EntryExhausted)
			change := c.claim
			if change == nil {
				change = func(*Claim) {}
			}
			token := o.claim(id, change)
			if c.later != nil {
				c.later(o, id, token)
			}
			q := replay(2, id, token)
			if c.change != nil {
				c.change(&q)
			}
			ans := o.want(c.want, q)
			if c.later == nil {
				require.Equal(t, c.result, o.entry(id).Result)
			}
			if c.want == VerdictClaimInvalid {
				require.Nil(t, ans.Record)
				require.Nil(t, ans.Entry)
			}
			if c.want != VerdictGranted {
				require.Zero(t, o.entry(id).ClaimFence)
				return
			}
			require.Equal(t, identity, ans.Record.Identity, "the record is the entry's")
			require.Equal(t, ans.Record.Fence, o.entry(id).ClaimFence)
			require.Equal(t, ans.Record, o.want(VerdictGranted, q).Record)
		})
	}
}

// A final error that a replay opened comes back by itself where nothing came of
// it, and not where something did.
func TestAFinalErrorThatWasOpened(t *testing.T) {
	t.Parallel()
	old := failure("x")
	for name, c := range map[string]struct {
		end     func(o *office, fence Fence)
		state   State
		outcome *Outcome
	}{
		"Release(NONE)":     {func(o *office, f Fence) { o.want(VerdictOK, release(2, f, EffectNone)) }, StateCompleted, old},
		"a release unread":  {func(o *office, _ Fence) { o.want(VerdictOK, release(2, 0, EffectNone)) }, StateCompleted, old},
		"with a kept error": {func(o *office, f Fence) { o.want(VerdictOK, releaseKept(2, f, time.Minute)) }, StateCompleted, old},
		"Resolve(RELEASED)": {func(o *office, _ Fence) { o.lapse(); o.want(VerdictOK, resolveReleased(o.rec.Version)) }, StateCompleted, old},
		"BeginRun, then none": {func(o *office, _ Fence) {
			o.lapse()
			f := o.grant(3, reconcile(BasisBounded))
			o.want(VerdictOK, beginRun(3, f))
			o.want(VerdictOK, release(3, f, EffectNone))
		}, StateCompleted, old},
		"Release(REPEATABLE)": {func(o *office, f Fence) { o.want(VerdictOK, release(2, f, EffectRepeatable)) }, StateReleased, nil},
		"Release(UNKNOWN)":    {func(o *office, f Fence) { o.want(VerdictOK, release(2, f, EffectUnknown)) }, StateUnknown, nil},
		"a rerun's none": {func(o *office, _ Fence) {
			o.lapse()
			o.want(VerdictOK, release(3, o.grant(3, rerun), EffectNone))
		}, StateUnknown, nil},
		"success":       {func(o *office, f Fence) { o.want(VerdictOK, complete(2, f, success("y"))) }, StateCompleted, success("y")},
		"another error": {func(o *office, f Fence) { o.want(VerdictOK, complete(2, f, failure("y"))) }, StateCompleted, failure("y")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOffice(t)
			first := o.grant(1)
			o.want(VerdictOK, complete(1, first, old))
			id := o.park(EntryExhausted)
			fence := o.want(VerdictGranted, replay(2, id, o.claim(id, byOperator))).Record.Fence
			require.Equal(t, old, o.rec.Reopened)
			o.want(VerdictStaleHolder, reserve(1))
			require.Nil(t, o.want(VerdictStaleHolder, complete(1, first, old)).Conflict, "a repeat of what was stored is no conflict")
			require.NotNil(t, o.want(VerdictStaleHolder, complete(1, first, success("z"))).Conflict)
			c.end(o, fence)
			require.Equal(t, c.state, o.rec.State)
			require.Equal(t, c.outcome, o.rec.Outcome)
			require.Equal(t, c.state == StateUnknown, o.rec.Reopened != nil, "kept while nobody knows")
			if c.outcome == old {
				require.Equal(t, o.now.Add(retention), o.rec.ExpiresAt)
				require.Equal(t, old, o.want(VerdictCompleted, reserve(9)).Outcome)
				require.True(t, o.entry(id).Open())
			}
		})
	}
}

func TestAClaimOpensAFinalErrorOnce(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	o.want(VerdictOK, complete(1, o.grant(1), failure("x")))
	id := o.park(EntryExhausted)
	token := o.claim(id, byOperator)
	fence := o.want(VerdictGranted, replay(2, id, token)).Record.Fence
	o.want(VerdictOK, complete(2, fence, failure("y")))
	require.Equal(t, failure("y"), o.want(VerdictCompleted, replay(3, id, token)).Outcome)
	o.want(VerdictOK, Settle{Entry: id, Token: token, Result: ResultFailed})
	fence = o.want(VerdictGranted, replay(3, id, o.claim(id, byOperator))).Record.Fence
	o.want(VerdictOK, complete(3, fence, success("z")))
	e := o.entry(id)
	require.Equal(t, ResultReplayed, e.Result)
	require.Equal(t, success("z"), o.want(VerdictCompleted, replay(4, id, e.Claim)).Outcome, "a repeat is answered still")
}

func TestAnAnswerTellsWhatWaits(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	fence := o.grant(1)
	require.Nil(t, o.want(VerdictInProgress, reserve(2)).Entry)
	first := o.park(EntryOverdue, bare)
	second := o.after(tick).park(EntryExhausted)
	require.Equal(t, first, o.want(VerdictInProgress, reserve(2)).Entry.ID, "the oldest")
	ans := o.want(VerdictOK, complete(1, fence, failure("x")))
	require.Equal(t, second, ans.Entry.ID, "what is left")
	require.False(t, ans.Parked)
	require.Nil(t, o.want(VerdictOK, Lookup{}).Entry)
}
