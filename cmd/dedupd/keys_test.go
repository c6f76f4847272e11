package main

import (
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
)

func TestKeysGetShowsARecordAndMasksItsKey(t *testing.T) {
	t.Parallel()
	s := serve(t, "--in-memory")
	complete(t.Context(), t, s.dial(t), "secret-key")
	byParts := []string{"keys", "get", "secret-key", "--namespace", "shop", "--operation", operation, "--caller", "acme", "--addr", s.grpc}

	stdout, _ := exits(t, exitDone, byParts...)
	id := find(t, stdout, `record\s+([0-9a-f]{64})\n`)
	for _, want := range []string{`state\s+completed\n`, `namespace\s+shop\n`, `operation\s+` + operation, `caller\s+\*\*\*\* \(4 bytes\)\n`, `key\s+\*\*\*\* \(10 bytes\)\n`, `grants\s+1\n`, `kept until\s+\d{4}-.*\(7d0h left\)`} {
		require.Regexp(t, want, stdout)
	}
	require.NotContains(t, stdout, "secret-key")
	require.NotContains(t, stdout, "acme")

	for _, by := range [][]string{
		{"--id", id},
		{"--id", id[:12]},
		{"--id", strings.ToUpper(id[:13])},
		{"--key-hex", hex.EncodeToString([]byte("secret-key")), "--namespace", "shop", "--operation", operation, "--caller", "acme"},
	} {
		stdout, _ = exits(t, exitDone, append([]string{"keys", "get", "--show-keys", "--addr", s.grpc}, by...)...)
		require.Contains(t, stdout, id)
		require.Regexp(t, `key\s+secret-key\n`, stdout)
		require.Regexp(t, `caller\s+acme\n`, stdout)
	}

	stdout, _ = exits(t, exitDone, append(byParts, "-o", "json")...)
	var info dedupv1.RecordInfo
	require.NoError(t, protojson.Unmarshal([]byte(stdout), &info))
	require.Equal(t, dedupv1.State_STATE_COMPLETED, info.GetState())
	require.Empty(t, info.GetIdentity().GetKey())
	require.Empty(t, info.GetIdentity().GetCaller())
	stdout, _ = exits(t, exitDone, append(byParts, "-o", "json", "--show-keys")...)
	require.NoError(t, protojson.Unmarshal([]byte(stdout), &info))
	require.Equal(t, "secret-key", string(info.GetIdentity().GetKey()))
	require.Equal(t, "acme", string(info.GetIdentity().GetCaller()))
}

func TestKeysGetOfNothingExitsWith3(t *testing.T) {
	t.Parallel()
	s := serve(t, "--in-memory")
	for _, by := range [][]string{{"k", "--namespace", "shop", "--operation", operation}, {"--id", strings.Repeat("0", 64)}, {"--id", strings.Repeat("f", 12)}} {
		stdout, stderr := exits(t, exitNoRecord, append([]string{"keys", "get", "--addr", s.grpc}, by...)...)
		require.Empty(t, stdout)
		require.Contains(t, stderr, "no such record; that does not mean that nothing was applied")
	}
	_, stderr := exits(t, exitFailed, "keys", "get", " k", "--namespace", "shop", "--operation", operation, "--addr", s.grpc)
	require.Contains(t, stderr, "refused with KEY_INVALID")
}

func TestKeysTellWhenNoServerAnswers(t *testing.T) {
	t.Parallel()
	_, stderr := exits(t, exitFailed, "keys", "list", "--addr", "127.0.0.1:1")
	require.Equal(t, "dedupd: cannot reach dedupd at 127.0.0.1:1; start it with `dedupd serve`, or name another address with --addr\n", stderr)
	s := serve(t, "--in-memory")
	_, stderr = exits(t, exitFailed, "keys", "list", "--addr", strings.TrimPrefix(s.http, "http://"))
	require.Equal(t, 1, strings.Count(stderr, "\n"), stderr)
}

