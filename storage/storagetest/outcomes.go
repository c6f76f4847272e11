package storagetest

import (
	"bytes"
	"crypto/sha256"

	"github.com/stretchr/testify/require"

	"github.com/dedupd/dedupd/storage"
)

func outcomeCases() []testCase {
	return []testCase{
		{name: "an equal outcome completes once more, another one is refused", run: completeIdempotent},
		{name: "an outcome comes back byte for byte", run: outcomeBytes},
		{name: "outcomes of 1 MiB and 4 MiB come back byte for byte", run: bigOutcomes},
		{name: "a holder may complete what it released", run: completeAfterRelease},
		{name: "A11 a completed record never changes again", run: completedStays},
	}
}

func completeIdempotent(f *fixture) {
	q, fence := f.grant("k")
	requireVerdict(f, storage.VerdictOK, f.complete(q, fence, success("first")))
	before := f.record("k")
	again := f.complete(q, fence, success("first"))
	requireVerdict(f, storage.VerdictOK, again)
	require.Equal(f, before.ExpiresAt, again.Record.ExpiresAt)
	other := f.complete(q, fence, success("second"))
	requireVerdict(f, storage.VerdictStaleHolder, other)
	require.NotNil(f, other.Conflict)
	require.Equal(f, success("first").Hash(), other.Conflict.RecordHash)
	now := f.record("k")
	require.EqualValues(f, 1, now.Pins, "the conflict is parked")
	before.Pins, before.Version = now.Pins, now.Version
	requireEqual(f, before, now)
}

func outcomeBytes(f *fixture) {
	outcomes := map[string]*storage.Outcome{
		"no response":       {},
		"an empty response": {HasResponse: true, TypeURL: "t"},
		"an error with details": {
			Code: 9, Status: append([]byte{8, 9, 18, 1, 0, 26, 3, 0xff, 0xfe, 0}, randomBytes(300)...),
		},
		"an error with a response": {Code: 5, Status: []byte{8, 5}, HasResponse: true, TypeURL: "t", Response: []byte("x")},
		"an omitted response":      {Omitted: true, TypeURL: "t", Size: 5 << 20, Sum: sha256.Sum256([]byte("big"))},
		"headers and trailers": {
			HasResponse: true, TypeURL: "t", Response: []byte{0},
			Headers:  []storage.MetadataEntry{{Key: "etag", Value: []byte("1")}, {Key: "etag", Value: []byte("2")}, {Key: "b-bin", Value: []byte{0, 0xff}}},
			Trailers: []storage.MetadataEntry{{Key: "empty", Value: nil}, {Key: "x", Value: bytes.Repeat([]byte("v"), 8000)}},
		},
	}
	for name, o := range outcomes {
		f.completed(name, o)
	}
	for name, o := range outcomes {
		got := f.reserve(f.request(name)).Outcome
		requireEqual(f, o, got)
		require.Equal(f, o.Hash(), got.Hash(), name)
	}
}

func bigOutcomes(f *fixture) {
	line := []byte("a line that says the same again and again; ")
	for _, size := range []int{1023, 1024, 1025, storage.DefaultMaxOutcome, storage.CeilMaxOutcome} {
		for kind, body := range map[string][]byte{
			"random":   randomBytes(size),
			"repeated": bytes.Repeat(line, size/len(line)+1)[:size],
			"zeros":    make([]byte, size),
		} {
			key := kind + string(rune(size))
			o := &storage.Outcome{HasResponse: true, TypeURL: "t", Response: body}
			f.completed(key, o)
			got := f.reserve(f.request(key)).Outcome
			require.True(f, bytes.Equal(body, got.Response), "%d bytes, %s, come back as they were", size, kind)
		}
	}
}

func completeAfterRelease(f *fixture) {
	q, fence := f.grant("k")
	f.release(q, fence, storage.EffectNone)
	ans := f.complete(q, fence, success("late"))
	requireVerdict(f, storage.VerdictOK, ans)
	require.True(f, ans.Late)
	requireEqual(f, success("late"), f.reserve(f.request("k")).Outcome)
}

func completedStays(f *fixture) {
	q, fence := f.grant("k")
	f.complete(q, fence, success("x"))
	before := f.record("k")
	for _, e := range []storage.Effect{storage.EffectNone, storage.EffectRepeatable, storage.EffectUnknown} {
		requireVerdict(f, storage.VerdictStaleHolder, f.release(q, fence, e))
		requireVerdict(f, storage.VerdictOK, f.release(q, 0, e))
	}
	requireVerdict(f, storage.VerdictStaleHolder, f.extend(q, fence, storage.MaxLease))
	requireVerdict(f, storage.VerdictStaleHolder, f.beginRun(q, fence))
	requireVerdict(f, storage.VerdictRecordChanged, f.resolve("k", storage.Resolve{Version: before.Version, Completed: true}))
	requireVerdict(f, storage.VerdictCompleted, f.reserve(q))
	rerun := f.request("k")
	rerun.OnUnknown = storage.OnUnknownRerun
	requireVerdict(f, storage.VerdictCompleted, f.reserve(rerun))
	requireEqual(f, before, f.record("k"))
}
