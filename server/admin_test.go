package server

import (
	"encoding/hex"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/storage"
)

func resolveReq(version []byte) *dedupv1.ResolveRequest {
	return &dedupv1.ResolveRequest{
		Record:  &dedupv1.ResolveRequest_Identity{Identity: identity()},
		Version: version,
		Verdict: &dedupv1.ResolveRequest_Released{Released: &dedupv1.ResolveReleased{Basis: dedupv1.Basis_BASIS_BOUNDED}},
		Note:    "ledger has no entry",
	}
}

func TestA06AnOperatorSettlesAnUnknownRecord(t *testing.T) {
	t.Parallel()
	given := &dedupv1.Outcome{Result: &dedupv1.Outcome_Response{Response: &dedupv1.Response{Value: []byte("charged")}}}
	for name, c := range map[string]struct {
		verdict func(*dedupv1.ResolveRequest)
		after   func(*testing.T, *dedupv1.ReserveResponse)
	}{
		"as released": {func(*dedupv1.ResolveRequest) {}, func(t *testing.T, res *dedupv1.ReserveResponse) {
			t.Helper()
			require.Equal(t, dedupv1.Mode_MODE_RUN, res.GetGranted().GetMode())
		}},
		"as completed with the outcome": {func(r *dedupv1.ResolveRequest) {
			r.Verdict = &dedupv1.ResolveRequest_Completed{Completed: &dedupv1.ResolveCompleted{Outcome: given}}
		}, func(t *testing.T, res *dedupv1.ReserveResponse) {
			t.Helper()
			require.Equal(t, "charged", string(res.GetCompleted().GetOutcome().GetResponse().GetValue()))
			require.True(t, res.GetCompleted().GetByOperator())
		}},
		"as completed without one": {func(r *dedupv1.ResolveRequest) {
			r.Verdict = &dedupv1.ResolveRequest_Completed{Completed: &dedupv1.ResolveCompleted{}}
		}, func(t *testing.T, res *dedupv1.ReserveResponse) {
			t.Helper()
			require.NotNil(t, res.GetCompleted())
			require.Nil(t, res.GetCompleted().GetOutcome())
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.grant(t, 1)
			live := b.look(t)
			_, err := b.admin.Resolve(t.Context(), resolveReq(live.GetVersion()))
			requireRefused(t, err, codes.Aborted, dedupv1.Reason_REASON_IN_PROGRESS)

			b.store.advance(storage.DefaultLease)
			_, err = b.admin.Resolve(t.Context(), resolveReq(live.GetVersion()))
			requireRefused(t, err, codes.FailedPrecondition, dedupv1.Reason_REASON_RECORD_CHANGED) // its effect may have landed since
			req := resolveReq(b.look(t).GetVersion())
			c.verdict(req)
			res, err := b.admin.Resolve(t.Context(), req)
			require.NoError(t, err)
			require.True(t, res.GetRecord().GetByOperator())
			_, err = b.admin.Resolve(t.Context(), req)
			require.NoError(t, err, "a repeat finds its own verdict")

			again, err := b.dedup.Reserve(t.Context(), reserveReq(2))
			require.NoError(t, err)
			c.after(t, again)
			require.Contains(t, b.logs.String(), `audit.note="ledger has no entry"`)
			require.Contains(t, b.logs.String(), "audit.answer=in_progress")
			require.Contains(t, b.logs.String(), "audit.answer=ok")
			require.Contains(t, b.logs.String(), "audit.version="+hex.EncodeToString(req.GetVersion()), "as an operator sees it")
			require.NotContains(t, b.logs.String(), "BASIS_")
			require.NotContains(t, b.logs.String(), secretKey)
		})
	}
}

func TestNoVersionIsToldWithinALeaseNotEvenOfASettledRecord(t *testing.T) {
	t.Parallel()
	b := setup(t)
	g := b.grant(t, 1)
	require.Equal(t, make([]byte, 8), b.look(t).GetVersion())
	_, err := b.dedup.Complete(t.Context(), completeReq(1, g.GetFence(), "x"))
	require.NoError(t, err)
	require.Equal(t, make([]byte, 8), b.look(t).GetVersion())
	b.store.advance(storage.DefaultLease)
	require.NotEqual(t, make([]byte, 8), b.look(t).GetVersion())
}

func TestAVerdictOnAnotherVersionWritesNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	g := b.grant(t, 1)
	seen := b.look(t).GetVersion()
	_, err := b.dedup.Complete(t.Context(), completeReq(1, g.GetFence(), "x"))
	require.NoError(t, err)
	before := proto.Clone(b.look(t))
	_, err = b.admin.Resolve(t.Context(), resolveReq(seen))
	d := requireRefused(t, err, codes.FailedPrecondition, dedupv1.Reason_REASON_RECORD_CHANGED)
	require.Equal(t, "completed", d.info.GetMetadata()["state"])
	require.Equal(t, before.(*dedupv1.RecordInfo).GetVersion(), b.look(t).GetVersion()) //nolint:errcheck // a clone has its type
}

func TestPagesHoldEveryRecordOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const n = 25
	for i := range n {
		req := reserveReq(1)
		req.Identity.Key = fmt.Append(nil, "key-", i)
		if i%2 == 0 {
			req.Identity.Namespace = "shipping"
		}
		_, err := b.dedup.Reserve(t.Context(), req)
		require.NoError(t, err)
	}
	list := func(req *dedupv1.ListRecordsRequest) int {
		seen := map[string]bool{}
		for {
			res, err := b.admin.ListRecords(t.Context(), req)
			require.NoError(t, err)
			for _, r := range res.GetRecords() {
				require.False(t, seen[string(r.GetRecordId())])
				seen[string(r.GetRecordId())] = true
				require.Positive(t, r.GetLeaseLeft().AsDuration())
			}
			if len(res.GetNextPageToken()) == 0 {
				return len(seen)
			}
			req.PageToken = res.GetNextPageToken()
		}
	}
	require.Equal(t, n, list(&dedupv1.ListRecordsRequest{PageSize: 4}))
	require.Equal(t, 12, list(&dedupv1.ListRecordsRequest{Namespace: testNamespace}))
	require.Equal(t, n, list(&dedupv1.ListRecordsRequest{States: []dedupv1.State{dedupv1.State_STATE_RESERVED}}))
	require.Zero(t, list(&dedupv1.ListRecordsRequest{States: []dedupv1.State{dedupv1.State_STATE_COMPLETED}}))
	b.store.advance(time.Hour)
	res, err := b.admin.ListRecords(t.Context(), &dedupv1.ListRecordsRequest{States: []dedupv1.State{dedupv1.State_STATE_UNKNOWN}})
	require.NoError(t, err)
	require.Len(t, res.GetRecords(), n)
	require.Nil(t, res.GetRecords()[0].GetLeaseLeft())
	require.Nil(t, res.GetRecords()[0].GetEnds(), "unfinished records have no end")
}
