package main

import (
	"context"
	"encoding/hex"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	demov1 "github.com/dedupd/dedupd/gen/dedup/demo/v1"
)

// Replay acts on an entry once, however often its id is typed.
func TestADeadLetterNamedTwiceIsTakenOnce(t *testing.T) {
	t.Parallel()
	d := serveDesk(t)
	shop := serveShop(t, d.addr)
	id := hex.EncodeToString(parkOrder(t, d.dl, "k", nil))
	none := strings.Repeat("0", 31)
	stdout, stderr := d.dlq(t, exitPartial, "replay", id, strings.ToUpper(id), none+"a", none+"A", "--limit", "2", "-o", "json",
		"--target", shop.addr, "--plaintext", "--metadata", "authorization=operator", "--yes")
	require.Equal(t, 2, strings.Count(stdout, "\n"), stdout)
	require.Equal(t, "REPLAYED", resultsOf(t, stdout)[id].Result)
	require.Contains(t, stderr, "1 of 2 dead letters were not replayed")
	require.Len(t, shop.did(), 1)

	other := hex.EncodeToString(parkOrder(t, d.dl, "other", nil))
	stdout, _ = d.dlq(t, exitDone, "discard", other, other, "--note", "test", "--yes", "-o", "json")
	require.Equal(t, 1, strings.Count(stdout, "\n"), stdout)
}

// What ran unprotected is not among what was replayed: nothing keeps its caller's own
// retry from doing it again.
func TestWhatRanUnprotectedIsCountedApart(t *testing.T) {
	t.Parallel()
	d := serveDesk(t)
	bare := &shopService{}
	addr := serveBare(t, func(s grpc.ServiceRegistrar) { demov1.RegisterPaymentsServiceServer(s, bare) })
	for _, order := range []string{"1", "2", "3", "4", "5"} {
		parkOrder(t, d.dl, order, nil)
	}
	replay := []string{"replay", "--namespace", "shop", "--target", addr, "--plaintext", "--yes", "-o", "json"}
	stdout, stderr := d.dlq(t, exitPartial, replay...)
	require.Len(t, bare.did(), 1, "the first is sent alone")
	require.Equal(t, 1, strings.Count(stdout, "UNPROTECTED"), stdout)
	require.Contains(t, stderr, "dedupd: 4 of 5 dead letters were not replayed; 1 of 5 ran without protection, so that nothing keeps a caller's own retry from doing it again\n")
}

func TestATallyTellsDoneUnprotectedAndNotDoneApart(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		results string
		code    int
		want    string
	}{
		{"", exitDone, ""},
		{"REPLAYED ALREADY_DONE SUPERSEDED", exitDone, ""},
		{"FAILED SKIPPED_LIVE", exitFailed, "none of 2 dead letters was replayed"},
		{"FAILED REPLAYED", exitPartial, "1 of 2 dead letters were not replayed; the rest were replayed"},
		{"UNPROTECTED", exitPartial, "1 of 1 ran without protection, so that nothing keeps a caller's own retry from doing it again"},
		{"UNPROTECTED REPLAYED", exitPartial, "1 of 2 ran without protection, so that nothing keeps a caller's own retry from doing it again; the rest were replayed"},
	} {
		n := tally{verb: "replayed"}
		for _, result := range strings.Fields(test.results) {
			n.add(result)
		}
		err := n.err()
		require.Equal(t, test.code, exitCode(err), test.results)
		if test.want != "" {
			require.EqualError(t, err, test.want)
		}
	}
}

// Whoever is cut off must know what is left, and what to type.
func TestEntriesThatWereNotSentAreNamedWithTheCommandToGoOn(t *testing.T) {
	t.Parallel()
	const secret = "Bearer 0123"
	for name, how := range map[string]struct {
		code int
		want string
	}{
		"Ctrl-C":      {exitInterrupted, "dedupd: interrupted; go on with: dedupd dlq replay "},
		"dedupd dies": {exitPartial, "dedupd: cannot reach dedupd at "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, "--in-memory")
			dl := s.deadLetters(t)
			shop := serveShop(t, s.grpc)
			ctx, interrupt := context.WithCancel(t.Context())
			defer interrupt()
			cut := interrupt
			if name == "dedupd dies" {
				cut = func() { s.kill(t) }
			}
			shop.fails(func(*demov1.ChargeRequest) error {
				cut()
				return nil
			})
			args := []string{"dlq", "replay"}
			for _, order := range []string{"1", "2", "3"} {
				args = append(args, hex.EncodeToString(parkOrder(t, dl, order, nil)))
			}
			in, err := os.Open(os.DevNull)
			require.NoError(t, err)
			defer func() { require.NoError(t, in.Close()) }()
			var out, errs strings.Builder
			code := run(ctx, append(args, "--concurrency", "1", "--target", shop.addr, "--plaintext", "--yes",
				"--metadata", "authorization="+secret, "--addr", s.grpc, "-o", "json"), streams{in: in, out: &out, err: &errs})
			require.Equal(t, how.code, code, errs.String())
			require.Contains(t, errs.String(), how.want)
			require.NotContains(t, errs.String(), secret)
			require.Contains(t, errs.String(), "go on with: dedupd dlq replay "+args[3]+" "+args[4]+" --target "+shop.addr+" --plaintext --metadata authorization=... --addr "+s.grpc)
			require.Contains(t, errs.String(), "2 of 3 dead letters were not replayed; the rest were replayed")
			for _, id := range args[3:] {
				require.Equal(t, "nothing was sent", resultsOf(t, out.String())[id].Message)
			}
		})
	}
}

func TestManyEntriesThatWereNotSentAreNotListedTwice(t *testing.T) {
	t.Parallel()
	c := &dlqReplayCmd{remote: remote{Addr: "h:1", clientTLS: clientTLS{CA: "/ca", Cert: "/c", Key: "/k"}}, target: target{Target: "t:1", TLS: true, CA: "/t"}}
	require.Equal(t, `go on with: dedupd dlq replay id --target t:1 --tls --ca "/t" --addr h:1 --addr-ca "/ca" --addr-cert "/c" --addr-key "/k"`, c.goOn([]string{"id"}))
	require.Equal(t, "run the same command again: what has been done is not done again", c.goOn(make([]string, typedIDs+1)))
	require.Contains(t, c.goOn(make([]string, typedIDs)), "go on with: dedupd dlq replay")
}
