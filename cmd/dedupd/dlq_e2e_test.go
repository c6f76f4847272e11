package main

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	demov1 "github.com/dedupd/dedupd/gen/dedup/demo/v1"
	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors"
)

// G01, G05: the callee is down, calls exhaust and are parked, somebody is told once,
// the callee is back, an operator replays: each effect once, all entries resolved.
func TestDeadLettersAreReplayedEachOnce(t *testing.T) {
	t.Parallel()
	told := make(chan webhookPayload, 100)
	hook := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var m webhookPayload
		if err := json.NewDecoder(r.Body).Decode(&m); err != nil {
			t.Errorf("decode: %v", err)
		}
		told <- m
	}))
	t.Cleanup(hook.Close)
	s := serve(t, "--data", t.TempDir(), "--alert-webhook", hook.URL, "--alert-every", "1s")
	addr := freeAddress(t)
	parker, _ := newParker(t, s.grpc, "")
	client := parkingClient(t, addr, parker)
	const orders = 8
	parked := map[string]bool{}
	for n := range orders {
		err := pay(t.Context(), client, fmt.Sprint("order ", n))
		require.Equal(t, codes.Unavailable, status.Code(err))
		id, ok := interceptors.DeadLetterOf(err)
		require.True(t, ok)
		parked[id] = true
	}
	all := listed(t, s.grpc, "--namespace", "demo", "--code", "unavailable", "--kind", "exhausted")
	require.Len(t, all, orders)
	for _, e := range all {
		require.True(t, parked[hex.EncodeToString(e.GetEntryId())])
		require.Len(t, e.GetAttempts(), 3)
		require.Empty(t, e.GetIdentity().GetKey(), "keys are masked")
	}
	stdout, _ := exits(t, exitDone, "dlq", "groups", "--addr", s.grpc)
	require.Regexp(t, `\n8\s+8\s+demo\s+`+chargeMethod+`\s+exhausted\s+Unavailable`, stdout)

	stdout, stderr := exits(t, exitFailed, "dlq", "replay", "--namespace", "demo", "--target", addr, "--plaintext", "--yes", "--addr", s.grpc, "-o", "json", "--limit", "8")
	require.Contains(t, stderr, "none of 8 dead letters was replayed", "nobody is there yet")
	require.Equal(t, "FAILED", resultsOf(t, stdout)[hex.EncodeToString(all[0].GetEntryId())].Result)

	alert := <-told
	require.Equal(t, "firing", alert.Status)
	require.Equal(t, map[string]string{"alertname": "DedupdDeadLetters", "namespace": "demo"}, alert.GroupLabels)
	payments := servePayments(t, addr, s.grpc)
	stdout, stderr = exits(t, exitDone, "dlq", "replay", "--namespace", "demo", "--target", addr, "--plaintext", "--yes", "--addr", s.grpc, "-o", "json")
	require.Contains(t, stderr, "replay: 8 of 8 dead letters")
	for id, r := range resultsOf(t, stdout) {
		require.True(t, parked[id])
		require.Equal(t, "REPLAYED", r.Result)
	}
	client = parkingClient(t, addr, parker) // one that has not yet given the service up
	for n := range orders {
		require.Equal(t, 1, charged(t, payments, fmt.Sprint("order ", n)))
		require.NoError(t, pay(t.Context(), client, fmt.Sprint("order ", n)), "the caller's own retry gets that answer")
		require.Equal(t, 1, charged(t, payments, fmt.Sprint("order ", n)))
	}
	require.Empty(t, listed(t, s.grpc))
	all = listed(t, s.grpc, "--state", "resolved")
	require.Len(t, all, orders)
	require.Equal(t, dedupv1.ReplayResult_REPLAY_RESULT_REPLAYED, all[0].GetResult())
	require.EqualValues(t, 1, all[0].GetReplays(), "attempts count only when the service was there")
	for len(told) > 0 {
		require.NotEqual(t, "firing", (<-told).Status, "a group is told once within its cool-down")
	}
}

