package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	demov1 "github.com/dedupd/dedupd/gen/dedup/demo/v1"
	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors"
	"github.com/dedupd/dedupd/server"
	"github.com/dedupd/dedupd/storage/embedded"
)

// desk is a dedupd in this process whose clock can be put forward.
type desk struct {
	addr  string
	dl    dedupv1.DeadLetterServiceClient
	ahead atomic.Int64
}

func serveDesk(t *testing.T) *desk {
	t.Helper()
	d := &desk{}
	store, err := embedded.OpenMemory(embedded.Options{Now: func() time.Time { return time.Now().Add(time.Duration(d.ahead.Load())) }})
	require.NoError(t, err)
	srv, err := server.New(server.Config{Store: store})
	require.NoError(t, err)
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	d.addr = lis.Addr().String()
	ctx, stop := context.WithCancel(context.Background())
	stopped := make(chan error)
	go func() { stopped <- srv.Run(ctx, lis, nil) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-stopped)
		require.NoError(t, store.Close())
	})
	d.dl = dedupv1.NewDeadLetterServiceClient(connect(t, d.addr))
	return d
}

// dlq types a command at the desk.
func (d *desk) dlq(t *testing.T, want int, args ...string) (stdout, stderr string) {
	t.Helper()
	code, stdout, stderr := typed(t, append(append([]string{"dlq"}, args...), "--addr", d.addr)...)
	require.Equal(t, want, code, "stdout: %s\nstderr: %s", stdout, stderr)
	return stdout, stderr
}

func (d *desk) state(t *testing.T, id []byte) string {
	t.Helper()
	got, err := d.dl.Get(t.Context(), &dedupv1.DeadLetterServiceGetRequest{EntryId: id})
	require.NoError(t, err)
	return entryState(got.GetEntry()) + " " + resultName(got.GetEntry().GetResult())
}

const hostile = "\x1b[2J\x1b]0;pwned\x07 \u202egnp.exe <b>&amp;"

// failedWith gives an entry a last failure and its attempts.
func failedWith(code codes.Code, message string) func(*dedupv1.ParkRequest) {
	return func(q *dedupv1.ParkRequest) {
		q.Status, _ = proto.Marshal(&statuspb.Status{Code: int32(code), Message: message})
		at := timestamppb.New(time.Date(2026, 11, 29, 1, 2, 3, 4e6, time.UTC))
		q.Attempts = []*dedupv1.CallAttempt{{At: at, Code: int32(code)}, {At: at, Code: int32(code)}}
		q.Note, q.Target = hostile, "dns:///shop:443"
		q.Metadata = []*dedupv1.MetadataEntry{{Key: "x-region", Value: []byte("eu")}}
	}
}

