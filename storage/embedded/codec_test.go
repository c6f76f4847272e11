package embedded

import (
	"bytes"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/dedupd/dedupd/storage"
)

func newTestCodec(tb testing.TB) *codec {
	tb.Helper()
	c, err := newCodec()
	require.NoError(tb, err)
	tb.Cleanup(c.close)
	return c
}

// fullRecord has every field set.
func fullRecord() *storage.Record {
	print := func(s string) storage.Fingerprint {
		return storage.Fingerprint{{Version: 1, Server: s, Client: "c"}, {Version: 7, UnknownFields: true}}
	}
	return &storage.Record{
		Identity: storage.Identity{Namespace: "shop", Operation: "/pay.v1.Payments/Charge", Caller: "\x00\xff", Key: "k\x00"},
		State:    storage.StateReleased, Version: 1796000000000000, Fence: 1796000000000003,
		Attempt: storage.AttemptID{1}, Mode: storage.ModeReconcile, Lease: 30 * time.Second,
		LeaseEnd: 1796000030000000, GrantedAt: 1796000000000000, RunFence: 1795999999999999, RunAttempt: storage.AttemptID{2},
		RunEnd: 1795999999999990, Grants: 3, PrevGrant: 1795999999999000, CreatedAt: 1795999999990000,
		Open: true, Bound: true, Fingerprint: print("a"), Superseded: []storage.Fingerprint{print("b"), nil},
		Ended: []storage.AttemptID{{3}, {4}}, ReleasedAs: storage.EffectRepeatable,
		Outcome: &storage.Outcome{
			Code: -5, Status: []byte{8, 5}, HasResponse: true, Omitted: true, TypeURL: "t",
			Response: bytes.Repeat([]byte("compressible "), 100), Size: 1300, Sum: [32]byte{9},
			Headers:  []storage.MetadataEntry{{Key: "h", Value: []byte{0}}, {}},
			Trailers: []storage.MetadataEntry{{Key: "t", Value: nil}},
		},
		HoldEnd: 1, CompletedAt: -1, ExpiresAt: 1 << 62, DropAt: -1 << 62, ResolvedFrom: -7, Note: "note",
	}
}

// The file holds records of version 1 as they are on disk. It never changes:
// what is on disk stays readable.
func TestRecordsOfVersion1StayReadable(t *testing.T) {
	t.Parallel()
	c := newTestCodec(t)
	text, err := os.ReadFile(filepath.Join("testdata", "record_v1.hex"))
	require.NoError(t, err)
	want := []*storage.Record{{}, fullRecord()}
	lines := strings.Fields(string(text))
	require.Len(t, lines, len(want))
	for i, line := range lines {
		b, err := hex.DecodeString(line)
		require.NoError(t, err)
		got, err := c.decode(b)
		require.NoError(t, err)
		require.Empty(t, cmp.Diff(want[i], got, cmpopts.EquateEmpty()))
	}
}

func TestARecordOfALaterVersionIsRefusedWithAdvice(t *testing.T) {
	t.Parallel()
	_, err := newTestCodec(t).decode([]byte{codecVersion + 1, 0})
	require.ErrorContains(t, err, "use the newer dedupd that wrote it")
}

func TestADecodedRecordIsTheEncodedOne(t *testing.T) {
	t.Parallel()
	c := newTestCodec(t)
	rapid.Check(t, func(t *rapid.T) {
		want := rapid.Make[*storage.Record]().Filter(func(r *storage.Record) bool { return r != nil }).Draw(t, "record")
		want.Outcome, want.Reopened = normal(want.Outcome), normal(want.Reopened)
		if !want.Redacted {
			want.RedactedID = storage.RecordID{}
		}
		b := c.encode([]byte("before"), want)
		got, err := c.decode(b[len("before"):])
		require.NoError(t, err)
		require.Empty(t, cmp.Diff(want, got, cmpopts.EquateEmpty()))
	})
}

// normal drops what no outcome has: the sum of a response that is there.
func normal(o *storage.Outcome) *storage.Outcome {
	if o != nil && !o.Omitted {
		o.Sum = [32]byte{}
	}
	return o
}

func TestAResponseIsCompressedWhereThatSavesAnEighth(t *testing.T) {
	t.Parallel()
	c := newTestCodec(t)
	size := func(response []byte) int {
		r := &storage.Record{Outcome: &storage.Outcome{HasResponse: true, Response: response}}
		return len(c.encode(nil, r))
	}
	noise := make([]byte, 4096)
	for i, x := 0, uint32(1); i < len(noise); i++ {
		x = x*1664525 + 1013904223
		noise[i] = byte(x >> 24)
	}
	mostlyNoise := append(bytes.Repeat([]byte{0}, 300), noise...)
	require.Less(t, size(make([]byte, compressFrom)), 200)
	require.Greater(t, size(make([]byte, compressFrom-1)), compressFrom-1)
	require.Greater(t, size(noise), len(noise))
	require.Greater(t, size(mostlyNoise), len(mostlyNoise), "saving a fourteenth is not worth it")
	require.Less(t, size(append(make([]byte, 1000), noise...)), len(noise)+200)
}

func FuzzDecode(f *testing.F) {
	c := newTestCodec(f)
	f.Add(c.encode(nil, &storage.Record{}))
	f.Add(c.encode(nil, fullRecord()))
	f.Add([]byte{codecVersion, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		rec, err := c.decode(b)
		if err != nil {
			return
		}
		again, err := c.decode(c.encode(nil, rec))
		require.NoError(t, err)
		require.Empty(t, cmp.Diff(rec, again))
	})
}
