package nethttp_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors"
	"github.com/dedupd/dedupd/interceptors/guard"
	"github.com/dedupd/dedupd/interceptors/nethttp"
	"github.com/dedupd/dedupd/server"
	"github.com/dedupd/dedupd/storage/embedded"
)

// A receiver is this test's own executable with these variables set: where dedupd
// is, the file of effects, and the address to serve on.
const (
	receiverDedupd  = "NETHTTP_TEST_DEDUPD"
	receiverEffects = "NETHTTP_TEST_EFFECTS"
	receiverListen  = "NETHTTP_TEST_LISTEN"

	stormEvents = 50
	stormCopies = 100
	stormWidth  = 24 // deliveries at a time

	anyPort = "127.0.0.1:0"
)

// TestReceiver is the other process: a webhook receiver that says what it is about
// to do, so that it can be killed there.
func TestReceiver(t *testing.T) { //nolint:paralleltest // it is no test, but a process
	if os.Getenv(receiverDedupd) == "" {
		t.Skip("it is started by the storm")
	}
	conn, err := interceptors.DialDedupd([]string{os.Getenv(receiverDedupd)}, interceptors.DialInsecure())
	require.NoError(t, err)
	engine, err := guard.New(guard.Config{Dedup: dedupv1.NewDedupServiceClient(conn), Namespace: namespace})
	require.NoError(t, err)
	effects := os.Getenv(receiverEffects)
	hook, err := nethttp.NewWebhook(engine, nethttp.WebhookConfig{
		Operation: "webhook storm", Verify: signed, ID: nethttp.FieldID("id"),
		Route: nethttp.Route{
			Policy: &dedupv1.MethodPolicy{Lease: durationpb.New(2 * time.Second)}, Basis: dedupv1.Basis_BASIS_BOUNDED,
			Reconciler: func(r *http.Request) guard.Reconciler {
				return func(context.Context, guard.Attempt) (guard.Verdict, error) {
					return lookForEffect(effects, r)
				}
			},
		},
	})
	require.NoError(t, err)
	lis, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", os.Getenv(receiverListen))
	require.NoError(t, err)
	say("ready %s", lis.Addr())
	srv := &http.Server{ReadHeaderTimeout: time.Minute, Handler: hook.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id, err := eventOf(r)
		say("begins %s", id)
		<-time.After(5 * time.Millisecond)
		if err != nil || r.Context().Err() != nil { // the lease is lost: what BOUNDED rests on
			nethttp.SayNotApplied(r.Context())
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		if applyEffect(effects, id) != nil {
			os.Exit(1)
		}
		say("applied %s", id)
		<-time.After(5 * time.Millisecond)
	}))}
	_ = srv.Serve(lis) // until it is killed
}

func say(format string, args ...any) { _, _ = fmt.Fprintf(os.Stdout, format+"\n", args...) }

func eventOf(r *http.Request) (string, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return "", err
	}
	return nethttp.FieldID("id")(nil, body)
}

// applyEffect appends a line that is there, or not, when it returns.
func applyEffect(path, id string) error {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY|os.O_SYNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(id + "\n")
	return errors.Join(err, f.Close())
}

func effectsOf(path, id string) (int, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	return bytes.Count(append([]byte("\n"), data...), []byte("\n"+id+"\n")), err
}

func lookForEffect(path string, r *http.Request) (guard.Verdict, error) {
	id, err := eventOf(r)
	if err != nil {
		return guard.StillUnknown(), err
	}
	if n, err := effectsOf(path, id); err != nil || n == 0 {
		return guard.NotSeen(), err
	}
	o, err := (&nethttp.Response{Status: http.StatusOK}).Outcome(1 << 20)
	return guard.Applied(o), err
}

// receiver is a process that is killed and started again on its port.
type receiver struct {
	dedupd string
	file   string
	addr   string
	kills  chan string // words at which it is to be killed, one life after the other
	ended  chan struct{}
}