func TestDeadLettersAreListedGroupedAndShownSafely(t *testing.T) {
	t.Parallel()
	d := serveDesk(t)
	stdout, _ := d.dlq(t, exitDone, "list")
	require.Equal(t, "no dead letters\n", stdout)
	id := parkOrder(t, d.dl, "secret-key-1", failedWith(codes.Unavailable, "order 17 failed "+hostile))
	parkOrder(t, d.dl, "secret-key-2", failedWith(codes.Unavailable, "order 18 failed "+hostile))
	parkOrder(t, d.dl, "secret-key-3", failedWith(codes.Aborted, "later"))

	stdout, _ = d.dlq(t, exitDone, "list")
	lines := strings.Split(strings.TrimSpace(stdout), "\n")
	require.Len(t, lines, 4)
	require.Regexp(t, `^ENTRY\s+KIND\s+STATE\s+NAMESPACE\s+OPERATION\s+CALLER\s+KEY\s+CODE\s+COUNT\s+REPLAYS\s+AGE\s+RESULT$`, lines[0])
	require.Regexp(t, `^`+hex.EncodeToString(id)+`\s+exhausted\s+parked\s+shop\s+`+chargeMethod+`\s+\*\*\*\* \(3 bytes\)\s+\*\*\*\* \(12 bytes\)\s+Unavailable\s+1\s+0\s+\S+$`, lines[1])
	stdout, _ = d.dlq(t, exitDone, "list", "--code", "ABORTED", "--code", "10", "--older-than", "0s", "--newer-than", "1h", "-o", "json")
	require.Equal(t, 1, strings.Count(stdout, "\n"))
	require.NotContains(t, stdout, "eHRy", "no metadata")
	require.NotContains(t, stdout, `"caller"`)
	stdout, _ = d.dlq(t, exitDone, "list", "--operation", "/other/Method")
	require.Equal(t, "no dead letters\n", stdout)
	stdout, _ = d.dlq(t, exitDone, "list", "--limit", "2", "--newest-first", "--show-keys")
	require.Contains(t, stdout, "stopped at --limit")
	require.Less(t, strings.Index(stdout, "secret-key-3"), strings.Index(stdout, "secret-key-2"))

	stdout, _ = d.dlq(t, exitDone, "groups")
	lines = strings.Split(strings.TrimSpace(stdout), "\n")
	require.Len(t, lines, 3, "what differs by a number only is one group")
	require.Regexp(t, `^2\s+2\s+shop\s+`+chargeMethod+`\s+exhausted\s+Unavailable`, lines[1])
	require.NotContains(t, stdout, "\x1b")
	stdout, _ = d.dlq(t, exitDone, "groups", "-o", "json")
	require.Equal(t, 2, strings.Count(stdout, "\n"))

	stdout, _ = d.dlq(t, exitDone, "show", hex.EncodeToString(id))
	for _, want := range []string{
		`kind\s+exhausted`, `state\s+parked`, `record state\s+absent`, `target\s+dns:///shop:443`, `request\s+21 bytes of type.googleapis.com/dedup.demo.v1.ChargeRequest`,
		`failed with\s+Unavailable: "order 17 failed \\x1b`, `attempts\s+2026-11-29 01:02:03.004Z Unavailable`, `next\s+dedupd dlq replay ` + hex.EncodeToString(id),
	} {
		require.Regexp(t, want, stdout)
	}
	for _, hidden := range []string{"\x1b", "\u202e", "secret-key", "x-region", "EUR"} {
		require.NotContains(t, stdout, hidden)
	}
	stdout, _ = d.dlq(t, exitDone, "show", hex.EncodeToString(id), "--show-request")
	require.Contains(t, stdout, "x-region: eu")
	require.Contains(t, stdout, `EUR" (give --descriptors or --target to read it as JSON)`)
	_, stderr := d.dlq(t, exitNoRecord, "show", strings.Repeat("0", 32))
	require.Contains(t, stderr, "no such dead letter")
}

func TestARequestIsShownAsJSONWhereItIsDescribed(t *testing.T) {
	t.Parallel()
	d := serveDesk(t)
	service := serveShop(t, d.addr)
	id := hex.EncodeToString(parkOrder(t, d.dl, "k", nil))
	files := descriptorSet(t, true, shop(t)) // it imports that of the payments
	for _, args := range [][]string{{"--descriptors", files}, {"--target", service.addr, "--plaintext"}} {
		stdout, _ := d.dlq(t, exitDone, append([]string{"show", id, "--show-request"}, args...)...)
		require.Regexp(t, `(?s)\{.*"order":\s+"k",.*"amount":\s+"12",.*"currency":\s+"EUR".*\}`, stdout)
	}
	other := hex.EncodeToString(parkOrder(t, d.dl, "other", func(q *dedupv1.ParkRequest) { q.Method = "/shop.v1.Shop/Buy" }))
	_, stderr := d.dlq(t, exitFailed, "show", other, "--show-request", "--descriptors", files)
	require.Contains(t, stderr, "the descriptors do not tell of the method /shop.v1.Shop/Buy")
	_, stderr = d.dlq(t, exitFailed, "show", other, "--show-request", "--target", service.addr, "--plaintext")
	require.Contains(t, stderr, "give a file descriptor set instead")
}

