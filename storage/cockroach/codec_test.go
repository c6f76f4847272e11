package cockroach

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/stretchr/testify/require"

	"github.com/dedupd/dedupd/storage"
)

func outcomes() map[string]*storage.Outcome {
	return map[string]*storage.Outcome{
		"nothing":        {},
		"empty response": {HasResponse: true},
		"response": {
			HasResponse: true, TypeURL: "t", Response: []byte("r"), Size: 1,
			Headers:  []storage.MetadataEntry{{Key: "a", Value: []byte("1")}, {Key: "a"}},
			Trailers: []storage.MetadataEntry{{Key: "b-bin", Value: []byte{0, 1}}},
		},
		"error":   {Code: -7, Status: []byte{8, 9}},
		"omitted": {Omitted: true, TypeURL: "t", Size: 1 << 40, Sum: [32]byte{1, 2, 3}},
		"large":   {HasResponse: true, Response: []byte(strings.Repeat("abcdefgh", 1<<13))},
		"random":  {HasResponse: true, Response: incompressible(4 << 10)},
	}
}

func incompressible(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(b)
	return b
}

func TestAnOutcomeComesBackAsItWas(t *testing.T) {
	t.Parallel()
	c, err := newCodec()
	require.NoError(t, err)
	t.Cleanup(c.dec.Close)
	for name, o := range outcomes() {
		b := c.outcome(o)
		got, err := c.readOutcome(b)
		require.NoError(t, err, name)
		require.Empty(t, cmp.Diff(o, got, cmpopts.EquateEmpty()), name)
		require.Equal(t, o.Hash(), got.Hash(), name)

		_, err = c.readOutcome(append([]byte{formatV1 + 1}, b[1:]...))
		require.ErrorIs(t, err, errCorrupt, "a newer format is refused")
		_, err = c.readOutcome(append(bytes.Clone(b), 0))
		require.ErrorIs(t, err, errCorrupt, "nothing stands behind the end")
	}
	require.Less(t, len(c.outcome(outcomes()["large"])), 1<<12, "what shrinks is compressed")
	require.Less(t, len(c.outcome(outcomes()["random"])), 4<<10+64, "what does not is kept as it is")
	got, err := c.readOutcome(c.outcome(nil))
	require.NoError(t, err)
	require.Nil(t, got)
}

func FuzzStoredValues(f *testing.F) {
	c, err := newCodec()
	require.NoError(f, err)
	f.Cleanup(c.dec.Close)
	for _, o := range outcomes() {
		if len(o.Response) < 1<<16 {
			f.Add(c.outcome(o))
		}
	}
	fingerprint := storage.Fingerprint{{Version: 2, Server: "s", Client: "c", UnknownFields: true}, {Version: 1}}
	f.Add(encodeFingerprint(fingerprint))
	f.Add(encodeFingerprints([]storage.Fingerprint{fingerprint, nil}))
	f.Add(encodeAttempts([]storage.AttemptID{{1}, {2}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		if o, err := c.readOutcome(b); err == nil && o != nil {
			again, err := c.readOutcome(c.outcome(o))
			require.NoError(t, err)
			require.Equal(t, o, again)
		}
		if v, err := readFingerprint(b); err == nil {
			again, err := readFingerprint(encodeFingerprint(v))
			require.NoError(t, err)
			require.Equal(t, v, again)
		}
		if v, err := readFingerprints(b); err == nil {
			again, err := readFingerprints(encodeFingerprints(v))
			require.NoError(t, err)
			require.Equal(t, v, again)
		}
		if v, err := readAttempts(b); err == nil {
			require.Equal(t, b, append([]byte(nil), encodeAttempts(v)...))
		}
	})
}
