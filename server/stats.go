package server

import (
	"cmp"
	"context"
	"slices"
	"time"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/storage"
)

// maxStats bounds each list of an answer to Stats; the largest are told.
const maxStats = 1000

// hotLeast is how often a key must have come back of late to be told as a hot one: a
// retry or two is what keys are for.
const hotLeast = 3

// Stats reads nothing but memory, so that asking often costs the store nothing.
func (s *adminService) Stats(_ context.Context, req *dedupv1.StatsRequest) (*dedupv1.StatsResponse, error) {
	res := &dedupv1.StatsResponse{
		Operations: s.metrics.stats(req.GetNamespace()),
		HotKeys:    s.hot.hottest(req.GetNamespace(), int(req.GetHotKeys()), hotLeast),
		Waiting:    int64(s.waiters.held()),
		Uptime:     wireDuration(time.Since(s.began)),
		Version:    s.version,
	}
	counted, at, ok := s.census.latest()
	if !ok {
		return res, nil
	}
	res.CountedAt = timeOf(at)
	for _, u := range largest(counted.Unfinished, func(u storage.UnfinishedCount) (string, int64) { return u.Namespace, u.Records }, req.GetNamespace()) {
		res.Unfinished = append(res.Unfinished, &dedupv1.UnfinishedStats{
			Namespace: u.Namespace, Operation: u.Operation, State: stateOf(u.State), Records: u.Records,
			OldestAge: wireDuration(counted.Now.Sub(u.Oldest)),
		})
	}
	for _, e := range largest(counted.Entries, func(e storage.EntryCount) (string, int64) { return e.Namespace, e.Entries }, req.GetNamespace()) {
		res.DeadLetters = append(res.DeadLetters, &dedupv1.DeadLetterStats{
			Namespace: e.Namespace, Kind: kindTo(e.Kind), Entries: e.Entries,
			OldestAge: wireDuration(counted.Now.Sub(e.Oldest)),
		})
	}
	return res, nil
}

// largest keeps what is of one namespace, or all, largest first; all itself is not
// written to.
func largest[T any](all []T, of func(T) (namespace string, n int64), namespace string) []T {
	var out []T
	for _, v := range all {
		if ns, _ := of(v); namespace == "" || ns == namespace {
			out = append(out, v)
		}
	}
	slices.SortStableFunc(out, func(a, b T) int {
		_, n := of(a)
		_, o := of(b)
		return cmp.Compare(o, n)
	})
	return out[:min(len(out), maxStats)]
}