// G04: discard settles the entry and leaves the record to decide.
func TestDeadLettersAreRequeuedAndDiscarded(t *testing.T) {
	t.Parallel()
	d := serveDesk(t)
	first, second := parkOrder(t, d.dl, "1", nil), parkOrder(t, d.dl, "2", nil)
	stdout, stderr := d.dlq(t, exitDone, "discard", "--namespace", "shop", "--note", "test", "--dry-run")
	require.Contains(t, stdout, hex.EncodeToString(first))
	require.Contains(t, stderr, "dry run: 2 dead letters would be discarded; nothing was written")
	_, stderr = d.dlq(t, exitUsage, "discard", "--namespace", "shop", "--note", "test")
	require.Contains(t, stderr, "there is no terminal to ask on; pass --yes")
	require.Equal(t, "parked ", d.state(t, first))

	stdout, _ = d.dlq(t, exitDone, "requeue", hex.EncodeToString(first), "--note", "the ledger is fixed", "--yes")
	require.Regexp(t, hex.EncodeToString(first)+`\s+`+chargeMethod+`\s+REQUEUED`, stdout)
	require.Equal(t, "parked, requested ", d.state(t, first))
	none := strings.Repeat("0", 32)
	stdout, stderr = d.dlq(t, exitPartial, "discard", hex.EncodeToString(second), none, "--note", "test order", "--yes", "-o", "json")
	require.Contains(t, stderr, "1 of 2 dead letters were not discarded")
	results := resultsOf(t, stdout)
	require.Equal(t, "DISCARDED", results[hex.EncodeToString(second)].Result)
	require.Equal(t, "FAILED", results[none].Result)
	require.Equal(t, "discarded ", d.state(t, second))
	_, stderr = d.dlq(t, exitFailed, "requeue", hex.EncodeToString(second), "--note", "oh", "--yes")
	require.Contains(t, stderr, "none of 1 dead letters was requeued")
	_, stderr = d.dlq(t, exitDone, "requeue", "--namespace", "nobody", "--note", "x", "--yes")
	require.Contains(t, stderr, "no dead letters are chosen")
	_, stderr = d.dlq(t, exitNoRecord, "requeue", none, "--note", "x", "--yes")
	require.Contains(t, stderr, "no such dead letter")
}

func TestNothingIsDoneToDeadLettersUnasked(t *testing.T) {
	t.Parallel()
	d := serveDesk(t)
	id := parkOrder(t, d.dl, "k", nil)
	found, err := d.dl.Get(t.Context(), &dedupv1.DeadLetterServiceGetRequest{EntryId: id})
	require.NoError(t, err)
	for answer, want := range map[string]bool{"yes\n": true, "y\n": false, "": false} {
		in, typing, err := os.Pipe()
		require.NoError(t, err)
		_, err = typing.WriteString(answer)
		require.NoError(t, err)
		require.NoError(t, typing.Close())
		var asked strings.Builder
		ok, err := (&chosen{}).agreed(t.Context(), streams{in: in, err: &asked}, display{}, []*dedupv1.DeadLetter{found.GetEntry()}, "replayed", "%s: sent to shop:443.")
		require.Equal(t, want, ok, answer)
		require.Equal(t, want, err == nil, answer)
		require.Contains(t, asked.String(), hex.EncodeToString(id))
		require.Contains(t, asked.String(), "1 dead letter: sent to shop:443.\nType yes to go on: ")
		require.NoError(t, in.Close())
	}
}

