package replay

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	mrand "math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors/internal/tries"
	"github.com/dedupd/dedupd/interceptors/policy"
)

// Defaults of a Config.
const (
	// DefaultConcurrency is how many entries are replayed at a time.
	DefaultConcurrency = 4
	// DefaultRate is how many replays begin in a second.
	DefaultRate = 10
	// DefaultCallTime is how long one replay may take.
	DefaultCallTime = 30 * time.Second
	// DefaultInterval is how long to wait where there is nothing to replay.
	DefaultInterval = 10 * time.Second

	claimMargin = 15 * time.Second // of a claim's lease, beside the call
	maxCallTime = 14 * time.Minute
	askTime     = 5 * time.Second // for one call to dedupd

	failBase, failCap   = time.Minute, time.Hour          // waits of an entry after its failures
	probeBase, probeCap = time.Second, time.Minute        // waits between probes of a service that is down
	askBase, askCap     = 100 * time.Millisecond, askTime // between tries of a call to dedupd
	settleTries         = 5
)

// Config configures a Replayer.
type Config struct {
	// DeadLetters reaches dedupd; required.
	DeadLetters dedupv1.DeadLetterServiceClient
	// Conn reaches the service that the entries were sent to; required. Best made
	// with interceptors.ClientOptions and whatever else the service's clients use,
	// credentials above all: the service must know the replayer.
	Conn grpc.ClientConnInterface
	// Namespace is that of the entries; required for Run.
	Namespace string
	// Operations are those that Run replays; none means all of the namespace.
	Operations []string
	// RequestedOnly leaves to Run only what an operator has asked for (`dedupd dlq
	// requeue`, or the console).
	RequestedOnly bool
	// Operator says that a person asked: a final error may be opened again.
	Operator bool
	// Concurrency is how many entries are replayed at a time, once an answer has
	// shown that the service looks at keys: until then it is one. Zero means
	// DefaultConcurrency.
	Concurrency int
	// Rate is how many replays begin in a second; zero means DefaultRate.
	Rate float64
	// CallTime is how long one replay may take, up to 14 min; zero means
	// DefaultCallTime. The claim lasts a little longer.
	CallTime time.Duration
	// Interval is how long to wait where there is nothing to replay; zero means
	// DefaultInterval.
	Interval time.Duration
	// CallOptions go with every replay.
	CallOptions []grpc.CallOption
	// Logger takes what an operator should know. Never a key, request or response.
	// Nil: nothing is logged.
	Logger *slog.Logger
	// Observer is told what comes of the replays.
	Observer Observer
}

// Observer counts what happens. Every function may be nil; they are called from
// many goroutines and must not block.
type Observer struct {
	// Settled: a replay is over.
	Settled func(Result)
	// Down: the service has become unreachable, or is back.
	Down func(down bool)
}

func (c *Config) withDefaults() {
	c.Concurrency = cmp.Or(c.Concurrency, DefaultConcurrency)
	c.Rate = cmp.Or(c.Rate, DefaultRate)
	c.CallTime = cmp.Or(c.CallTime, DefaultCallTime)
	c.Interval = cmp.Or(c.Interval, DefaultInterval)
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
}

func (c *Config) validate() error {
	switch {
	case c.DeadLetters == nil:
		return errors.New("replay: give a client of dedupd's DeadLetterService")
	case c.Conn == nil:
		return errors.New("replay: give a connection to the service that the entries were sent to")
	case c.Concurrency < 1 || c.Rate <= 0 || c.Interval < 0:
		return errors.New("replay: concurrency, rate and interval must be more than zero")
	case c.CallTime < time.Second || c.CallTime > maxCallTime:
		return fmt.Errorf("replay: call time is %v, 1s to %v are allowed", c.CallTime, maxCallTime)
	}
	return nil
}

// Replayer replays dead letters. It is safe for concurrent use.
type Replayer struct {
	Config
	limit *rate.Limiter
	gate  *gate
	fail  policy.Backoff
	ask   policy.Backoff

	unprotected atomic.Bool // the service does not look at keys

	mu   sync.Mutex
	idle time.Time // until when nobody asks for entries
	dry  int       // claims in a row that dedupd did not answer
}

// New returns a replayer, or an error that says what is missing.
func New(c Config) (*Replayer, error) {
	c.withDefaults()
	if err := c.validate(); err != nil {
		return nil, err
	}
	fail, err := policy.NewBackoff(failBase, failCap, policy.DefaultFactor)
	if err != nil {
		return nil, err
	}
	ask, err := policy.NewBackoff(askBase, askCap, policy.DefaultFactor)
	if err != nil {
		return nil, err
	}
	probe, err := policy.NewBackoff(probeBase, probeCap, policy.DefaultFactor)
	if err != nil {
		return nil, err
	}
	return &Replayer{
		Config: c, limit: rate.NewLimiter(rate.Limit(c.Rate), 1), fail: fail, ask: ask,
		gate: newGate(probe, c.Observer.Down),
	}, nil
}

// Run replays what is parked, until ctx ends: then it claims nothing more, lets
// the replays that are on their way end (up to Config.CallTime), settles them and
// returns nil. An error says what is missing, or that the service was found not to look
// at keys, which ends it at once.
func (r *Replayer) Run(ctx context.Context) error {
	if r.Namespace == "" {
		return errors.New("replay: name the namespace of the entries")
	}
	var workers sync.WaitGroup
	for range r.Concurrency {
		workers.Go(func() {
			for r.next(ctx) {
			}
		})
	}
	workers.Wait()
	if r.unprotected.Load() {
		return errUnprotected
	}
	return nil
}

