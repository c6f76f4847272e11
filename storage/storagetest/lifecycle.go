package storagetest

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/stretchr/testify/require"

	"github.com/dedupd/dedupd/storage"
)

func lifecycleCases() []testCase {
	return []testCase{
		{name: "a caller that gave up before is granted nothing", run: cancelledBefore},
		{name: "callers that give up meanwhile leave grants that repeats find, or none", run: cancelledMeanwhile},
		{name: "a store that is open can serve", run: func(f *fixture) { require.NoError(f, f.Store.Check(f.Context())) }},
		{name: "every call after close is refused, and a second close does nothing", run: useAfterClose},
		{name: "a close during calls loses nothing that was acknowledged", reopen: true, run: closeDuringCalls},
		{name: "B12 what was completed is replayed after a restart", reopen: true, run: restartReplays},
		{name: "grants, fences and marks outlive a restart", reopen: true, run: restartKeeps},
	}
}

func cancelledBefore(f *fixture) {
	cancelled, cancel := context.WithCancel(f.Context())
	cancel()
	late, cancel := context.WithDeadline(f.Context(), f.look("k").Now.Time().AddDate(-1, 0, 0))
	defer cancel()
	for _, ctx := range []context.Context{cancelled, late} {
		_, err := f.Store.Reserve(ctx, f.request("k"))
		require.ErrorIs(f, err, ctx.Err())
		require.Equal(f, storage.StateAbsent, f.look("k").State)
	}
	f.grant("k")
}

func cancelledMeanwhile(f *fixture) {
	ctx, cancel := context.WithCancel(f.Context())
	defer cancel()
	const callers = 64
	var requests [callers]storage.Reserve
	var failed [callers]error
	var fences [callers]storage.Fence
	together(callers, func(i int) {
		if i == callers/2 {
			cancel()
		}
		requests[i] = f.request(fmt.Sprintf("k%d", i))
		ans, err := f.Store.Reserve(ctx, requests[i])
		failed[i] = err
		if err == nil {
			fences[i] = ans.Record.Fence
		}
	})
	for i, q := range requests {
		if failed[i] != nil {
			require.ErrorIs(f, failed[i], context.Canceled)
			f.granted(q, storage.ModeRun)
			continue
		}
		require.Equal(f, fences[i], f.granted(q, storage.ModeRun))
	}
}

func useAfterClose(f *fixture) {
	q, fence := f.grant("k")
	id := q.Identity.RecordID()
	require.NoError(f, f.Store.Close())
	require.NoError(f, f.Store.Close())
	ctx := f.Context()
	answer := func(_ storage.Answer, err error) error { return err }
	refused := map[string]error{
		"Reserve":  answer(f.Store.Reserve(ctx, f.request("k"))),
		"BeginRun": answer(f.Store.BeginRun(ctx, id, storage.BeginRun{Attempt: q.Attempt, Fence: fence})),
		"Complete": answer(f.Store.Complete(ctx, id, storage.Complete{Attempt: q.Attempt, Fence: fence, Outcome: success("x")})),
		"Extend":   answer(f.Store.Extend(ctx, id, storage.Extend{Attempt: q.Attempt, Fence: fence})),
		"Release":  answer(f.Store.Release(ctx, storage.Release{Identity: q.Identity, Attempt: q.Attempt, Fence: fence, Effect: storage.EffectNone})),
		"Lookup":   answer(f.Store.Lookup(ctx, id, storage.Lookup{})),
		"Resolve":  answer(f.Store.Resolve(ctx, id, storage.Resolve{})),
		"Check":    f.Store.Check(ctx),
		"Redact":   answer(f.Store.Redact(ctx, id, storage.Redact{})),
		"Forget":   answer(f.Store.Forget(ctx, id, storage.Forget{})),
		"Park":     answer(f.Store.Park(ctx, f.letter("k"))),
		"Entry":    answer(f.Store.Entry(ctx, storage.EntryID{1})),
		"Claim":    answer(f.Store.Claim(ctx, storage.Claim{})),
		"Settle":   answer(f.Store.Settle(ctx, storage.Settle{})),
		"Requeue":  answer(f.Store.Requeue(ctx, storage.Requeue{})),
		"Discard":  answer(f.Store.Discard(ctx, storage.Discard{})),
	}
	_, refused["Entries"] = f.Store.Entries(ctx, storage.ListEntries{Limit: 1})
	_, refused["Groups"] = f.Store.Groups(ctx, storage.ListEntries{Limit: 1})
	_, refused["Census"] = f.Store.Census(ctx)
	_, refused["List"] = f.Store.List(ctx, storage.List{Limit: 1})
	_, refused["Sweep"] = f.Store.Sweep(ctx, 1)
	for name, err := range refused {
		require.ErrorIs(f, err, storage.ErrClosed, name)
	}
}

func closeDuringCalls(f *fixture) {
	var mu sync.Mutex
	granted := map[string]storage.Fence{}
	var wrong error
	store := f.Store
	together(32, func(i int) {
		if i == 16 {
			if err := store.Close(); err != nil {
				mu.Lock()
				defer mu.Unlock()
				wrong = err
			}
			return
		}
		for j := range 50 {
			key := fmt.Sprintf("k%d-%d", i, j)
			ans, err := store.Reserve(f.Context(), f.request(key))
			mu.Lock()
			if err == nil {
				granted[key] = ans.Record.Fence
			} else if !errors.Is(err, storage.ErrClosed) {
				wrong = err
			}
			mu.Unlock()
			if err != nil {
				return
			}
		}
	})
	require.NoError(f, wrong)
	f.reopen()
	for key, fence := range granted {
		require.Equal(f, fence, f.record(key).Fence)
	}
}

func restartReplays(f *fixture) {
	q := f.completed("k", success("x"))
	before := f.record("k")
	f.reopen()
	again := f.request("k")
	ans := f.reserve(again)
	requireVerdict(f, storage.VerdictCompleted, ans)
	requireEqual(f, success("x"), ans.Outcome)
	requireVerdict(f, storage.VerdictCompleted, f.reserve(q))
	requireEqual(f, before, f.record("k"))
	require.GreaterOrEqual(f, ans.Now, before.CompletedAt)
}

func restartKeeps(f *fixture) {
	held, fence := f.grant("held")
	f.unknown("unknown")
	spent := f.request("mark")
	f.giveBack(spent)
	now := f.look("held").Now
	f.reopen()
	require.GreaterOrEqual(f, f.look("held").Now, now-storage.Instant(margin.Microseconds()))
	require.Equal(f, fence, f.granted(held, storage.ModeRun))
	requireVerdict(f, storage.VerdictInProgress, f.reserve(f.request("held")))
	requireVerdict(f, storage.VerdictOutcomeUnknown, f.reserve(f.request("unknown")))
	requireVerdict(f, storage.VerdictStaleHolder, f.reserve(spent))
	requireVerdict(f, storage.VerdictOK, f.complete(held, fence, success("x")))
	got := f.pages(storage.List{Namespace: f.namespace, States: []storage.State{storage.StateUnknown}, Limit: 10}, nil)
	require.Equal(f, []string{"unknown"}, keysOf(got))
}