// G01: two operators at once.
func TestTwoOperatorsReplayAtOnceAndEachEffectHappensOnce(t *testing.T) {
	t.Parallel()
	s := serve(t, "--in-memory")
	addr := freeAddress(t)
	parker, _ := newParker(t, s.grpc, "")
	client := parkingClient(t, addr, parker)
	const orders = 12
	for n := range orders {
		require.Error(t, pay(t.Context(), client, fmt.Sprint(n)))
	}
	payments := servePayments(t, addr, s.grpc)
	ran := make(chan *bytes.Buffer, 2)
	for range 2 {
		cmd := command(t, "dlq", "replay", "--namespace", "demo", "--target", addr, "--plaintext", "--yes", "--addr", s.grpc, "--rate", "1000", "-o", "json")
		var out bytes.Buffer
		cmd.Stdout = &out
		require.NoError(t, cmd.Start())
		go func() {
			_ = cmd.Wait() // its code tells who was first
			ran <- &out
		}()
	}
	replayed := 0
	for range 2 {
		for _, r := range resultsOf(t, (<-ran).String()) {
			require.Contains(t, []string{"REPLAYED", "SUPERSEDED", "SKIPPED_LIVE", "ALREADY_DONE"}, r.Result, r.Message)
			if r.Result == "REPLAYED" {
				replayed++
			}
		}
	}
	require.Equal(t, orders, replayed)
	for n := range orders {
		require.Equal(t, 1, charged(t, payments, fmt.Sprint(n)))
	}
	require.Len(t, listed(t, s.grpc, "--state", "resolved"), orders)
}

// G03: dedupd is down while calls are parked; they wait in the spool, over a
// restart of the client too.
func TestWhatFailsWhileDedupdIsDownIsParkedOnceItIsBack(t *testing.T) {
	t.Parallel()
	data, addr, spool := t.TempDir(), freeAddress(t), t.TempDir()
	s := serve(t, "--data", data)
	parker, _ := newParker(t, s.grpc, spool)
	client := parkingClient(t, addr, parker)
	s.kill(t)
	for _, order := range []string{"a", "b", "a"} {
		err := pay(t.Context(), client, order)
		id, ok := interceptors.DeadLetterOf(err)
		require.True(t, ok)
		require.Empty(t, id)
	}
	parker.Close() // the client's process ends, and another one finds the spool
	s = serve(t, "--data", data, "--listen", s.grpc)
	payments := servePayments(t, addr, s.grpc)
	_, drained := newParker(t, s.grpc, spool)
	<-drained
	require.Len(t, listed(t, s.grpc), 2, "one for each key")
	exits(t, exitDone, "dlq", "replay", "--namespace", "demo", "--target", addr, "--plaintext", "--yes", "--addr", s.grpc)
	require.Equal(t, 1, charged(t, payments, "a"))
	require.Equal(t, 1, charged(t, payments, "b"))
}

func TestAnEntryWhoseWorkHadBeenDoneIsNotDoneAgain(t *testing.T) {
	t.Parallel()
	s := serve(t, "--in-memory")
	addr := freeAddress(t)
	payments := servePayments(t, addr, s.grpc)
	parker, _ := newParker(t, s.grpc, "")
	client := parkingClient(t, addr, parker)
	require.NoError(t, pay(t.Context(), client, "done"))
	value, err := proto.Marshal(&demov1.ChargeRequest{Order: "done", Amount: 1999, Currency: "EUR"})
	require.NoError(t, err)
	id := parkOrder(t, s.deadLetters(t), "done", func(q *dedupv1.ParkRequest) { // as one whose answers were all lost
		q.Record = &dedupv1.ParkRequest_Identity{Identity: &dedupv1.Identity{Namespace: "demo", Operation: chargeMethod, Key: []byte("done")}}
		q.Request.Value = value
	})
	stdout, _ := exits(t, exitDone, "dlq", "replay", hex.EncodeToString(id), "--target", addr, "--plaintext", "--yes", "--addr", s.grpc)
	require.Regexp(t, hex.EncodeToString(id)+`\s+`+chargeMethod+`\s+ALREADY_DONE`, stdout)
	require.Equal(t, 1, charged(t, payments, "done"))
	stdout, _ = exits(t, exitDone, "dlq", "show", hex.EncodeToString(id), "--addr", s.grpc)
	require.Regexp(t, `state\s+resolved\nresult\s+already_done`, stdout)
}

