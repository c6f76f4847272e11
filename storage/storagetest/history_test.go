package storagetest

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dedupd/dedupd/storage"
)

// at is a call by client c from one second to another.
func at(c int, from, to time.Duration, req storage.Request, seen Seen) Operation {
	return Operation{Client: c, Request: req, Call: from * time.Second, Return: to * time.Second, Seen: seen}
}

func reserveBy(a byte) storage.Reserve {
	return storage.Reserve{Attempt: storage.AttemptID{a}, Fingerprint: fingerprint("a")}
}

func granted(f storage.Fence) Seen { return Seen{Verdict: storage.VerdictGranted, Fence: f} }

func lost(op Operation) Operation {
	op.Lost, op.Seen = true, Seen{}
	return op
}

func TestHistoriesAreJudged(t *testing.T) {
	t.Parallel()
	inProgress := Seen{Verdict: storage.VerdictInProgress}
	ok := Seen{Verdict: storage.VerdictOK}
	replay := func(body string) Seen {
		return Seen{Verdict: storage.VerdictCompleted, Outcome: success(body).Hash()}
	}
	complete := storage.Complete{Attempt: storage.AttemptID{1}, Fence: 7, Outcome: success("x")}
	release := storage.Release{Attempt: storage.AttemptID{1}, Fence: 7, Effect: storage.EffectNone}
	cases := map[string]struct {
		fails   bool
		history []Operation
	}{
		"one caller is granted, the other waits": {false, []Operation{
			at(1, 0, 2, reserveBy(1), granted(7)), at(2, 1, 3, reserveBy(2), inProgress),
		}},
		"two callers hold one key": {true, []Operation{
			at(1, 0, 2, reserveBy(1), granted(7)), at(2, 1, 3, reserveBy(2), granted(8)),
		}},
		"a caller waits for nobody": {true, []Operation{
			at(2, 0, 1, reserveBy(2), inProgress), at(1, 2, 3, reserveBy(1), granted(7)),
		}},
		"a repeat gets the grant whose answer was lost": {false, []Operation{
			lost(at(1, 0, 1, reserveBy(1), Seen{})), at(2, 2, 3, reserveBy(2), inProgress), at(1, 4, 5, reserveBy(1), granted(7)),
		}},
		"a call without an answer never came": {false, []Operation{
			lost(at(1, 0, 1, reserveBy(1), Seen{})), at(2, 2, 3, reserveBy(2), granted(7)),
		}},
		"a repeat gets another fence": {true, []Operation{
			at(1, 0, 1, reserveBy(1), granted(7)), at(1, 2, 3, reserveBy(1), granted(8)),
		}},
		"a fence falls": {true, []Operation{
			at(1, 0, 1, reserveBy(1), granted(7)), at(1, 2, 3, release, ok), at(2, 4, 5, reserveBy(2), granted(6)),
		}},
		"an outcome is replayed": {false, []Operation{
			at(1, 0, 1, reserveBy(1), granted(7)), at(1, 2, 3, complete, ok), at(2, 4, 5, reserveBy(2), replay("x")),
		}},
		"an acknowledged outcome is forgotten": {true, []Operation{
			at(1, 0, 1, reserveBy(1), granted(7)), at(1, 2, 3, complete, ok), at(2, 4, 5, reserveBy(2), inProgress),
		}},
		"another outcome is replayed": {true, []Operation{
			at(1, 0, 1, reserveBy(1), granted(7)), at(1, 2, 3, complete, ok), at(2, 4, 5, reserveBy(2), replay("y")),
		}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := &verdict{TB: t}
			CheckHistory(v, c.history)
			require.Equal(t, c.fails, v.failed)
		})
	}
}

func TestARecorderRecordsAnErrorAsALostAnswer(t *testing.T) {
	t.Parallel()
	r := NewRecorder()
	fault := errors.New("gone")
	_, err := r.Do(1, storage.RecordID{1}, reserveBy(1), func() (Seen, error) { return Seen{}, fault })
	require.ErrorIs(t, err, fault)
	_, err = r.Do(1, storage.RecordID{1}, reserveBy(1), func() (Seen, error) { return granted(7), nil })
	require.NoError(t, err)
	got := r.History()
	require.Len(t, got, 2)
	require.True(t, got[0].Lost)
	require.False(t, got[1].Lost)
	require.LessOrEqual(t, got[0].Call, got[0].Return)
	CheckHistory(t, got)
}
