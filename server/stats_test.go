package server

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/storage"
)

func (b *bundle) stats(t *testing.T, namespace string, hot int32) *dedupv1.StatsResponse {
	t.Helper()
	res, err := b.admin.Stats(t.Context(), &dedupv1.StatsRequest{Namespace: namespace, HotKeys: hot})
	require.NoError(t, err)
	return res
}

func TestARetryOrTwoMakesNoHotKey(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.grant(t, 1)
	for n := byte(2); n < 2+hotLeast; n++ {
		require.Empty(t, b.stats(t, "", 10).GetHotKeys())
		_, err := b.dedup.Reserve(t.Context(), reserveReq(n))
		require.NoError(t, err)
	}
	require.Len(t, b.stats(t, "", 10).GetHotKeys(), 1)
}

func TestStatsTellWhatThisReplicaAnsweredAndWhatComesBack(t *testing.T) {
	t.Parallel()
	b := setup(t)
	g := b.grant(t, 1)
	require.Empty(t, b.stats(t, "", 10).GetHotKeys(), "a fresh key is not coming back")
	for range 5 {
		require.NoError(t, b.reserve(t, 2)) // in progress
	}
	_, err := b.dedup.Complete(t.Context(), completeReq(1, g.GetFence(), "x"))
	require.NoError(t, err)
	for range 3 {
		require.NoError(t, b.reserve(t, 3)) // replayed
	}
	reused := reserveReq(4)
	reused.Fingerprints = prints("another")
	_, err = b.dedup.Reserve(t.Context(), reused)
	requireRefused(t, err, codes.FailedPrecondition, dedupv1.Reason_REASON_KEY_REUSED)
	b.completed(t, "c", "other key")

	got := b.stats(t, testNamespace, 10)
	require.Len(t, got.GetOperations(), 1)
	o := got.GetOperations()[0]
	require.Equal(t, testOperation, o.GetOperation())
	for want, n := range map[*int64]int64{
		new(int64(2)): o.GetGranted(), new(int64(3)): o.GetReplayed(), new(int64(5)): o.GetInProgress(),
		new(int64(0)): o.GetUnknown(), new(int64(1)): o.GetRefused(), new(int64(2)): o.GetCompleted(),
	} {
		require.Equal(t, *want, n, "%v", o)
	}
	require.Len(t, got.GetHotKeys(), 1)
	hot := got.GetHotKeys()[0]
	require.Equal(t, storageIdentity().RecordID().Short(), hot.GetRecord())
	require.Equal(t, testNamespace, hot.GetNamespace())
	require.Equal(t, testOperation, hot.GetOperation())
	require.EqualValues(t, 9, hot.GetCount())
	require.InDelta(t, 9, b.metric(t, "dedupd_hottest_key_repeats"), 0)
	require.Equal(t, "test", got.GetVersion())
	require.Empty(t, b.stats(t, "shipping", 10).GetOperations())
	require.Empty(t, b.stats(t, "shipping", 10).GetHotKeys())
	require.Empty(t, b.stats(t, "", 0).GetHotKeys())
	require.Nil(t, got.GetCountedAt(), "nothing is counted before Run")
}

// H02: what is pending without completion is counted, also by metrics, and asking
// costs the store nothing.
func TestH02WhatNeedsSomebodyIsCountedNowAndThen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t)
		b.grant(t, 1)
		b.store.advance(time.Minute) // its lease lapses
		b.park(t, secretKey)
		b.store.advance(time.Minute)
		r := b.serve(t)
		synctest.Wait()
		got := b.stats(t, "", 0)
		require.NotNil(t, got.GetCountedAt())
		require.Len(t, got.GetUnfinished(), 1)
		require.Equal(t, dedupv1.State_STATE_UNKNOWN, got.GetUnfinished()[0].GetState())
		require.Equal(t, 2*time.Minute, got.GetUnfinished()[0].GetOldestAge().AsDuration())
		require.Len(t, got.GetDeadLetters(), 1)
		require.EqualValues(t, 1, got.GetDeadLetters()[0].GetEntries())
		require.Equal(t, time.Minute, got.GetDeadLetters()[0].GetOldestAge().AsDuration())
		require.Empty(t, b.stats(t, "shipping", 0).GetUnfinished())

		b.park(t, "another")
		time.Sleep(censusEvery / 2) //nolint:forbidigo // inside a bubble
		for range 100 {
			require.Len(t, b.stats(t, "", 0).GetDeadLetters(), 1)
		}
		require.Equal(t, 1, b.store.calls("Census"))
		requireGet(t, r, "/metrics", http.StatusOK, `dedupd_dead_letters{kind="exhausted",namespace="billing"} 1`)
		requireGet(t, r, "/metrics", http.StatusOK, `dedupd_dead_letter_oldest_age_seconds{kind="exhausted",namespace="billing"} 75`)
		requireGet(t, r, "/metrics", http.StatusOK, `dedupd_unfinished_records{namespace="billing",state="unknown"} 1`)
		requireGet(t, r, "/metrics", http.StatusOK, `dedupd_unfinished_oldest_age_seconds{namespace="billing",state="unknown"} 135`)
		requireGet(t, r, "/metrics", http.StatusOK, `dedupd_census_age_seconds 15`)

		time.Sleep(censusEvery) //nolint:forbidigo // inside a bubble
		require.InDelta(t, 2, b.metric(t, "dedupd_dead_letters"), 0)
		b.store.fail(errBroken, "Census")
		time.Sleep(3 * censusEvery) //nolint:forbidigo // inside a bubble
		require.InDelta(t, 2, b.metric(t, "dedupd_dead_letters"), 0, "the last numbers stay")
		require.Equal(t, 1, bytes.Count([]byte(b.logs.String()), []byte("counting unfinished records failed")))
	})
}

