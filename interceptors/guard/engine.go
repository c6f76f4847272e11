package guard

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors/internal/hooks"
	"github.com/dedupd/dedupd/interceptors/internal/seldom"
	"github.com/dedupd/dedupd/interceptors/policy"
)

// Config configures an Engine.
type Config struct {
	// Dedup reaches dedupd; required. Its connection must not retry by itself
	// (grpc.WithDisableRetry), so that retries of two layers do not multiply.
	Dedup dedupv1.DedupServiceClient
	// Namespace is the unit of administration that the records belong to;
	// required.
	Namespace string
	// Logger takes what an operator should know: lost leases, answers that could
	// not be delivered. Never a key, request or response. Nil: nothing is logged.
	Logger *slog.Logger
	// Observer is told of the same events, for counting.
	Observer Observer
	// Journal is a directory, of this process alone, for what dedupd did not
	// acknowledge: outcomes survive a restart of the service there. It holds keys
	// and responses, readable by its owner only, up to 128 MiB. Empty: they are
	// kept in memory only.
	Journal string
	// Parker takes what nobody could reconcile, with its request (Call.Parked). Nil:
	// it is counted and logged only.
	Parker *Parker
	// Shadow is the namespace of Observe; empty means Namespace + ".shadow".
	Shadow string
	// CloseTime is for how long Close goes on delivering; zero means
	// DefaultCloseTime.
	CloseTime time.Duration
}

// DefaultCloseTime is how long Close delivers when Config.CloseTime is zero.
const DefaultCloseTime = 5 * time.Second

func (c *Config) withDefaults() {
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	c.Shadow = cmp.Or(c.Shadow, c.Namespace+".shadow")
	c.CloseTime = cmp.Or(c.CloseTime, DefaultCloseTime)
}

func (c *Config) validate() error {
	if c.Dedup == nil {
		return errors.New("guard: give a client of dedupd")
	}
	if c.Namespace == "" {
		return errors.New("guard: name the namespace that the records belong to")
	}
	if c.CloseTime < 0 {
		return errors.New("guard: times must not be negative")
	}
	return nil
}

// Observer counts what happens. Every function may be nil; they are called from
// many goroutines and must not block.
type Observer struct {
	// Granted: a run begins.
	Granted func(operation string)
	// Replayed: a repeat got the stored answer.
	Replayed func(operation string)
	// Refused: the work was not run, or its answer was withheld.
	Refused func(operation string, reason dedupv1.Reason)
	// LeaseLost: a run was cancelled because its lease could not be kept.
	LeaseLost func(operation string)
	// Unacknowledged: a Complete or Release did not reach dedupd in time; it is
	// tried further in the background.
	Unacknowledged func(operation string)
	// Undelivered: such a Complete or Release was given up.
	Undelivered func(operation string)
	// Superseded: a Complete came too late, another holder had the record.
	Superseded func(operation string)
	// Reconciled: the background reconciler settled an unknown outcome.
	Reconciled func(operation string)
	// Unreconciled: it asked for the last time, the outcome is still unknown.
	// Alert on it: an operator must resolve the record.
	Unreconciled func(operation string)
	// Partial: a reconciler found that a part of the effect happened. Alert on it:
	// the record is held until an operator resolves it.
	Partial func(operation string)
	// Pending tells how many messages wait in the background for dedupd, and their
	// size, whenever that changes.
	Pending func(messages int, size int64)
	// CompleterFull: such a message found no room; its outcome is lost to repeats
	// unless a reconciler or an operator finds it. Alert on it.
	CompleterFull func(operation string)
	// JournalFailed: an outcome could not be written to the journal. Alert on it.
	JournalFailed func()
}

// And returns an observer that tells o, then next.
func (o Observer) And(next Observer) Observer {
	return Observer{
		Granted:        hooks.Join1(o.Granted, next.Granted),
		Replayed:       hooks.Join1(o.Replayed, next.Replayed),
		Refused:        hooks.Join2(o.Refused, next.Refused),
		LeaseLost:      hooks.Join1(o.LeaseLost, next.LeaseLost),
		Unacknowledged: hooks.Join1(o.Unacknowledged, next.Unacknowledged),
		Undelivered:    hooks.Join1(o.Undelivered, next.Undelivered),
		Superseded:     hooks.Join1(o.Superseded, next.Superseded),
		Reconciled:     hooks.Join1(o.Reconciled, next.Reconciled),
		Unreconciled:   hooks.Join1(o.Unreconciled, next.Unreconciled),
		Partial:        hooks.Join1(o.Partial, next.Partial),
		Pending:        hooks.Join2(o.Pending, next.Pending),
		CompleterFull:  hooks.Join1(o.CompleterFull, next.CompleterFull),
		JournalFailed:  hooks.Join0(o.JournalFailed, next.JournalFailed),
	}
}

func count0(f func()) {
	if f != nil {
		f()
	}
}

func count(f func(string), operation string) {
	if f != nil {
		f(operation)
	}
}

// Engine runs keyed work. It is safe for concurrent use.
type Engine struct {
	dedup     dedupv1.DedupServiceClient
	namespace string
	log       *slog.Logger
	observe   Observer
	often     policy.Backoff // between tries that somebody waits for
	completer *completer
	prober    *prober
	parker    *Parker // nil: nothing is parked
	watch     *watcher
	closeTime time.Duration
	gate      gate
	away      seldom.Log // of calls refused since dedupd cannot be reached

	// life ends with Close; runs stop by it.
	life context.Context //nolint:containedctx // the engine's own lifetime, not a call's
	end  context.CancelCauseFunc

	closing sync.Once

	mu      sync.Mutex
	running map[string]struct{} // records that this process runs right now
}

