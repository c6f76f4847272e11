package storagetest

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/stretchr/testify/require"

	"github.com/dedupd/dedupd/storage"
)

func concurrencyCases() []testCase {
	return []testCase{
		{name: "B07 of 200 callers of one key one is granted and the rest are told to wait", run: hotKey},
		{name: "B07 200 callers of a completed key all get its outcome and write nothing", run: hotCompleted},
		{name: "B08 25 callers with 50 keys each all succeed", run: manyWriters},
		{name: "of many holders that complete one key the granted one wins", run: racingCompletes},
		{name: "200 repeats of one attempt get one grant", run: racingRepeats},
		{name: "calls on different keys run at once with a sweep and listings", clock: true, run: mixedLoad},
		{name: "histories of concurrent calls are linearizable", run: linearizable},
	}
}

// together runs n calls at once and waits for all.
func together(n int, call func(i int)) {
	var start, done sync.WaitGroup
	start.Add(1)
	for i := range n {
		done.Go(func() {
			start.Wait()
			call(i)
		})
	}
	start.Done()
	done.Wait()
}

// tally counts verdicts of concurrent calls; an error counts under zero.
type tally struct {
	mu     sync.Mutex
	counts map[string]int
	err    error
}

func (t *tally) add(ans storage.Answer, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.counts == nil {
		t.counts = map[string]int{}
	}
	if err != nil {
		t.err = err
		return
	}
	t.counts[ans.Verdict.String()]++
}

func hotKey(f *fixture) {
	var t tally
	together(200, func(int) { t.add(f.Store.Reserve(f.Context(), f.request("k"))) })
	require.NoError(f, t.err)
	require.Equal(f, map[string]int{"granted": 1, "in_progress": 199}, t.counts)
	require.EqualValues(f, 1, f.record("k").Grants)
}

func hotCompleted(f *fixture) {
	f.completed("k", success("x"))
	before := f.record("k")
	var t tally
	var wrong atomic.Int64
	want := success("x").Hash()
	together(200, func(int) {
		ans, err := f.Store.Reserve(f.Context(), f.request("k"))
		if err == nil && ans.Outcome.Hash() != want {
			wrong.Add(1)
		}
		t.add(ans, err)
	})
	require.NoError(f, t.err)
	require.Equal(f, map[string]int{"completed": 200}, t.counts)
	require.Zero(f, wrong.Load())
	requireEqual(f, before, f.record("k"))
}

func manyWriters(f *fixture) {
	const callers, each = 25, 50
	var t tally
	together(callers, func(i int) {
		for j := range each {
			q := f.request(fmt.Sprintf("k%d-%d", i, j))
			ans, err := f.Store.Reserve(f.Context(), q)
			t.add(ans, err)
			if err != nil {
				return
			}
			t.add(f.Store.Complete(f.Context(), q.Identity.RecordID(), storage.Complete{
				Attempt: q.Attempt, Fence: ans.Record.Fence, Outcome: success(q.Identity.Key), Terms: terms(),
			}))
		}
	})
	require.NoError(f, t.err)
	require.Equal(f, map[string]int{"granted": callers * each, "ok": callers * each}, t.counts)
	for i := range callers {
		key := fmt.Sprintf("k%d-%d", i, i)
		requireEqual(f, success(key), f.reserve(f.request(key)).Outcome)
	}
}

func racingCompletes(f *fixture) {
	q, fence := f.grant("k")
	var t tally
	together(50, func(i int) {
		try := storage.Complete{Attempt: q.Attempt, Fence: fence, Outcome: success("winner"), Terms: terms()}
		if i%2 == 1 {
			try.Fence, try.Outcome = fence-1, success("loser")
		}
		t.add(f.Store.Complete(f.Context(), q.Identity.RecordID(), try))
	})
	require.NoError(f, t.err)
	require.Equal(f, map[string]int{"ok": 25, "stale_holder": 25}, t.counts)
	requireEqual(f, success("winner"), f.reserve(f.request("k")).Outcome)
}

func racingRepeats(f *fixture) {
	q := f.request("k")
	var fences sync.Map
	var t tally
	together(200, func(int) {
		ans, err := f.Store.Reserve(f.Context(), q)
		t.add(ans, err)
		if err == nil {
			fences.Store(ans.Record.Fence, true)
		}
	})
	require.NoError(f, t.err)
	require.Equal(f, map[string]int{"granted": 200}, t.counts)
	count := 0
	fences.Range(func(any, any) bool { count++; return true })
	require.Equal(f, 1, count)
}

func mixedLoad(f *fixture) {
	for i := range 50 {
		f.completed(fmt.Sprintf("old%d", i), success("x"))
	}
	f.Advance(terms().Retention + terms().Tombstone + margin)
	var t tally
	var swept atomic.Int64
	var failed atomic.Value
	together(30, func(i int) {
		for j := range 20 {
			switch {
			case i < 2:
				n, err := f.Store.Sweep(f.Context(), 5)
				swept.Add(int64(n))
				if err != nil {
					failed.Store(err)
				}
			case i < 4:
				if _, err := f.Store.List(f.Context(), storage.List{Namespace: f.namespace, Limit: 10}); err != nil {
					failed.Store(err)
				}
			default:
				t.add(f.Store.Reserve(f.Context(), f.request(fmt.Sprintf("old%d", (i*20+j)%50))))
			}
		}
	})
	require.NoError(f, t.err)
	require.Nil(f, failed.Load())
	require.Equal(f, 50, t.counts["granted"], "each key is granted once, swept before or not")
	require.LessOrEqual(f, swept.Load(), int64(50))
	require.Len(f, f.pages(storage.List{Namespace: f.namespace, States: []storage.State{storage.StateReserved}, Limit: 100}, nil), 50)
}
