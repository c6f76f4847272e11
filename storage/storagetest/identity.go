package storagetest

import (
	"strings"

	"github.com/stretchr/testify/require"

	"github.com/dedupd/dedupd/storage"
)

func identityCases() []testCase {
	return []testCase{
		{name: "a key of any bytes comes back byte for byte", run: keysOfAnyBytes},
		{name: "C10 the same key of another caller, operation or namespace is another record", run: partsScopeKeys},
		{name: "C10 parts that hold separators stay apart", run: separatorsStayApart},
		{name: "the longest parts are kept whole", run: longestParts},
	}
}

func keysOfAnyBytes(f *fixture) {
	every := make([]byte, 0, 255)
	for b := range 255 {
		every = append(every, byte(255-b))
	}
	keys := []string{
		"\x00", "\x00\x00", "a\x00b", "a\x00", "\xff\xfe\xfd", "ключ", "a/b", "a%00b", "'; --", `\x00`, string(every),
		strings.Repeat("k", storage.MaxKey),
	}
	for _, key := range keys {
		q, fence := f.grant(key)
		f.complete(q, fence, success(key))
	}
	for _, key := range keys {
		ans := f.reserve(f.request(key))
		requireVerdict(f, storage.VerdictCompleted, ans)
		requireEqual(f, success(key), ans.Outcome)
		requireEqual(f, f.identity(key), ans.Record.Identity)
	}
}

func partsScopeKeys(f *fixture) {
	mine := f.completed("k", success("secret of customer-1"))
	others := map[string]storage.Identity{"caller": mine.Identity, "no caller": mine.Identity, "operation": mine.Identity, "namespace": mine.Identity}
	for name, id := range others {
		switch name {
		case "caller":
			id.Caller = "customer-2"
		case "no caller":
			id.Caller = ""
		case "operation":
			id.Operation = "/pay.v1.Payments/Refund"
		case "namespace":
			id.Namespace += "-b"
		}
		q := f.request("k")
		q.Identity = id
		ans := f.reserve(q)
		require.Equal(f, storage.VerdictGranted, ans.Verdict, "another %s is another record", name)
		require.Nil(f, ans.Outcome)
		require.Nil(f, ans.Record.Outcome)
		requireEqual(f, id, ans.Record.Identity)
	}
}

func separatorsStayApart(f *fixture) {
	pairs := [][2]string{{"a_b", "c"}, {"a", "b_c"}, {"a\x00b", "c"}, {"a", "b\x00c"}, {"a/b", "c"}, {"a", "b/c"}, {"", "abc"}, {"abc", "c"}}
	for _, p := range pairs {
		q := f.request(p[1])
		q.Identity.Caller = p[0]
		fence := f.granted(q, storage.ModeRun)
		f.complete(q, fence, success(p[0]+"|"+p[1]))
	}
	for _, p := range pairs {
		q := f.request(p[1])
		q.Identity.Caller = p[0]
		requireEqual(f, success(p[0]+"|"+p[1]), f.reserve(q).Outcome)
	}
}

func longestParts(f *fixture) {
	q := f.request(strings.Repeat("k", storage.MaxKey))
	q.Identity.Namespace = (f.namespace + strings.Repeat("n", storage.MaxNamespace))[:storage.MaxNamespace]
	q.Identity.Operation = strings.Repeat("o", storage.MaxOperation)
	q.Identity.Caller = strings.Repeat("\xff", storage.MaxCaller)
	require.NoError(f, q.Identity.Validate())
	f.granted(q, storage.ModeRun)
	ans, err := f.Store.Lookup(f.Context(), q.Identity.RecordID(), storage.Lookup{})
	require.NoError(f, err)
	requireEqual(f, q.Identity, ans.Record.Identity)
}