// New returns an engine, or an error that says what is missing. What an earlier
// process left in the journal is delivered from here on. Close the engine when
// the service stops; it has a goroutine only while there is something to do in
// the background.
func New(c Config) (*Engine, error) {
	c.withDefaults()
	if err := c.validate(); err != nil {
		return nil, err
	}
	q, err := newCompleter(c)
	if err != nil {
		return nil, err
	}
	e := &Engine{
		dedup: c.Dedup, namespace: c.Namespace, log: c.Logger, observe: c.Observer,
		often: q.often, completer: q, closeTime: c.CloseTime, parker: c.Parker,
		running: map[string]struct{}{}, watch: &watcher{dedup: c.Dedup, namespace: c.Shadow, onWay: make(chan struct{}, maxObserved)},
	}
	if e.gate, err = newGate(); err != nil {
		return nil, err
	}
	e.life, e.end = context.WithCancelCause(context.Background())
	if e.prober, err = newProber(e); err != nil {
		return nil, err
	}
	if c.Journal != "" {
		if err := e.completer.reopen(e.life, c.Journal); err != nil {
			return nil, err
		}
	}
	return e, nil
}

// Namespace returns the namespace that the records belong to.
func (e *Engine) Namespace() string { return e.namespace }

// Close ends the contexts of all runs with ErrClosed, goes on delivering for up to
// Config.CloseTime, and gives up what is left then; what is in the journal stays
// there for the next process. It waits for all that to have stopped, and half of
// that time for a reconciler that ignores its context. Close after the runs have
// ended: one that still goes on delivers its outcome for as long as a foreground
// delivery takes, and no longer. A second Close does nothing.
func (e *Engine) Close() {
	e.closing.Do(func() {
		e.end(ErrClosed)
		until := time.Now().Add(e.closeTime)
		e.prober.close(e.life, e.closeTime/2)
		e.watch.close()
		e.completer.close(e.life, max(0, time.Until(until)))
	})
}

// work is one call on its way through the engine.
type work struct {
	e        *Engine
	call     Call
	identity *dedupv1.Identity
	recordID []byte
	probing  bool   // by the background reconciler
	trace    string // of the run that a stored answer goes back to
}

// Do runs the work, or answers from the record. The Result says whether the
// run's own answer stands or a stored one takes its place. Every error is a
// *RefusalError, except for a caller that left before anything ran (its context's
// error, as a status) and a Call that is malformed. A panic of the run is
// recorded as an unknown outcome and goes on.
func (e *Engine) Do(ctx context.Context, c Call, run Run) (Result, error) {
	c.withDefaults()
	if err := c.validate(); err != nil {
		return Result{}, err
	}
	id := &dedupv1.Identity{Namespace: e.namespace, Operation: c.Operation, Caller: c.Caller, Key: c.Key}
	w := &work{e: e, call: c, identity: id, recordID: RecordID(id)}
	if e.life.Err() != nil {
		return Result{RecordID: w.recordID}, ErrClosed
	}
	res, err := w.do(ctx, run)
	if err == nil {
		res.RecordID, res.Traceparent = w.recordID, w.trace
		if res.Stored != nil && !res.Applied {
			count(e.observe.Replayed, c.Operation)
		}
		return res, nil
	}
	var refusal *RefusalError
	if errors.As(err, &refusal) && e.observe.Refused != nil {
		e.observe.Refused(c.Operation, refusal.Reason)
	}
	return Result{RecordID: w.recordID}, err
}

func (w *work) do(ctx context.Context, run Run) (Result, error) {
	h, stored, err := w.reserve(ctx)
	if err != nil {
		return Result{}, err
	}
	if h == nil {
		return Result{Stored: stored, Ends: stored.GetEnds()}, nil
	}
	runCtx, stop := h.start(ctx)
	defer stop()
	if h.mode == dedupv1.Mode_MODE_RECONCILE {
		res, begun, err := h.reconcile(runCtx)
		if !begun {
			return res, err
		}
	}
	return h.run(runCtx, run)
}

// runs notes that this process runs a record's work, until the function that it
// returns is called.
func (e *Engine) runs(recordID []byte) (ended func()) {
	id := string(recordID)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.running[id] = struct{}{}
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.running, id)
	}
}

// knows reports whether this process runs the record's work, or has something to
// tell dedupd of it.
func (e *Engine) knows(recordID []byte) bool {
	e.mu.Lock()
	_, running := e.running[string(recordID)]
	e.mu.Unlock()
	return running || e.completer.knows(recordID)
}

// run runs the work under the lease and delivers how it ended.
func (h *hold) run(ctx context.Context, run Run) (Result, error) {
	count(h.e.observe.Granted, h.call.Operation)
	defer h.e.runs(h.recordID)()
	ended := false
	defer func() {
		// A panic, or a handler that ended its goroutine: it goes on its way, but
		// first it is on record that nobody knows what was applied.
		if !ended && !h.handed.Load() {
			h.release(ctx, Ending{Effect: dedupv1.Effect_EFFECT_UNKNOWN, Note: "the handler panicked"})
		}
	}()
	ending := run(ctx, h.attempt())
	ended = true
	h.ran.Store(true)
	if h.handed.Load() {
		return h.handedOver(ending)
	}
	if ending.Outcome == nil {
		left, gone := h.release(ctx, ending)
		if gone {
			return h.overtaken(ctx)
		}
		return Result{Left: left}, nil
	}
	return h.complete(ctx, ending.Outcome)
}
