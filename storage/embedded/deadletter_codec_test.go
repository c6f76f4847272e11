package embedded

import (
	"bytes"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/dedupd/dedupd/storage"
)

// fullEntry has every field set that is stored with the entry itself.
func fullEntry() *storage.DeadLetter {
	return &storage.DeadLetter{
		ID: storage.EntryID{9}, Kind: storage.EntryConflict, State: storage.EntryReplaying, Record: storage.RecordID{8},
		Identity: storage.Identity{Namespace: "shop", Operation: "/pay.v1.Payments/Charge", Caller: "\x00\xff", Key: "k\x00"},
		Pinned:   true, Target: "dns:///pay", Method: "/m", HasRequest: true, TypeURL: "t", RequestSize: 1 << 40,
		Metadata:    []storage.MetadataEntry{{Key: "h", Value: []byte{0}}, {}},
		Fingerprint: storage.Fingerprint{{Version: 1, Server: "s", Client: "c"}, {Version: 7, UnknownFields: true}},
		Code:        -5, Status: []byte{8, 5}, Signature: "sig #", Attempts: []storage.EntryAttempt{{At: 1, Code: 14}, {At: -1}},
		ParkID: storage.AttemptID{7}, Count: 3, ParkedAt: 1796000000000000, LastParkedAt: 1796000000000001, Parent: storage.EntryID{6},
		Claim: storage.ClaimToken{5}, ClaimEnd: 1796000000000002, ClaimFence: 4, ByOperator: true, Requested: true,
		NotBefore: 1, Replays: 2, Result: storage.ResultFailed, Note: "note", ClosedAt: 3, DropAt: 4,
		Conflict: &storage.Conflict{RefusedFence: 1, RecordFence: 2, Success: true, RefusedHash: [32]byte{1}, RecordHash: [32]byte{2}, At: 3},
	}
}

// laterRecord has the parts that version 2 of the encoding added.
func laterRecord() *storage.Record {
	r := fullRecord()
	r.Pins, r.Redacted, r.RedactedID, r.Trace = 3, true, storage.RecordID{1, 2}, []byte{4, 5}
	r.Reopened = &storage.Outcome{Code: 9, Omitted: true, Erased: true, Size: 5, Sum: [32]byte{7}}
	return r
}

// readGolden returns the lines of a file that never changes: what is on disk
// stays readable.
func readGolden(t *testing.T, name string) (lines [][]byte) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name))
	require.NoError(t, err)
	for _, line := range strings.Fields(string(text)) {
		b, err := hex.DecodeString(line)
		require.NoError(t, err)
		lines = append(lines, b)
	}
	return lines
}

func TestRecordsOfVersion2StayReadable(t *testing.T) {
	t.Parallel()
	lines := readGolden(t, "record_v2.hex")
	require.Len(t, lines, 1)
	got, err := newTestCodec(t).decode(lines[0])
	require.NoError(t, err)
	require.Empty(t, cmp.Diff(laterRecord(), got, cmpopts.EquateEmpty()))
}

// A record without the later parts is stored as before, so that the dedupd
// before this one reads it.
func TestARecordIsStoredInTheLowestVersionThatHoldsIt(t *testing.T) {
	t.Parallel()
	c := newTestCodec(t)
	require.EqualValues(t, 1, c.encode(nil, fullRecord())[0])
	for _, change := range []func(*storage.Record){
		func(r *storage.Record) { r.Pins = 1 }, func(r *storage.Record) { r.Reopened = &storage.Outcome{} },
		func(r *storage.Record) { r.Redacted = true }, func(r *storage.Record) { r.Trace = []byte{1} },
	} {
		r := fullRecord()
		change(r)
		require.EqualValues(t, 2, c.encode(nil, r)[0])
	}
	later := c.encode(nil, laterRecord())
	later[0] = 1
	_, err := c.decode(later)
	require.ErrorIs(t, err, errCorrupt)
}

func TestEntriesOfVersion1StayReadable(t *testing.T) {
	t.Parallel()
	c := newTestCodec(t)
	want := []*storage.DeadLetter{{ID: storage.EntryID{9}}, fullEntry()}
	lines := readGolden(t, "entry_v1.hex")
	require.Len(t, lines, len(want)+1)
	for i, e := range want {
		got, err := c.decodeEntry(e.ID, lines[i])
		require.NoError(t, err)
		require.Empty(t, cmp.Diff(e, got, cmpopts.EquateEmpty()))
	}
	body, err := c.decodeBody(lines[len(want)])
	require.NoError(t, err)
	require.Equal(t, bytes.Repeat([]byte("request "), 200), body)
}

func TestOnlyAnEntryWhoseReplayFailedIsStoredInVersion2(t *testing.T) {
	t.Parallel()
	c := newTestCodec(t)
	require.EqualValues(t, 1, c.encodeEntry(nil, fullEntry())[0])
	e := fullEntry()
	e.ReplayStatus = []byte{8, 3}
	b := c.encodeEntry(nil, e)
	require.EqualValues(t, 2, b[0])
	got, err := c.decodeEntry(e.ID, b)
	require.NoError(t, err)
	require.Empty(t, cmp.Diff(e, got, cmpopts.EquateEmpty()))
	b[0] = 1
	_, err = c.decodeEntry(e.ID, b)
	require.ErrorIs(t, err, errCorrupt)
}

func TestAnEntryOfALaterVersionIsRefusedWithAdvice(t *testing.T) {
	t.Parallel()
	c := newTestCodec(t)
	_, err := c.decodeEntry(storage.EntryID{}, []byte{entryVersionReplay + 1, 0})
	require.ErrorContains(t, err, "use the newer dedupd that wrote it")
	_, err = c.decodeBody([]byte{entryVersionReplay + 1, 0})
	require.ErrorContains(t, err, "use the newer dedupd that wrote it")
}

func TestADecodedEntryIsTheEncodedOne(t *testing.T) {
	t.Parallel()
	c := newTestCodec(t)
	rapid.Check(t, func(t *rapid.T) {
		want := rapid.Make[*storage.DeadLetter]().Filter(func(e *storage.DeadLetter) bool { return e != nil }).Draw(t, "entry")
		b := c.encodeEntry([]byte("before"), want)
		got, err := c.decodeEntry(want.ID, b[len("before"):])
		require.NoError(t, err)
		body, err := c.decodeBody(c.encodeBody(nil, want.Request))
		require.NoError(t, err)
		got.Request = body
		require.Empty(t, cmp.Diff(want, got, cmpopts.EquateEmpty()))
	})
}

func FuzzDecodeEntry(f *testing.F) {
	c := newTestCodec(f)
	f.Add(c.encodeEntry(nil, &storage.DeadLetter{}))
	f.Add(c.encodeEntry(nil, fullEntry()))
	f.Add(c.encodeBody(nil, make([]byte, 4000)))
	f.Add([]byte{entryVersion, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _ = c.decodeBody(b)
		e, err := c.decodeEntry(storage.EntryID{1}, b)
		if err != nil {
			return
		}
		again, err := c.decodeEntry(e.ID, c.encodeEntry(nil, e))
		require.NoError(t, err)
		require.Empty(t, cmp.Diff(e, again))
	})
}