func TestKeysListFiltersAndPages(t *testing.T) {
	t.Parallel()
	s := serve(t, "--in-memory")
	dedup := s.dial(t)
	const many = maxPage + 5 // more than one page
	for i := range many {
		_, err := dedup.Reserve(t.Context(), reserveRequest("reserved-"+string(rune('a'+i%26))+strings.Repeat("x", i/26), 1))
		require.NoError(t, err)
	}
	complete(t.Context(), t, dedup, "done")
	list := func(args ...string) []string {
		stdout, _ := exits(t, exitDone, append([]string{"keys", "list", "--addr", s.grpc}, args...)...)
		return strings.Split(strings.TrimSuffix(stdout, "\n"), "\n")
	}

	all := list("--limit", "0", "-o", "json")
	require.Len(t, all, many+1)
	ids := make([]string, len(all))
	for i, line := range all {
		var info dedupv1.RecordInfo
		require.NoError(t, protojson.Unmarshal([]byte(line), &info))
		require.Empty(t, info.GetIdentity().GetKey())
		ids[i] = hex.EncodeToString(info.GetRecordId())
	}
	require.IsIncreasing(t, ids)
	require.True(t, json.Valid([]byte(all[0])))

	require.Len(t, list("--limit", "1003", "-o", "json"), 1003)
	table := list("--state", "completed")
	require.Len(t, table, 2)
	require.Regexp(t, `^RECORD\s+STATE\s+NAMESPACE\s+OPERATION\s+CALLER\s+KEY\s+AGE\s+LEASE LEFT\s+KEPT FOR$`, table[0])
	require.Regexp(t, `^[0-9a-f]{12}\s+completed\s+shop\s+`+operation+`\s+\*\*\*\* \(4 bytes\)\s+\*\*\*\* \(4 bytes\)\s+\S+\s+7d0h$`, table[1])
	require.Equal(t, "stopped at --limit; 0 lists all", list("--limit", "3")[4])
	require.Len(t, list("--state", "completed,reserved", "--limit", "0", "-o", "json"), many+1)
	require.Equal(t, []string{"no records"}, list("--namespace", "other"))
	require.Equal(t, []string{"no records"}, list("--operation", "/other/Method"))
	require.Contains(t, list("--state", "completed", "--show-keys")[1], "done")
}

