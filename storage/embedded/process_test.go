package embedded_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dedupd/dedupd/storage"
	"github.com/dedupd/dedupd/storage/embedded"
)

const childDir = "DEDUPD_TEST_CHILD_DIR"

// TestChild is the process that the test below kills: it completes keys and says
// so, until it is killed.
func TestChild(t *testing.T) {
	t.Parallel()
	dir := os.Getenv(childDir)
	if dir == "" {
		t.Skip("runs as a process of the test below")
	}
	l := &load{store: open(t, embedded.Options{Dir: dir}), acks: map[string]ack{}}
	for i := 0; ; i++ {
		key := fmt.Sprintf("key-%d", i)
		require.NoError(t, l.cycle(t.Context(), key, true))
		_, err := fmt.Fprintf(os.Stdout, "done %s %d\n", key, l.acks[key].fence)
		require.NoError(t, err)
	}
}

func TestB12AKilledProcessReplaysWhatItCompleted(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestChild$")
	child.Env = append(os.Environ(), childDir+"="+dir)
	out, err := child.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start())
	acks := map[string]ack{}
	for lines := bufio.NewScanner(out); len(acks) < 100; {
		require.True(t, lines.Scan(), "the process says what it has done")
		if !strings.HasPrefix(lines.Text(), "done ") {
			continue
		}
		var key string
		a := ack{completed: true}
		_, err := fmt.Sscanf(lines.Text(), "done %s %d", &key, &a.fence)
		require.NoError(t, err)
		acks[key] = a
	}
	_, err = embedded.Open(embedded.Options{Dir: dir})
	require.ErrorIs(t, err, storage.ErrLocked, "two processes never have one store open")
	require.NoError(t, child.Process.Kill())
	require.Error(t, child.Wait())

	s := open(t, embedded.Options{Dir: dir})
	requireAcknowledged(t, s, acks)
	for key := range acks {
		before, err := s.Lookup(t.Context(), request(key).Identity.RecordID(), storage.Lookup{})
		require.NoError(t, err)
		require.Equal(t, time.Hour, before.Record.ExpiresAt.Sub(before.Record.CompletedAt), "counted from completion, moved by no replay")
	}
	require.NoError(t, s.CheckIndexes())
}