func TestAnEditedRequestReplacesItsEntry(t *testing.T) {
	t.Parallel()
	d := serveDesk(t)
	shop := serveShop(t, d.addr)
	shop.fails(func(q *demov1.ChargeRequest) error {
		if q.GetCurrency() != "USD" {
			return status.Error(codes.Internal, "the ledger does not know the currency")
		}
		return nil
	})
	id := parkOrder(t, d.dl, "k", failedWith(codes.Internal, "the ledger does not know the currency"))
	to := []string{"--target", shop.addr, "--plaintext", "--metadata", "authorization=operator", "--yes"}
	edit := writeFile(t, `{"order": "k", "amount": "13", "currency": "USD"}`)
	edited := append([]string{"replay", hex.EncodeToString(id), "--edit", edit, "-o", "json"}, to...)
	_, stderr := d.dlq(t, exitFailed, append([]string{"replay", hex.EncodeToString(id), "--edit", writeFile(t, `{"ordre": 1}`)}, to...)...)
	require.Contains(t, stderr, "the edited request is no dedup.demo.v1.ChargeRequest in protobuf's JSON")
	require.Equal(t, "parked ", d.state(t, id))

	stdout, _ := d.dlq(t, exitDone, edited...)
	result := resultsOf(t, stdout)[hex.EncodeToString(id)]
	require.Equal(t, "REPLAYED", result.Result)
	require.Equal(t, []string{"k 13 by operator for ada"}, shop.did())
	require.Equal(t, "resolved superseded", d.state(t, id))
	child, err := hex.DecodeString(result.Replaced)
	require.NoError(t, err)
	got, err := d.dl.Get(t.Context(), &dedupv1.DeadLetterServiceGetRequest{EntryId: child})
	require.NoError(t, err)
	require.Equal(t, id, got.GetEntry().GetParentId())
	require.Regexp(t, `^dlq:`+hex.EncodeToString(id)+`:[0-9a-f]{16}$`, string(got.GetEntry().GetIdentity().GetKey()))
	require.Equal(t, "resolved replayed", d.state(t, child))
	stdout, _ = d.dlq(t, exitDone, "show", result.Replaced)
	require.Regexp(t, `edited from\s+`+hex.EncodeToString(id), stdout)

	// The old key is closed: its caller's own retry does not do the old request too.
	_, err = connectDedup(t, d.addr).Reserve(t.Context(), &dedupv1.ReserveRequest{
		Identity:     &dedupv1.Identity{Namespace: "shop", Operation: chargeMethod, Caller: []byte("ada"), Key: []byte("k")},
		Fingerprints: []*dedupv1.Fingerprint{{Version: 1, Digest: []byte("the caller's own")}}, AttemptId: make([]byte, 16),
	})
	reason, _ := interceptors.ReasonOf(err)
	require.Equal(t, dedupv1.Reason_REASON_KEY_REUSED, reason)

	_, stderr = d.dlq(t, exitFailed, edited...)
	require.Contains(t, stderr, "the dead letter is resolved, and only a parked one can be edited; nothing was written")
	require.Len(t, shop.did(), 1)
}

// An edit that was interrupted once its new entry was there leaves two, of which one
// is sent; and the same edit can be run again.
func TestAnInterruptedEditSendsOneOfTheTwo(t *testing.T) {
	t.Parallel()
	for _, again := range []bool{false, true} {
		d := serveDesk(t)
		shop := serveShop(t, d.addr)
		id := parkOrder(t, d.dl, "k", nil)
		edit := []byte(`{"order": "k", "amount": "13", "currency": "EUR"}`)
		e, err := d.dl.Get(t.Context(), &dedupv1.DeadLetterServiceGetRequest{EntryId: id})
		require.NoError(t, err)
		value, err := proto.MarshalOptions{Deterministic: true}.Marshal(&demov1.ChargeRequest{Order: "k", Amount: 13, Currency: "EUR"})
		require.NoError(t, err)
		sum := sha256.Sum256(value)
		child := childOf(e.GetEntry(), ":"+hex.EncodeToString(sum[:8]))
		child.Request = &dedupv1.Response{TypeUrl: "type.googleapis.com/dedup.demo.v1.ChargeRequest", Value: value}
		_, err = d.dl.Park(t.Context(), child) // and here it was cut off
		require.NoError(t, err)

		to := []string{"--target", shop.addr, "--plaintext", "--metadata", "authorization=operator", "--yes"}
		if again {
			d.dlq(t, exitDone, append([]string{"replay", hex.EncodeToString(id), "--edit", writeFile(t, string(edit))}, to...)...)
			require.Equal(t, []string{"k 13 by operator for ada"}, shop.did())
			continue
		}
		_, _ = d.dlq(t, exitPartial, append([]string{"replay", "--namespace", "shop", "--concurrency", "1"}, to...)...)
		stdout, _ := d.dlq(t, exitFailed, append([]string{"replay", "--namespace", "shop", "-o", "json"}, to...)...)
		require.Contains(t, stdout, "which it was edited from, has been done; discard this one")
		require.Equal(t, []string{"k 12 by operator for ada"}, shop.did())
	}
}

func connectDedup(t *testing.T, addr string) dedupv1.DedupServiceClient {
	t.Helper()
	return dedupv1.NewDedupServiceClient(connect(t, addr))
}