// A06: a key whose outcome nobody knows has a way out.
func TestKeysResolveSettlesAnUnknownRecord(t *testing.T) {
	t.Parallel()
	s := serve(t, "--in-memory")
	dedup := s.dial(t)
	by := []string{"keys", "resolve", "k", "--namespace", "shop", "--operation", operation, "--caller", "acme", "--addr", s.grpc, "--note", "seen at the bank", "--yes"}
	outcome := filepath.Join(t.TempDir(), "outcome.json")
	text, err := protojson.Marshal(outcomeOf("k"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(outcome, text, 0o600))
	completed := slices.Concat(by, []string{"--completed", "--outcome-file", outcome})

	_, stderr := exits(t, exitNoRecord, completed...)
	require.Contains(t, stderr, "no such record")

	request := reserveRequest("k", 1)
	request.Lease = durationpb.New(time.Second)
	_, err = dedup.Reserve(t.Context(), request)
	require.NoError(t, err)
	_, stderr = exits(t, exitFailed, completed...)
	require.Contains(t, stderr, "the record is reserved and its effect may still be on its way; nothing was written: try again in")

	// Held until the lease is over.
	reply, err := dedup.Lookup(t.Context(), &dedupv1.LookupRequest{
		Record: &dedupv1.LookupRequest_Identity{Identity: identity("k")}, Wait: durationpb.New(30 * time.Second),
	})
	require.NoError(t, err)
	require.Equal(t, dedupv1.State_STATE_UNKNOWN, reply.GetRecord().GetState())
	stdout, _ := exits(t, exitDone, "keys", "list", "--state", "unknown", "--addr", s.grpc)
	id := find(t, stdout, `\n([0-9a-f]{12}) `)
	stdout, _ = exits(t, exitDone, "keys", "get", "--id", id, "--addr", s.grpc)
	require.Contains(t, stdout, "dedupd keys resolve --id "+id)

	_, stderr = exits(t, exitFailed, append(completed, "--version", "0000000000000001")...)
	require.Contains(t, stderr, "the record has changed since it was looked at")
	stdout, _ = exits(t, exitDone, completed...)
	require.Regexp(t, `state\s+completed \(by operator\)`, stdout)
	require.Regexp(t, `note\s+seen at the bank`, stdout)
	_, stderr = exits(t, exitFailed, completed...)
	require.Contains(t, stderr, "the record is completed (by operator), and only one whose outcome is unknown can be settled; nothing was written")

	repeat, err := dedup.Reserve(t.Context(), reserveRequest("k", 2))
	require.NoError(t, err)
	require.True(t, repeat.GetCompleted().GetByOperator())
	require.Empty(t, cmp.Diff(outcomeOf("k"), repeat.GetCompleted().GetOutcome(), protocmp.Transform()))
}

func TestKeysResolveReleasesWhatDidNotHappen(t *testing.T) {
	t.Parallel()
	s := serve(t, "--in-memory")
	dedup := s.dial(t)
	request := reserveRequest("k", 1)
	request.Lease = durationpb.New(time.Second)
	_, err := dedup.Reserve(t.Context(), request)
	require.NoError(t, err)
	reply, err := dedup.Lookup(t.Context(), &dedupv1.LookupRequest{
		Record: &dedupv1.LookupRequest_Identity{Identity: identity("k")}, Wait: durationpb.New(30 * time.Second),
	})
	require.NoError(t, err)
	stdout, _ := exits(t, exitDone, "keys", "resolve", "--id", hex.EncodeToString(reply.GetRecord().GetRecordId()),
		"--released", "--basis", "inbox", "--note", "no row in the inbox", "--yes", "--addr", s.grpc)
	require.Regexp(t, `state\s+released \(by operator\)`, stdout)
	again, err := dedup.Reserve(t.Context(), reserveRequest("k", 2))
	require.NoError(t, err)
	require.Equal(t, dedupv1.Mode_MODE_RUN, again.GetGranted().GetMode())
}

func TestKeysResolveAsksBeforeItWrites(t *testing.T) {
	t.Parallel()
	info := &dedupv1.RecordInfo{RecordId: make([]byte, 32), State: dedupv1.State_STATE_UNKNOWN, Identity: identity("k")}
	for name, test := range map[string]struct {
		cmd    keysResolveCmd
		answer string
		asked  string
		fault  string
	}{
		"yes":             {keysResolveCmd{Completed: true}, "yes\n", "becomes COMPLETED without an outcome: every repeat is told OUTCOME_NOT_STORED", ""},
		"yes, an outcome": {keysResolveCmd{Completed: true, OutcomeFile: "o.json"}, " yes \n", "every repeat gets the outcome in o.json", ""},
		"yes, released":   {keysResolveCmd{Released: true}, "yes\n", "If the effect did happen, it will happen a second time.", ""},
		"no":              {keysResolveCmd{Completed: true}, "no\n", "Type yes to go on", "not confirmed; nothing was written"},
		"only y":          {keysResolveCmd{Completed: true}, "y\n", "Type yes to go on", "not confirmed; nothing was written"},
		"end of input":    {keysResolveCmd{Completed: true}, "", "Type yes to go on", "not confirmed; nothing was written"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in, answers, err := os.Pipe()
			require.NoError(t, err)
			_, err = answers.WriteString(test.answer)
			require.NoError(t, err)
			require.NoError(t, answers.Close())
			var asked strings.Builder
			err = test.cmd.confirm(t.Context(), streams{in: in, err: &asked}, info)
			require.Contains(t, asked.String(), test.asked)
			if test.fault == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, test.fault)
			}
			require.NoError(t, in.Close())
		})
	}
}