// next replays one entry, or waits where there is none; false when ctx has ended.
func (r *Replayer) next(ctx context.Context) bool {
	if !r.rest(ctx) || r.limit.Wait(ctx) != nil {
		return false
	}
	leave, ok := r.gate.enter(ctx)
	if !ok {
		return false
	}
	if r.unprotected.Load() {
		leave(neither)
		return false
	}
	entry, token, err := r.claimAny(ctx)
	if entry == nil {
		leave(neither)
		r.pauseAll(ctx, err)
		return ctx.Err() == nil
	}
	leave(r.replay(ctx, entry, token).reached())
	return ctx.Err() == nil
}

// rest waits until somebody may ask dedupd for entries.
func (r *Replayer) rest(ctx context.Context) bool {
	r.mu.Lock()
	wait := time.Until(r.idle)
	r.mu.Unlock()
	return tries.Pause(ctx, wait)
}

// pauseAll lets nobody ask for a while: there is nothing, or dedupd is away.
func (r *Replayer) pauseAll(ctx context.Context, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	wait := r.Interval
	switch {
	case err == nil:
		r.dry = 0
	case ctx.Err() != nil:
		return
	default:
		wait = r.ask.Wait(r.dry, 0, mrand.Int64N)
		r.dry++
		if r.dry == settleTries {
			r.Logger.LogAttrs(ctx, slog.LevelWarn, "dedupd cannot be asked for dead letters; asking further", slog.String("code", codeOf(err).String()))
		}
	}
	if until := time.Now().Add(wait); until.After(r.idle) {
		r.idle = until
	}
}

// claimAny takes one entry; nil where there is none.
func (r *Replayer) claimAny(ctx context.Context) (*dedupv1.DeadLetter, []byte, error) {
	operations := r.Operations
	if len(operations) == 0 {
		operations = []string{""}
	}
	for _, operation := range operations {
		token := newToken()
		resp, err := r.claim(ctx, &dedupv1.ClaimRequest{
			Token: token, Limit: 1, RequestedOnly: r.RequestedOnly,
			Filter: &dedupv1.DeadLetterFilter{Namespace: r.Namespace, Operation: operation, Kinds: []dedupv1.DeadLetterKind{
				dedupv1.DeadLetterKind_DEAD_LETTER_KIND_EXHAUSTED, dedupv1.DeadLetterKind_DEAD_LETTER_KIND_UNRECONCILED,
			}},
		})
		if err != nil {
			return nil, nil, err
		}
		if len(resp.GetEntries()) > 0 {
			return resp.GetEntries()[0], token, nil
		}
	}
	return nil, nil, nil
}

func (r *Replayer) claim(ctx context.Context, req *dedupv1.ClaimRequest) (*dedupv1.ClaimResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	req.Lease, req.Operator = durationpb.New(r.CallTime+claimMargin), r.Operator
	return r.DeadLetters.Claim(ctx, req)
}

// Replay replays the named entries, once each, and hands every result to each,
// one after the other, in the order in which they end. The first is sent alone, so
// that a service that does not look at keys does the work of one. Once the service has not
// answered three times in a row the rest is not sent: FAILED, not counted. It
// returns an error where dedupd cannot be asked, or ctx ends: then what is on its
// way ends first.
func (r *Replayer) Replay(ctx context.Context, entries [][]byte, each func(Result)) error {
	var mu sync.Mutex
	one := func(ctx context.Context, id []byte) error {
		res, err := r.named(ctx, id)
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		each(res)
		return nil
	}
	for ; len(entries) > 0 && !r.gate.open(); entries = entries[1:] {
		if err := one(ctx, entries[0]); err != nil {
			return err
		}
	}
	work, working := errgroup.WithContext(ctx)
	work.SetLimit(r.Concurrency)
	for _, id := range entries {
		if working.Err() != nil {
			break
		}
		work.Go(func() error { return one(working, id) })
	}
	if err := work.Wait(); err != nil {
		return err
	}
	return ctx.Err()
}

var errGone = status.Error(codes.Unavailable, "nothing was sent: the service has not answered the calls before")

// named replays one entry by its id.
func (r *Replayer) named(ctx context.Context, id []byte) (Result, error) {
	if err := r.limit.Wait(ctx); err != nil {
		return Result{}, err
	}
	leave, ok := r.gate.enter(ctx)
	if !ok {
		return Result{}, ctx.Err()
	}
	if r.unprotected.Load() {
		leave(neither)
		return Result{EntryID: id, Outcome: Failed, Err: errNoKeys}, nil
	}
	if r.gate.gone() {
		leave(neither)
		return Result{EntryID: id, Outcome: Failed, Err: errGone}, nil
	}
	token := newToken()
	resp, err := r.claim(ctx, &dedupv1.ClaimRequest{Token: token, EntryIds: [][]byte{id}})
	switch {
	case err != nil:
		leave(neither)
		return Result{}, err
	case len(resp.GetEntries()) == 0:
		leave(neither)
		return refusedClaim(id, resp.GetRefusals()), nil
	}
	res := r.replay(ctx, resp.GetEntries()[0], token)
	leave(res.reached())
	return res, nil
}

func newToken() []byte {
	token := make([]byte, 16)
	_, _ = rand.Read(token) // never fails: crypto/rand ends the process rather than return an error
	return token
}
