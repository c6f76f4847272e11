package storage

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRedactKeepsTheStateAndErasesTheRest(t *testing.T) {
	t.Parallel()
	for _, a := range everyState() {
		t.Run(a.name, func(t *testing.T) {
			t.Parallel()
			o := newOffice(t)
			a.arrange(o)
			if a.name == "reserved" {
				for _, q := range []Request{Redact{}, Forget{}} {
					require.Positive(t, o.want(VerdictInProgress, q).RetryAfter)
				}
				return
			}
			before := o.rec
			want := VerdictOK
			if a.state == StateAbsent {
				want = VerdictNotFound
			}
			change, ans := ApplyCase(Case{Record: o.rec}, Redact{Note: "n"}, o.now, o.skew)
			require.Equal(t, want, ans.Verdict)
			require.True(t, change.Redact)
			require.Equal(t, a.state, ans.State)
			if before == nil {
				require.Nil(t, change.Record)
				return
			}
			r := change.Record
			require.Equal(t, Identity{Namespace: identity.Namespace, Operation: identity.Operation}, r.Identity)
			require.Equal(t, identity.RecordID(), r.ID())
			require.Equal(t, before.Fingerprint, r.Fingerprint)
			require.Equal(t, before.Fence, r.Fence)
			require.Equal(t, before.DropAt, r.DropAt)
			require.Empty(t, r.Note)
			if r.Outcome != nil {
				require.Equal(t, before.Outcome.Hash(), r.Outcome.Hash())
				require.Equal(t, before.Outcome.Success(), r.Outcome.Success())
				require.Empty(t, r.Outcome.Response)
				require.Empty(t, r.Outcome.Status)
			}
			again, ans := ApplyCase(Case{Record: r}, Redact{}, o.now, o.skew)
			require.Equal(t, want, ans.Verdict)
			require.Nil(t, again.Record, "nothing is left to redact")
		})
	}
}

func TestRedactErasesOpenEntriesAndAnOpenedError(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	o.want(VerdictOK, complete(1, o.grant(1), failure("secret")))
	id := o.park(EntryExhausted, func(q *Park) {
		q.Entry.Request, q.Entry.Metadata = []byte("secret"), []MetadataEntry{{Key: "k"}}
		q.Entry.Status, q.Entry.Signature, q.Entry.Note = []byte("secret"), "secret", "secret"
	})
	o.want(VerdictOK, Settle{Entry: id, Token: o.claim(id), Result: ResultFailed, Status: []byte("secret")})
	fence := o.want(VerdictGranted, replay(2, id, o.claim(id, byOperator))).Record.Fence
	o.want(VerdictOK, release(2, fence, EffectUnknown))
	o.want(VerdictInProgress, Forget{})
	o.lapse().want(VerdictOK, Redact{})
	require.True(t, o.rec.Reopened.Erased)
	e := o.entry(id)
	require.True(t, e.Open())
	require.Equal(t, e, e.Redacted())
	require.False(t, e.HasRequest)
	require.Empty(t, string(e.Request)+string(e.Status)+string(e.ReplayStatus)+e.Signature+e.Note+e.Identity.Key)
	o.want(VerdictOK, resolveReleased(o.rec.Version))
	told := o.want(VerdictCompleted, reserve(3)).Outcome
	require.True(t, told.Omitted, "what comes back is not told")
	require.False(t, told.Success())
}

func TestForgetLeavesNothing(t *testing.T) {
	t.Parallel()
	for _, a := range everyState() {
		if a.name == "reserved" {
			continue
		}
		t.Run(a.name, func(t *testing.T) {
			t.Parallel()
			o := newOffice(t)
			a.arrange(o)
			o.park(EntryExhausted)
			ans := o.want(VerdictOK, Forget{})
			require.Equal(t, StateAbsent, ans.State)
			require.Nil(t, ans.Record)
			require.Nil(t, o.rec)
			o.want(VerdictNotFound, Forget{})
			o.grant(1, as(fpTwo))
		})
	}
}
