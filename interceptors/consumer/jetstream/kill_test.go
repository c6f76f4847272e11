package jetstream_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	js "github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/dedupd/dedupd/interceptors"
	"github.com/dedupd/dedupd/interceptors/consumer"
	"github.com/dedupd/dedupd/interceptors/consumer/jetstream"
	"github.com/dedupd/dedupd/interceptors/guard"
)

const (
	messages  = 5_000
	copies    = 100 // of them, published a second time
	slowEvery = 100 // takes longer than AckWait; every other of them is not kept alive
	lostEvery = 10  // the first acknowledgement is lost
	killEvery = 250 // effects, of the process that asks for it
	lease     = 2 * time.Second

	natsURL, dedupdAddress, outerURL = "DEDUPD_TEST_NATS", "DEDUPD_TEST_DEDUPD", "DEDUPD_TEST_OUTER"
)

// TestProcess is the consumer that the test below starts twice, and kills.
func TestProcess(t *testing.T) {
	t.Parallel()
	if os.Getenv(natsURL) == "" {
		t.Skip("runs as a process of the test below")
	}
	dead := &drawer{}
	conn, dedup := dialDedupd(t, os.Getenv(dedupdAddress))
	defer func() { require.NoError(t, conn.Close()) }()
	transport := &http.Transport{MaxIdleConnsPerHost: jetstream.DefaultWorkers}
	client := &http.Client{Transport: transport}
	defer transport.CloseIdleConnections()
	queue, err := consumer.New(consumer.Config{
		Dedup: dedup, Namespace: "test", Operation: "consume " + subject, DeadLetters: dead,
		Lease: lease, MaxRuns: 100, RetryCap: time.Second,
		Basis: interceptors.Fenced,
		Reconciler: func(ctx context.Context, a interceptors.Attempt, m consumer.Message) (interceptors.Verdict, error) {
			answer, err := ask(ctx, client, os.Getenv(outerURL)+"/look", a.RecordID, a.Fence, url.Values{})
			var what string
			if err == nil {
				err = json.Unmarshal(answer, &what)
			}
			if err != nil || what != "" && what != m.ID {
				return interceptors.VerdictStillUnknown(), err
			}
			if what == "" {
				return interceptors.VerdictNotApplied(), nil
			}
			return consumer.Applied(), nil
		},
	})
	require.NoError(t, err)
	defer queue.Close()
	_, at := connect(t, os.Getenv(natsURL))
	from, err := at.Consumer(t.Context(), stream, durable)
	require.NoError(t, err)
	worker, err := jetstream.New(t.Context(), jetstream.Config{
		Queue: queue, From: faulty{from},
		Handle: func(ctx context.Context, msg js.Msg) error {
			id := msg.Headers().Get(js.MsgIDHeader)
			if numberOf(id)%slowEvery == 0 {
				pause(ctx, 2*lease)
			}
			fence, _ := interceptors.FenceFrom(ctx)
			_, err := ask(ctx, client, os.Getenv(outerURL)+"/apply", guard.RecordIDFrom(ctx), fence,
				url.Values{"what": {id}, "pid": {strconv.Itoa(os.Getpid())}})
			return err
		},
	})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	go func() { // the parent closes it, or ends
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	require.NoError(t, worker.Run(ctx))
	require.Empty(t, dead.letters)
}

func numberOf(id string) int {
	n, _ := strconv.Atoi(strings.TrimPrefix(id, "order-"))
	return n
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// faulty loses what a process tells the server.
type faulty struct{ js.Consumer }

func (f faulty) Next(opts ...js.FetchOpt) (js.Msg, error) {
	msg, err := f.Consumer.Next(opts...)
	if err != nil {
		return nil, err
	}
	meta, err := msg.Metadata()
	n := numberOf(msg.Headers().Get(js.MsgIDHeader))
	return faultyMsg{Msg: msg, n: n, first: err == nil && meta.NumDelivered == 1}, err
}

type faultyMsg struct {
	js.Msg
	n     int
	first bool
}

func (m faultyMsg) Ack() error {
	if m.first && m.n%lostEvery == 1 {
		return nil
	}
	return m.Msg.Ack()
}

func (m faultyMsg) InProgress() error {
	if m.first && m.n%(2*slowEvery) == 0 {
		return nil
	}
	return m.Msg.InProgress()
}

// death is a wish that a process be killed; done is closed when it is gone.
type death struct {
	pid  int
	done chan struct{}
}

// Two processes are killed in the middle of a handler, again and again: before its
// effect, after it, and while it is on its way. Acknowledgements are lost, some
// handlers take longer than the redelivery time, and some messages are published
// twice. A05, A11, B13.
func TestEveryMessageHasItsEffectOnceThoughConsumersAreKilled(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it takes half a minute")
	}
	b := startBroker(t)
	b.consume(t, func(c *js.ConsumerConfig) { c.SampleFrequency = "100%" })
	settled, terminated := b.told(t, "METRIC.CONSUMER.ACK"), b.told(t, "ADVISORY.CONSUMER.MSG_TERMINATED")
	o := startOuter(t)
	deaths, over := make(chan death), make(chan struct{})
	kill := func(pid int) {
		d := death{pid: pid, done: make(chan struct{})}
		select {
		case deaths <- d:
			<-d.done
		case <-over:
		}
	}
	o.at = func(n, pid int, record string, happen func() bool) (answered bool) {
		switch {
		case n%killEvery != 0:
			return happen()
		case n/killEvery%3 == 0:
			happen()
			kill(pid)
		case n/killEvery%3 == 1:
			kill(pid)
		default:
			kill(pid)
			o.delay(record, happen)
		}
		return false
	}
	for n := range messages {
		b.publish(t, fmt.Sprint("order-", n+1))
	}
	<-time.After(200 * time.Millisecond) // past the server's own memory of ids
	for n := range copies {
		b.publish(t, fmt.Sprint("order-", n*messages/copies+1))
	}

	address := startDedupd(t)
	running, ended := map[int]*child{}, make(chan *child)
	start := func() {
		c := startChild(t, ended, "TestProcess", natsURL+"="+b.url, dedupdAddress+"="+address, outerURL+"="+o.URL)
		running[c.cmd.Process.Pid] = c
	}
	begun := time.Now()
	start()
	start()
	kills, deliveries, done := 0, 0, map[uint64]bool{}
	for len(done) < messages+copies {
		select {
		case d := <-deaths:
			if c := running[d.pid]; c != nil {
				c.kill()
				delete(running, d.pid)
				kills++
				start()
			}
			close(d.done)
		case msg := <-settled:
			var ack struct {
				StreamSeq  uint64 `json:"stream_seq"`
				Deliveries int    `json:"deliveries"`
			}
			require.NoError(t, json.Unmarshal(msg.Data, &ack))
			if !done[ack.StreamSeq] {
				done[ack.StreamSeq] = true
				deliveries += ack.Deliveries
			}
		case c := <-ended:
			require.NotContains(t, running, c.cmd.Process.Pid, "%v\n%s", c.err, c.out)
		case <-terminated:
			require.Fail(t, "a message was parked")
		}
	}
	close(over)
	for _, c := range running {
		require.NoError(t, c.stdin.Close())
		<-c.ended
		require.NoError(t, c.err, c.out)
	}
	o.requireOnce(t, messages)
	require.Greater(t, kills, messages/killEvery/2)
	require.Greater(t, deliveries, messages+copies+messages/lostEvery)
	require.Positive(t, o.refused, "effects of killed processes came too late")
	t.Logf("%d messages in %v: %d deliveries, %d kills, %d effects came too late and were refused",
		len(done), time.Since(begun).Round(100*time.Millisecond), deliveries, kills, o.refused)
}
