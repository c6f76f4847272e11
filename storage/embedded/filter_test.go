package embedded

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dedupd/dedupd/storage"
)

// A key that no table holds is told so by the tables' filters, which are in
// memory: no block of data is read for it.
func TestAFreshKeyReadsNoBlockOfData(t *testing.T) {
	t.Parallel()
	s, err := OpenMemory(Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	reserve := func(key string) {
		_, err := s.Reserve(t.Context(), storage.Reserve{
			Identity:    storage.Identity{Namespace: "n", Operation: "o", Key: key},
			Fingerprint: storage.Fingerprint{{Version: 1, Server: "d"}}, Attempt: storage.AttemptID{1},
		})
		require.NoError(t, err)
	}
	const n = 500
	for i := range n {
		reserve("old-" + strconv.Itoa(i))
	}
	require.NoError(t, s.db.Flush())
	reserve("first") // loads the filter
	before := s.db.Metrics()
	for i := range n {
		reserve("fresh-" + strconv.Itoa(i))
	}
	after := s.db.Metrics()
	// Ten bits a key let about one in a hundred through.
	require.GreaterOrEqual(t, after.Filter.Hits-before.Filter.Hits, int64(n*95/100))
}