// live starts the process again and again until the storm is over; up is told of
// the first start.
func (p *receiver) live(ctx context.Context, up chan<- error) {
	defer close(p.ended)
	for ctx.Err() == nil {
		cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestReceiver$")
		cmd.Env = append(os.Environ(), receiverDedupd+"="+p.dedupd, receiverEffects+"="+p.file, receiverListen+"="+p.addr)
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			up <- err
			return
		}
		word := "never"
		select {
		case word = <-p.kills:
		default:
		}
		seen := 0
		for lines := bufio.NewScanner(out); lines.Scan(); {
			what, rest, _ := strings.Cut(lines.Text(), " ")
			if what == "ready" && p.addr == anyPort {
				p.addr = rest
				up <- nil
			}
			if what == word {
				if seen++; seen == 3 {
					_ = cmd.Process.Kill() // in the middle of a handler
				}
			}
		}
		_ = cmd.Wait()
	}
}

// TestAStormOfDeliveriesHandlesEachEventOnce delivers 100 copies of 50 events in
// random order to two receivers, each of which is killed in mid-handler twice.
func TestAStormOfDeliveriesHandlesEachEventOnce(t *testing.T) { // A05 B13
	t.Parallel()
	store, err := embedded.OpenMemory(embedded.Options{CacheBytes: 1 << 20, MemtableBytes: 4 << 20})
	require.NoError(t, err)
	dedupd, err := server.New(server.Config{Store: store})
	require.NoError(t, err)
	grpcLis, httpLis := listen(t), listen(t)
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- dedupd.Run(ctx, grpcLis, httpLis) }()

	file := t.TempDir() + "/effects"
	var receivers []*receiver
	for _, words := range [][]string{{"begins", "applied"}, {"applied", "begins"}} {
		p := &receiver{
			dedupd: grpcLis.Addr().String(), file: file, addr: anyPort,
			kills: make(chan string, len(words)), ended: make(chan struct{}),
		}
		for _, word := range words {
			p.kills <- word
		}
		up := make(chan error, 1)
		go p.live(ctx, up)
		require.NoError(t, <-up)
		receivers = append(receivers, p)
	}

	deliveries := make([]int, 0, stormEvents*stormCopies)
	for i := range stormEvents * stormCopies {
		deliveries = append(deliveries, i%stormEvents)
	}
	rand.Shuffle(len(deliveries), func(i, j int) { deliveries[i], deliveries[j] = deliveries[j], deliveries[i] })
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: stormWidth}}
	early, again := storm(ctx, client, receivers, file, deliveries)
	require.Empty(t, early, "no 2xx before the effect")
	t.Logf("%d deliveries, %d of them sent again", len(deliveries), again)

	for i := range stormEvents {
		n, err := effectsOf(file, fmt.Sprintf("evt_%d", i))
		require.NoError(t, err)
		require.Equal(t, 1, n, "evt_%d", i)
	}
	for _, p := range receivers {
		require.Empty(t, p.kills, "it was killed as often as meant")
	}
	require.Positive(t, again)
	stop()
	for _, p := range receivers {
		<-p.ended
	}
	client.CloseIdleConnections()
	require.NoError(t, <-served)
	require.NoError(t, store.Close())
}

// storm sends every delivery until it is answered 2xx, and returns those that were
// answered so before the effect was there.
func storm(ctx context.Context, client *http.Client, to []*receiver, file string, deliveries []int) (early []string, again int) {
	work := make(chan int)
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range stormWidth {
		wg.Go(func() {
			for event := range work {
				id := fmt.Sprintf("evt_%d", event)
				for tries := 0; ctx.Err() == nil; tries++ {
					if !deliver(ctx, client, to[rand.IntN(len(to))].addr, id) {
						mu.Lock()
						again++
						mu.Unlock()
						<-time.After(50 * time.Millisecond)
						continue
					}
					if n, err := effectsOf(file, id); err != nil || n != 1 {
						mu.Lock()
						early = append(early, id)
						mu.Unlock()
					}
					break
				}
			}
		})
	}
	for _, event := range deliveries {
		work <- event
	}
	close(work)
	wg.Wait()
	return early, again
}

func deliver(ctx context.Context, client *http.Client, addr, id string) (ok bool) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+addr+"/hooks", strings.NewReader(`{"id":"`+id+`"}`))
	if err != nil {
		return false
	}
	r.Header.Set("Signature", "right")
	resp, err := client.Do(r)
	if err != nil {
		return false
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	return resp.StatusCode/100 == 2
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	lis, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", anyPort)
	require.NoError(t, err)
	return lis
}