// G04: one key that is asked for again and again stands out, in bounded memory,
// and is forgotten once it stops.
func TestG04TheKeyThatKeepsComingStandsOutOfAFlood(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHotKeys()
		ctx, stop := context.WithCancel(t.Context())
		go h.run(ctx)
		repeat := storage.Answer{Verdict: storage.VerdictOutcomeUnknown}
		for n := range 50_000 {
			id := storage.Identity{Namespace: "n", Operation: "o", Key: fmt.Sprint(n)}
			h.asked(id.RecordID(), id, repeat)
			if n%50 == 0 {
				id.Key = "hot"
				h.asked(id.RecordID(), id, repeat)
			}
		}
		got := h.hottest("", 100, 1)
		require.LessOrEqual(t, len(got), hotKept)
		require.Equal(t, storage.Identity{Namespace: "n", Operation: "o", Key: "hot"}.RecordID().Short(), got[0].GetRecord())
		require.InDelta(t, 1000, got[0].GetCount(), 50)
		time.Sleep(10*hotFade + time.Second) //nolint:forbidigo // inside a bubble
		require.Zero(t, h.most())
		require.Empty(t, h.hottest("", 100, 1))
		stop()
	})
}

func TestLabelsOfNamespacesAreBounded(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for n := range maxNamespaces + 50 {
		b.metrics.capped(fmt.Sprint("ns", n))
	}
	require.InDelta(t, 50, b.metric(t, "dedupd_dead_letters_refused_total", "namespace", otherLabel), 0)
	require.Equal(t, "ns7", b.metrics.namespace("ns7"))
}

func TestOverdueRecordsAreParkedOnceAndStay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t)
		for n := range overduePage + 5 {
			req := reserveReq(1)
			req.Identity.Key = fmt.Append(nil, "key-", n)
			_, err := b.dedup.Reserve(t.Context(), req)
			require.NoError(t, err)
		}
		b.completed(t, "c", "done")
		b.store.advance(storage.DefaultRetention - time.Hour)
		b.serve(t)
		time.Sleep(overdueEvery) //nolint:forbidigo // inside a bubble
		require.Zero(t, b.metric(t, "dedupd_overdue_records"))
		b.store.advance(2 * time.Hour)
		time.Sleep(3*overdueEvery + time.Second) //nolint:forbidigo // inside a bubble

		require.InDelta(t, overduePage+5, b.metric(t, "dedupd_overdue_records", "namespace", testNamespace), 0)
		require.InDelta(t, overduePage+5, b.metric(t, "dedupd_dead_letters_parked_total", "kind", "overdue", "entry", "created"), 0)
		require.Zero(t, b.metric(t, "dedupd_dead_letters_parked_total", "entry", "repeated"))
		require.Equal(t, overduePage+5, b.store.calls("Park"), "rounds after the first only read")
		list, err := b.dead.List(t.Context(), &dedupv1.DeadLetterServiceListRequest{PageSize: 1000})
		require.NoError(t, err)
		require.Len(t, list.GetEntries(), overduePage+5)
		require.Equal(t, testOperation, list.GetEntries()[0].GetMethod())

		id := list.GetEntries()[0].GetEntryId()
		_, err = b.dead.Discard(t.Context(), &dedupv1.DiscardRequest{EntryIds: [][]byte{id}, Note: "known"})
		require.NoError(t, err)
		b.store.fail(errBroken, "List")
		time.Sleep(overdueEvery) //nolint:forbidigo // inside a bubble
		require.Contains(t, b.logs.String(), "looking for overdue records failed")
		b.store.fail(nil)
		time.Sleep(2 * overdueEvery) //nolint:forbidigo // inside a bubble
		require.Equal(t, overduePage+5, b.store.calls("Park"), "what a person has discarded does not come back")
		unknown, err := b.admin.ListRecords(t.Context(), &dedupv1.ListRecordsRequest{States: []dedupv1.State{dedupv1.State_STATE_UNKNOWN}, PageSize: 1000})
		require.NoError(t, err)
		require.Len(t, unknown.GetRecords(), overduePage+5, "no sweep frees them")
	})
}
