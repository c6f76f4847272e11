package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
)

func TestKeysRedactErasesAPersonAndStillKnowsRepeats(t *testing.T) {
	t.Parallel()
	s := serve(t, "--in-memory")
	dedup := s.dial(t)
	complete(t.Context(), t, dedup, "k-1")
	complete(t.Context(), t, dedup, "k-2")
	by := []string{"keys", "redact", "--all-of-caller", "acme", "--namespace", "shop", "--note", "asked to be erased", "--addr", s.grpc, "-o", "json"}
	count := func(args ...string) (n eraseCount) {
		stdout, _ := exits(t, exitDone, append(by, args...)...)
		require.NoError(t, json.Unmarshal([]byte(stdout), &n), stdout)
		return n
	}

	require.Equal(t, eraseCount{Records: 2, DryRun: true}, count("--dry-run"))
	_, stderr := exits(t, exitUsage, by...)
	require.Contains(t, stderr, "pass --yes")
	listed, _ := exits(t, exitDone, "keys", "list", "--show-keys", "--addr", s.grpc)
	require.Contains(t, listed, "acme")
	require.Equal(t, eraseCount{Records: 2}, count("--yes"))

	listed, _ = exits(t, exitDone, "keys", "list", "--show-keys", "--addr", s.grpc)
	require.NotContains(t, listed, "acme")
	require.NotContains(t, listed, "k-1")
	repeat, err := dedup.Reserve(t.Context(), reserveRequest("k-1", 2))
	require.NoError(t, err)
	require.NotNil(t, repeat.GetCompleted().GetOutcome().GetOmitted(), "recognized, and nothing of its answer is left")
}

func TestKeysForgetMakesARepeatNewButNotOnALiveLease(t *testing.T) {
	t.Parallel()
	s := serve(t, "--in-memory")
	dedup := s.dial(t)
	complete(t.Context(), t, dedup, "done")
	held, err := dedup.Reserve(t.Context(), reserveRequest("held", 1))
	require.NoError(t, err)
	_, err = dedup.Release(t.Context(), &dedupv1.ReleaseRequest{Identity: identity("spent"), AttemptId: reserveRequest("spent", 1).GetAttemptId(), Effect: dedupv1.Effect_EFFECT_NONE})
	require.NoError(t, err)
	counted, _ := exits(t, exitPartial, "keys", "forget", "--whole-namespace", "shop", "--note", "closed", "--dry-run", "--addr", s.grpc)
	require.Equal(t, "2 records and 0 dead letters would be forgotten; "+alsoCounted+"\n", counted)
	stdout, stderr := exits(t, exitPartial, "keys", "forget", "--whole-namespace", "shop", "--note", "closed", "--yes", "--addr", s.grpc)
	require.Equal(t, "2 records and 0 dead letters forgotten\n", stdout, "of which one is the mark of a spent attempt")
	require.Contains(t, stderr, "left out, since an effect may still be on its way: 1 record; run it again")

	again, err := dedup.Reserve(t.Context(), reserveRequest("done", 2))
	require.NoError(t, err)
	require.NotNil(t, again.GetGranted())
	_, stderr = exits(t, exitFailed, "keys", "forget", "held", "--namespace", "shop", "--operation", operation, "--caller", "acme", "--note", "n", "--yes", "--addr", s.grpc)
	require.Contains(t, stderr, "left out")
	_, err = dedup.Complete(t.Context(), &dedupv1.CompleteRequest{
		Identity: identity("held"), AttemptId: reserveRequest("held", 1).GetAttemptId(), Fence: held.GetGranted().GetFence(), Outcome: outcomeOf("held"),
	})
	require.NoError(t, err, "who holds a key is not disturbed")
	_, stderr = exits(t, exitNoRecord, "keys", "forget", "nothing", "--namespace", "shop", "--operation", operation, "--note", "n", "--yes", "--addr", s.grpc)
	require.Contains(t, stderr, "no such record; that")
	_, stderr = exits(t, exitNoRecord, "keys", "forget", "--whole-namespace", "sohp", "--note", "n", "--yes", "--addr", s.grpc)
	require.Equal(t, "dedupd: no such records; nothing was erased: check the spelling of namespace and caller\n", stderr)
}

// A typo must not widen what is erased.
func TestWhatToEraseIsChosenExactlyOnce(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{},
		{"k"},
		{"k", "--namespace", "shop"},
		{"--all-of-caller", "acme"},
		{"k", "--whole-namespace", "shop"},
		{"--whole-namespace", "shop", "--namespace", "shop"},
		{"--id", "0123456789ab"},
		{"--whole-namespace", "shop", "--all-of-caller", "acme"},
	} {
		_, stderr := exits(t, exitUsage, append([]string{"keys", "forget", "--note", "n", "--yes", "--addr", "127.0.0.1:1"}, args...)...)
		require.NotContains(t, stderr, "cannot reach", "%v", args)
	}
	_, stderr := exits(t, exitUsage, "keys", "forget", "--whole-namespace", "shop", "--yes")
	require.Contains(t, stderr, "--note")
}

func TestKeysWatchTellsALifeAsItHappens(t *testing.T) {
	t.Parallel()
	s := serve(t, "--in-memory")
	dedup := s.dial(t)
	cmd := command(t, "keys", "watch", "k", "--namespace", "shop", "--operation", operation, "--caller", "acme", "--interval", "100ms", "--addr", s.grpc)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	lines := bufio.NewScanner(stdout)
	next := func() string {
		require.True(t, lines.Scan(), "the watch has ended")
		return lines.Text()
	}
	require.Contains(t, next(), "absent")
	request := reserveRequest("k", 1)
	reply, err := dedup.Reserve(t.Context(), request)
	require.NoError(t, err)
	require.Regexp(t, `reserved\s+grants 1  lease left (30|29)s`, next())
	_, err = dedup.Complete(t.Context(), &dedupv1.CompleteRequest{
		Identity: identity("k"), AttemptId: request.GetAttemptId(), Fence: reply.GetGranted().GetFence(), Outcome: outcomeOf("k"),
	})
	require.NoError(t, err)
	require.Contains(t, next(), "completed")
	require.False(t, lines.Scan())
	require.NoError(t, cmd.Wait())
}

func TestTopShowsWhatAServerDoesAndItsHottestKeys(t *testing.T) {
	t.Parallel()
	s := serve(t, "--in-memory")
	dedup := s.dial(t)
	complete(t.Context(), t, dedup, "hot")
	for range 50 {
		_, err := dedup.Reserve(t.Context(), reserveRequest("hot", 2))
		require.NoError(t, err)
	}
	_, err := dedup.Reserve(t.Context(), reserveRequest("held", 1))
	require.NoError(t, err)
	stdout, _ := exits(t, exitDone, "top", "--addr", s.grpc)
	require.Regexp(t, fmt.Sprintf(`shop\s+%s\s+2\s+50\s+0\s+0\s+0\s+1`, operation), stdout)
	require.Regexp(t, `HOT KEY\s+NAMESPACE\s+OPERATION\s+ABOUT\n[0-9a-f]{12}\s+shop\s+`+operation+`\s+5\d`, stdout)
	require.NotContains(t, stdout, "\x1b")
	stdout, _ = exits(t, exitDone, "top", "--once", "-o", "json", "--addr", s.grpc)
	require.True(t, json.Valid([]byte(strings.TrimSpace(stdout))))
}

func TestTopTellsWhenTheServerIsGone(t *testing.T) {
	t.Parallel()
	_, stderr := exits(t, exitFailed, "top", "--addr", "127.0.0.1:1")
	require.Contains(t, stderr, "cannot reach dedupd")
}