// The first caller's record is charged, whoever replays; a claim that is forged
// or over is refused.
func TestAReplayIsBoundToTheFirstCallersRecordAndToItsClaim(t *testing.T) {
	t.Parallel()
	s := serve(t, "--in-memory")
	shop := serveShop(t, s.grpc)
	dl := s.deadLetters(t)
	id := parkOrder(t, dl, "k", nil)
	client := demov1.NewPaymentsServiceClient(connect(t, shop.addr))
	send := func(token []byte) error {
		ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "mallory", interceptors.HeaderKey, "k",
			interceptors.HeaderReplay, hex.EncodeToString(id)+"."+hex.EncodeToString(token))
		_, err := client.Charge(ctx, &demov1.ChargeRequest{Order: "k", Amount: 12, Currency: "EUR"})
		return err
	}
	refused := func(err error) {
		t.Helper()
		require.Equal(t, codes.InvalidArgument, status.Code(err))
		reason, _ := interceptors.ReasonOf(err)
		require.Equal(t, dedupv1.Reason_REASON_KEY_INVALID, reason)
	}
	refused(send(bytes.Repeat([]byte{7}, 16)))
	token := bytes.Repeat([]byte{8}, 16)
	claimed, err := dl.Claim(t.Context(), &dedupv1.ClaimRequest{Token: token, EntryIds: [][]byte{id}, Lease: durationpb.New(time.Second)})
	require.NoError(t, err)
	require.Len(t, claimed.GetEntries(), 1)
	lapse(t, s)
	refused(send(token))
	require.Empty(t, shop.did())

	stdout, _ := exits(t, exitDone, "dlq", "replay", hex.EncodeToString(id), "--target", shop.addr, "--plaintext", "--yes", "--addr", s.grpc, "--metadata", "authorization=operator")
	require.Contains(t, stdout, "REPLAYED")
	require.Equal(t, []string{"k 12 by operator for ada"}, shop.did())
	refused(send(token))
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "ada", interceptors.HeaderKey, "k")
	reply, err := client.Charge(ctx, &demov1.ChargeRequest{Order: "k", Amount: 12, Currency: "EUR"})
	require.NoError(t, err)
	require.Equal(t, "ch-1", reply.GetChargeId(), "ada's own retry gets that answer")
	require.Len(t, shop.did(), 1)
}

// lapse returns once a lease that was granted now is over: a second later by
// dedupd's own clock.
func lapse(t *testing.T, s *served) {
	t.Helper()
	dedup := s.dial(t)
	request := reserveRequest("clock", 1)
	request.Lease = durationpb.New(time.Second)
	_, err := dedup.Reserve(t.Context(), request)
	require.NoError(t, err)
	_, err = dedup.Lookup(t.Context(), &dedupv1.LookupRequest{
		Record: &dedupv1.LookupRequest_Identity{Identity: identity("clock")}, Wait: durationpb.New(30 * time.Second),
	})
	require.NoError(t, err)
}

// A06: a partial effect is held and parked; the operator's verdict settles the
// record and its dead letter, and the client's next retry succeeds.
func TestAPartialEffectIsParkedAndSettledByAVerdict(t *testing.T) {
	t.Parallel()
	s := serve(t, "--in-memory")
	shop := serveShop(t, s.grpc, interceptors.WithReconciler(chargeMethod, interceptors.Fenced,
		func(context.Context, interceptors.Attempt, proto.Message) (interceptors.Verdict, error) {
			return interceptors.VerdictPartial("the mail was not sent"), nil
		}))
	shop.fails(func(*demov1.ChargeRequest) error { return status.Error(codes.Internal, "it broke half way") })
	client := demov1.NewPaymentsServiceClient(connect(t, shop.addr))
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "ada", interceptors.HeaderKey, "k")
	send := func() error {
		_, err := client.Charge(ctx, &demov1.ChargeRequest{Order: "k", Amount: 12, Currency: "EUR"})
		return err
	}
	require.Equal(t, codes.Internal, status.Code(send()))
	shop.fails(nil)
	err := send()
	reason, _ := interceptors.ReasonOf(err)
	require.Equal(t, dedupv1.Reason_REASON_OUTCOME_UNKNOWN, reason)
	id, ok := interceptors.DeadLetterOf(err)
	require.True(t, ok)
	stdout, _ := exits(t, exitDone, "dlq", "show", id, "--addr", s.grpc)
	require.Regexp(t, `kind\s+unreconciled\n`, stdout)
	require.Contains(t, stdout, "a part of the effect was applied: the mail was not sent")
	record := find(t, stdout, `record\s+([0-9a-f]{64})`)
	lapse(t, s) // a verdict waits for the lease to be over
	outcome := writeFile(t, `{"response": {"typeUrl": "type.googleapis.com/dedup.demo.v1.ChargeResponse"}}`)
	exits(t, exitDone, "keys", "resolve", "--id", record, "--completed", "--outcome-file", outcome, "--note", "seen at the bank", "--yes", "--addr", s.grpc)
	require.NoError(t, send())
	require.Empty(t, shop.did())
	stdout, _ = exits(t, exitDone, "dlq", "show", id, "--addr", s.grpc)
	require.Regexp(t, `state\s+resolved\nresult\s+superseded`, stdout)
}
