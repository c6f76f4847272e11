package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/internal/pgtest"
	"github.com/dedupd/dedupd/storage"
	"github.com/dedupd/dedupd/storage/storagetest"
)

// emptyDatabase starts PostgreSQL, or takes the one that the environment names, and
// returns the URL of an empty schema in it.
func emptyDatabase(t *testing.T) string {
	t.Helper()
	pg, err := pgtest.Start()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, pg.Stop()) })
	return pg.Schema(t)
}

func TestServeOnADatabaseSaysWhatToTypeWhenItsSchemaIsOld(t *testing.T) {
	t.Parallel()
	url := emptyDatabase(t)
	_, stderr := exits(t, exitFailed, "serve", "--store", url)
	require.Contains(t, stderr, "dedupd migrate up")
	stdout, stderr := exits(t, exitFailed, "migrate", "status", "--store", url)
	require.Contains(t, stdout, "missing")
	require.Contains(t, stderr, "dedupd migrate up")
	stdout, _ = exits(t, exitDone, "migrate", "up", "--store", url)
	require.Contains(t, stdout, "migrated  0001")
	stdout, _ = exits(t, exitDone, "migrate", "up", "--store", url)
	require.NotContains(t, stdout, "migrated")
	stdout, _ = exits(t, exitDone, "migrate", "status", "--store", url, "-o", "json")
	require.Contains(t, stdout, `"pending":[]`)

	s := serve(t, "--store", url)
	complete(t.Context(), t, s.dial(t), "key")
	s.kill(t)
	again := serve(t, "--store", url, "--store-alone")
	reply, err := again.dial(t).Reserve(t.Context(), reserveRequest("key", 2))
	require.NoError(t, err)
	require.Equal(t, "receipt for key", string(reply.GetCompleted().GetOutcome().GetResponse().GetValue()))
}

func TestADatabaseThatIsNotThereIsOneSentence(t *testing.T) {
	t.Parallel()
	for _, command := range [][]string{{"serve"}, {"serve", "--auto-migrate"}, {"migrate", "up"}, {"migrate", "status"}} {
		code, _, stderr := typed(t, append(command, "--store", "postgres://u:secret@127.0.0.1:1/db")...)
		require.Equal(t, exitFailed, code)
		require.Equal(t, "dedupd: the database at 127.0.0.1:1/db cannot be reached (connection refused); see that it runs and that --store names it\n", stderr)
		code, _, stderr = typed(t, append(command, "--store", "mysql://u:secret@127.0.0.1/db")...)
		require.Equal(t, exitUsage, code)
		require.Contains(t, stderr, "postgres://user@host:port/database")
		require.NotContains(t, stderr, "secret")
	}
}

func TestADatabaseThatRefusesIsOneSentence(t *testing.T) {
	t.Parallel()
	name := regexp.MustCompile(`(@[^/]*/)[^?]*`)
	url := emptyDatabase(t)
	require.Regexp(t, name, url)
	_, stderr := exits(t, exitFailed, "migrate", "up", "--store", name.ReplaceAllString(url, "${1}nosuch"))
	require.Regexp(t, `^dedupd: the database at \S+/nosuch refuses the connection \(database "nosuch" does not exist\); see that it is ready, and that --store names .*\n$`, stderr)
}

// Three replicas on one database, one of them killed under load: for no key an
// effect twice, and a history that one record after the other could have had.
func TestAFleetLosesAReplicaAndKeepsThePromise(t *testing.T) {
	t.Parallel()
	url := emptyDatabase(t)
	f := &fleet{recorder: storagetest.NewRecorder(), effects: map[string]int{}}
	replicas := []*served{serve(t, "--store", url, "--auto-migrate"), serve(t, "--store", url), serve(t, "--store", url)}
	for _, r := range replicas {
		f.replicas = append(f.replicas, r.dial(t))
	}
	const clients, intents = 16, 60
	var wg sync.WaitGroup
	half := make(chan struct{}, clients)
	for c := range clients {
		wg.Go(func() {
			for i := range intents {
				f.place(t.Context(), c, "order-"+strconv.Itoa(rand.IntN(intents*clients/6)))
				if i == intents/2 {
					half <- struct{}{}
				}
			}
		})
	}
	<-half
	replicas[1].kill(t)
	wg.Wait()

	require.Greater(t, len(f.effects), intents)
	for key, n := range f.effects {
		require.Equal(t, 1, n, "effects of %s", key)
	}
	require.Positive(t, f.lost, "the kill was not felt")
	storagetest.CheckHistory(t, f.recorder.History())
}