func TestAnEditThatFailsLeavesOneEntryToReplay(t *testing.T) {
	t.Parallel()
	d := serveDesk(t)
	shop := serveShop(t, d.addr)
	shop.fails(func(*demov1.ChargeRequest) error { return status.Error(codes.Internal, "no") })
	id := parkOrder(t, d.dl, "k", nil)
	_, stderr := d.dlq(t, exitFailed, "replay", hex.EncodeToString(id), "--edit", writeFile(t, `{"order": "k"}`),
		"--target", shop.addr, "--plaintext", "--metadata", "authorization=operator", "--yes")
	require.Contains(t, stderr, "none of 1 dead letters was replayed")
	page, err := d.dl.List(t.Context(), &dedupv1.DeadLetterServiceListRequest{})
	require.NoError(t, err)
	require.Len(t, page.GetEntries(), 1)
	require.Equal(t, id, page.GetEntries()[0].GetParentId())
}

// A key whose time is over tells nothing any more: only --force sends its request,
// under a new key, and once however often it is said.
func TestAnExpiredEntryIsSentUnderANewKeyOnlyByForce(t *testing.T) {
	t.Parallel()
	d := serveDesk(t)
	shop := serveShop(t, d.addr)
	id := hex.EncodeToString(parkOrder(t, d.dl, "k", nil))
	d.ahead.Store(int64(8 * day))
	replay := []string{"replay", id, "--target", shop.addr, "--plaintext", "--metadata", "authorization=operator", "--yes", "-o", "json"}
	stdout, _ := d.dlq(t, exitFailed, replay...)
	require.Contains(t, resultsOf(t, stdout)[id].Message, "--force sends it under a new key")
	require.Empty(t, shop.did())
	stdout, _ = d.dlq(t, exitDone, append(replay, "--force")...)
	require.Equal(t, "REPLAYED", resultsOf(t, stdout)[id].Result)
	require.NotEmpty(t, resultsOf(t, stdout)[id].Replaced)
	require.Equal(t, []string{"k 12 by operator for ada"}, shop.did())
	raw, err := hex.DecodeString(id)
	require.NoError(t, err)
	require.Equal(t, "discarded ", d.state(t, raw))
	stdout, _ = d.dlq(t, exitFailed, append(replay, "--force")...)
	require.Contains(t, resultsOf(t, stdout)[id].Message, "it was discarded; nothing was sent")
	require.Len(t, shop.did(), 1)
}

func TestWrongCommandLinesOfDlq(t *testing.T) {
	t.Parallel()
	id := strings.Repeat("0", 32)
	for want, args := range map[string][]string{
		"name dead letters by their ids, or choose them": {"discard", "--note", "x"},
		"not both":                                         {"discard", id, "--namespace", "shop", "--note", "x"},
		"it has 32 hex digits":                             {"show", "12"},
		"--target HOST:PORT":                               {"replay", id},
		"--plaintext or --tls":                             {"replay", id, "--target", "a:1"},
		"--ca belongs to --tls":                            {"replay", id, "--target", "a:1", "--plaintext", "--ca", os.DevNull},
		"--edit belongs to one dead letter":                {"replay", "--namespace", "shop", "--target", "a:1", "--plaintext", "--edit", "f"},
		"--metadata takes NAME=VALUE":                      {"replay", id, "--target", "a:1", "--plaintext", "--metadata", "authorization"},
		"is no status code":                                {"list", "--code", "teapot"},
		"--limit is -1":                                    {"list", "--limit=-1"},
		"--limit is 0; it takes 1 to 1000":                 {"groups", "--limit", "0"},
		"--note is 0 bytes":                                {"requeue", id, "--note", ""},
		"--call-timeout is 1h0m0s; it takes 1s to 14m":     {"replay", id, "--target", "a:1", "--plaintext", "--call-timeout", "1h"},
		"--concurrency and --rate take more than zero":     {"replay", id, "--target", "a:1", "--plaintext", "--rate", "0"},
		"there is no terminal to ask on":                   {"replay", id, "--target", "a:1", "--plaintext"},
		"--kind must be one of \"exhausted\",\"unreconcil": {"list", "--kind", "late"},
	} {
		code, _, stderr := typed(t, append([]string{"dlq"}, args...)...)
		require.Equal(t, exitUsage, code, stderr)
		require.Contains(t, stderr, want)
	}
}
