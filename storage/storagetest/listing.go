package storagetest

import (
	"bytes"
	"fmt"

	"github.com/stretchr/testify/require"

	"github.com/dedupd/dedupd/storage"
)

func listingCases() []testCase {
	return []testCase{
		{name: "pages hold every record once, in the order of their ids", run: listPages},
		{name: "records that arrive while paging move no others", run: listStable},
		{name: "filters by namespace and operation choose", run: listFilters},
		{name: "filters by state judge each record as of now", clock: true, run: listStates},
		{name: "marks of attempts given back are not listed", run: listNoMarks},
		{name: "an empty listing has no next page", run: listEmpty},
	}
}

// pages reads a listing to its end and calls between after each page.
func (f *fixture) pages(q storage.List, between func()) []*storage.Record {
	f.Helper()
	var all []*storage.Record
	for {
		page, err := f.Store.List(f.Context(), q)
		require.NoError(f, err)
		require.LessOrEqual(f, len(page.Records), q.Limit)
		require.Positive(f, page.Now)
		for _, r := range page.Records {
			id := r.Identity.RecordID()
			require.Positive(f, bytes.Compare(id[:], q.After[:]), "ids grow from page to page")
			q.After = id
			all = append(all, r)
		}
		if page.Next == (storage.RecordID{}) {
			return all
		}
		require.GreaterOrEqual(f, bytes.Compare(page.Next[:], q.After[:]), 0)
		q.After = page.Next
		if between != nil {
			between()
		}
	}
}

func keysOf(records []*storage.Record) []string {
	keys := make([]string, 0, len(records))
	for _, r := range records {
		keys = append(keys, r.Identity.Key)
	}
	return keys
}

func listPages(f *fixture) {
	want := make([]string, 0, 25)
	for i := range 25 {
		key := fmt.Sprintf("k%d", i)
		f.grant(key)
		want = append(want, key)
	}
	for _, limit := range []int{1, 7, 25, 26, 1000} {
		got := f.pages(storage.List{Namespace: f.namespace, Limit: limit}, nil)
		require.ElementsMatch(f, want, keysOf(got), "limit %d", limit)
	}
	for _, r := range f.pages(storage.List{Namespace: f.namespace, Limit: 10}, nil) {
		requireEqual(f, f.record(r.Identity.Key), r)
	}
}

func listStable(f *fixture) {
	want := make([]string, 0, 20)
	for i := range 20 {
		key := fmt.Sprintf("before%d", i)
		f.grant(key)
		want = append(want, key)
	}
	added := 0
	got := f.pages(storage.List{Namespace: f.namespace, Limit: 3}, func() {
		f.grant(fmt.Sprintf("between%d", added))
		added++
	})
	keys := keysOf(got)
	require.Positive(f, added)
	require.Subset(f, keys, want)
	seen := map[string]bool{}
	for _, k := range keys {
		require.False(f, seen[k], "no record is listed twice")
		seen[k] = true
	}
}

func listFilters(f *fixture) {
	put := func(namespace, operation, key string) {
		q := f.request(key)
		q.Identity.Namespace, q.Identity.Operation = namespace, operation
		f.granted(q, storage.ModeRun)
	}
	put(f.namespace, "op1", "a")
	put(f.namespace, "op2", "b")
	put(f.namespace+"-b", "op1", "c")
	list := func(q storage.List) []string {
		q.Limit = 100
		return keysOf(f.pages(q, nil))
	}
	require.ElementsMatch(f, []string{"a", "b"}, list(storage.List{Namespace: f.namespace}))
	require.ElementsMatch(f, []string{"a"}, list(storage.List{Namespace: f.namespace, Operation: "op1"}))
	require.ElementsMatch(f, []string{"c"}, list(storage.List{Namespace: f.namespace + "-b"}))
	require.Empty(f, list(storage.List{Namespace: f.namespace, Operation: "op3"}))
	require.Subset(f, list(storage.List{Operation: "op1"}), []string{"a", "c"})
}

func listStates(f *fixture) {
	f.completed("expired", success("x"))
	f.Advance(terms().Retention + margin)
	f.grant("lapsed")
	f.unknown("unknown")
	f.lapse(storage.MaxLease)
	f.grant("reserved")
	q, fence := f.grant("released")
	f.release(q, fence, storage.EffectNone)
	f.completed("completed", success("x"))
	list := func(states ...storage.State) []string {
		return keysOf(f.pages(storage.List{Namespace: f.namespace, States: states, Limit: 2}, nil))
	}
	require.ElementsMatch(f, []string{"lapsed", "unknown"}, list(storage.StateUnknown))
	require.ElementsMatch(f, []string{"reserved"}, list(storage.StateReserved))
	require.ElementsMatch(f, []string{"released"}, list(storage.StateReleased))
	require.ElementsMatch(f, []string{"completed"}, list(storage.StateCompleted))
	require.ElementsMatch(f, []string{"expired"}, list(storage.StateExpired))
	require.ElementsMatch(f, []string{"lapsed", "unknown", "reserved"}, list(storage.StateUnknown, storage.StateReserved))
	require.ElementsMatch(f, []string{"lapsed", "unknown", "completed"}, list(storage.StateUnknown, storage.StateCompleted))
	require.Len(f, list(), 6)
	f.Advance(3 * terms().Retention)
	require.ElementsMatch(f, []string{"lapsed", "unknown", "reserved"}, list(), "absent records are not listed")
}

func listNoMarks(f *fixture) {
	f.giveBack(f.request("mark"))
	f.grant("k")
	require.Equal(f, []string{"k"}, keysOf(f.pages(storage.List{Namespace: f.namespace, Limit: 10}, nil)))
}

func listEmpty(f *fixture) {
	require.Empty(f, f.pages(storage.List{Namespace: f.namespace, Limit: 10}, nil))
	last := storage.RecordID{}
	for i := range last {
		last[i] = 0xff
	}
	page, err := f.Store.List(f.Context(), storage.List{After: last, Limit: 1})
	require.NoError(f, err)
	require.Empty(f, page.Records)
	require.Zero(f, page.Next)
}