// fleet is what clients do to replicas, and what came of it.
type fleet struct {
	replicas []dedupv1.DedupServiceClient
	recorder *storagetest.Recorder

	mu      sync.Mutex
	effects map[string]int
	lost    int
}

// place runs one intent: reserve, effect, complete, each sent to any replica, and
// once more to any other when no answer came.
func (f *fleet) place(ctx context.Context, client int, key string) {
	request := reserveRequest(key, 0)
	for i := range request.AttemptId {
		request.AttemptId[i] = byte(rand.IntN(256))
	}
	request.Lease = durationpb.New(10 * time.Minute)
	id := identityOf(key)
	attempt := storage.AttemptID(request.GetAttemptId())
	asked := storage.Reserve{
		Identity: id, Attempt: attempt, Lease: 10 * time.Minute,
		Fingerprint: storage.Fingerprint{{Version: 1, Server: string(request.GetFingerprints()[0].GetDigest())}},
	}
	seen, err := f.send(client, id.RecordID(), asked, func(dedup dedupv1.DedupServiceClient) (storagetest.Seen, error) {
		reply, err := dedup.Reserve(ctx, request)
		return seenOf(reply), err
	})
	if err != nil || seen.Verdict != storage.VerdictGranted {
		return
	}
	f.mu.Lock()
	f.effects[key]++
	f.mu.Unlock()
	outcome := outcomeOf(fmt.Sprint(key, " of client ", client))
	_, _ = f.send(client, id.RecordID(), storage.Complete{Attempt: attempt, Fence: seen.Fence, Outcome: stored(outcome)},
		func(dedup dedupv1.DedupServiceClient) (storagetest.Seen, error) {
			_, err := dedup.Complete(ctx, &dedupv1.CompleteRequest{
				Identity: identity(key), AttemptId: request.GetAttemptId(), Fence: int64(seen.Fence), Outcome: outcome,
			})
			return storagetest.Seen{Verdict: storage.VerdictOK}, err
		}) // what no replica acknowledges stays unknown
}

func (f *fleet) send(client int, id storage.RecordID, request storage.Request, call func(dedupv1.DedupServiceClient) (storagetest.Seen, error)) (seen storagetest.Seen, err error) {
	first := rand.IntN(len(f.replicas))
	for n := range f.replicas {
		seen, err = f.recorder.Do(client, id, request, func() (storagetest.Seen, error) {
			return call(f.replicas[(first+n)%len(f.replicas)])
		})
		if err == nil {
			return seen, nil
		}
		if code := status.Code(err); code != codes.Unavailable && code != codes.Canceled {
			return seen, err
		}
		f.mu.Lock()
		f.lost++
		f.mu.Unlock()
	}
	return seen, errors.Join(err, errors.New("no replica answered"))
}

func identityOf(key string) storage.Identity {
	id := identity(key)
	return storage.Identity{Namespace: id.GetNamespace(), Operation: id.GetOperation(), Caller: string(id.GetCaller()), Key: key}
}

func stored(o *dedupv1.Outcome) *storage.Outcome {
	return &storage.Outcome{HasResponse: true, TypeURL: o.GetResponse().GetTypeUrl(), Response: o.GetResponse().GetValue()}
}

func seenOf(reply *dedupv1.ReserveResponse) storagetest.Seen {
	switch a := reply.GetAnswer().(type) {
	case *dedupv1.ReserveResponse_Granted:
		return storagetest.Seen{Verdict: storage.VerdictGranted, Fence: storage.Fence(a.Granted.GetFence())}
	case *dedupv1.ReserveResponse_Completed:
		return storagetest.Seen{Verdict: storage.VerdictCompleted, Outcome: stored(a.Completed.GetOutcome()).Hash()}
	case *dedupv1.ReserveResponse_InProgress:
		return storagetest.Seen{Verdict: storage.VerdictInProgress}
	}
	return storagetest.Seen{}
}
