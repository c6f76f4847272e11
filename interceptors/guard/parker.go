package guard

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"log/slog"
	"sync"
	"time"

	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
)

// Limits of a Parker where its configuration names none, and of what it parks.
const (
	// DefaultSpoolEntries is how many dead letters wait for dedupd at a time.
	DefaultSpoolEntries = 10_000
	// DefaultSpoolBytes is how large they may be together.
	DefaultSpoolBytes = 64 << 20
	// MaxParkedRequest is the largest request that is parked; of a larger one
	// only its size is known.
	MaxParkedRequest = 4 << 20
	// MaxParkedAttempts is how many attempts an entry tells, the last ones.
	MaxParkedAttempts = 16
)

// ParkerConfig configures a Parker.
type ParkerConfig struct {
	// DeadLetters reaches dedupd; required. Its connection must not retry by
	// itself.
	DeadLetters dedupv1.DeadLetterServiceClient
	// Spool is a directory, of this process alone, for dead letters that dedupd
	// did not take: they are on disk before the caller has its error, and survive
	// a restart. It holds keys and requests, readable by its owner only, and takes
	// up to twice SpoolBytes. Empty: they are kept in memory only.
	Spool string
	// SpoolEntries and SpoolBytes bound what waits for dedupd; zero means
	// DefaultSpoolEntries and DefaultSpoolBytes. Full: the newest is refused,
	// counted (ParkObserver.Lost) and logged.
	SpoolEntries int
	// SpoolBytes is the size of the requests and what is told of them.
	SpoolBytes int64
	// Logger takes what an operator should know. Never a key, request or response.
	// Nil: nothing is logged.
	Logger *slog.Logger
	// Observer is told of the same events, for counting.
	Observer ParkObserver
	// CloseTime is for how long Close goes on delivering; zero means
	// DefaultCloseTime.
	CloseTime time.Duration
}

// ParkObserver counts what becomes of dead letters. Every function may be nil;
// they are called from many goroutines and must not block.
type ParkObserver struct {
	// Parked: dedupd has the entry.
	Parked func(method string, kind dedupv1.DeadLetterKind)
	// Spooled: dedupd did not take it, since it is away or the namespace is at its
	// cap; it waits on this machine. Alert on it if it does not end.
	Spooled func(method string, kind dedupv1.DeadLetterKind)
	// Lost: neither dedupd nor the spool took it. Alert on it: all that is left of
	// the call is the error that its caller got.
	Lost func(method string)
	// Waiting tells how many entries wait in the spool, and their size, whenever
	// that changes.
	Waiting func(entries int, size int64)
	// SpoolFailed: an entry could not be written to disk and is kept in memory
	// only. Alert on it.
	SpoolFailed func()
}

// Parked is what became of a dead letter. Neither field set: it is lost.
type Parked struct {
	// Entry is the id that dedupd gave it, 16 bytes.
	Entry []byte
	// Spooled: it waits on this machine until dedupd takes it, and has no id yet.
	Spooled bool
}

// Parker brings dead letters to dedupd, by way of a spool on this machine where
// dedupd cannot be reached or is at its cap. One serves any number of
// connections, servers and engines of a process. It is safe for concurrent use.
type Parker struct {
	dl        dedupv1.DeadLetterServiceClient
	observe   ParkObserver
	spool     *completer
	closeTime time.Duration
	life      context.Context //nolint:containedctx // the parker's own lifetime, not a call's
	end       context.CancelFunc
	closing   sync.Once
}

// NewParker returns a parker, or an error that says what is missing. What an
// earlier process left in the spool is delivered from here on. Close it when the
// process stops; it has a goroutine only while something waits.
func NewParker(c ParkerConfig) (*Parker, error) {
	if c.DeadLetters == nil {
		return nil, errors.New("guard: give a client of dedupd's DeadLetterService")
	}
	if c.SpoolEntries < 0 || c.SpoolBytes < 0 || c.CloseTime < 0 {
		return nil, errors.New("guard: limits and times of a parker must not be negative")
	}
	bounds := limits{letters: cmp.Or(c.SpoolEntries, DefaultSpoolEntries), bytes: cmp.Or(c.SpoolBytes, DefaultSpoolBytes)}
	p := &Parker{dl: c.DeadLetters, observe: c.Observer, closeTime: cmp.Or(c.CloseTime, DefaultCloseTime)}
	var err error
	p.spool, err = newCompleter(Config{
		Logger: cmp.Or(c.Logger, slog.New(slog.DiscardHandler)),
		Observer: Observer{
			Undelivered: c.Observer.Lost, Pending: c.Observer.Waiting, JournalFailed: c.Observer.SpoolFailed,
		},
	})
	if err != nil {
		return nil, err
	}
	p.life, p.end = context.WithCancel(context.Background())
	p.spool.parks, p.spool.limits = c.DeadLetters, bounds
	if c.Spool == "" {
		return p, nil
	}
	j, letters, torn, err := openFile(c.Spool, spoolName, 2*bounds.bytes)
	if err != nil {
		p.spool.end()
		return nil, err
	}
	p.spool.takeUp(p.life, j, letters, torn)
	return p, nil
}

// Close goes on delivering for up to ParkerConfig.CloseTime; what is in the spool
// on disk stays there for the next process, what is in memory only is given up
// and counted. Close it after everything that parks. A second Close does nothing.
func (p *Parker) Close() {
	p.closing.Do(func() {
		p.spool.close(p.life, p.closeTime)
		p.end()
	})
}

// Park brings one dead letter to dedupd, waiting for its answer for up to d, or
// spools it. req names its record, kind and method; it is given a park_id here
// and must not be used afterwards. ctx gives values only: its end does not keep
// the letter from being kept.
func (p *Parker) Park(ctx context.Context, req *dedupv1.ParkRequest, d time.Duration) Parked {
	ctx = context.WithoutCancel(ctx)
	bound(req)
	req.ParkId = newAttemptID()
	l := &letter{recordID: parkedKey(req), operation: req.GetMethod(), park: req}
	if !p.spool.behind([]byte(l.recordID)) {
		entry, err := p.tell(ctx, req, d)
		switch {
		case err == nil:
			p.told(p.observe.Parked, req)
			return Parked{Entry: entry}
		case refusedForGood(err):
			p.spool.giveUp(ctx, l)
			return Parked{}
		}
	}
	if p.spool.holds(l) || p.spool.add(ctx, l) {
		p.told(p.observe.Spooled, req)
		return Parked{Spooled: true}
	}
	return Parked{}
}

// tell sends a dead letter once; without its request where dedupd takes it no
// other way.
func (p *Parker) tell(ctx context.Context, req *dedupv1.ParkRequest, d time.Duration) ([]byte, error) {
	send := func() (*dedupv1.ParkResponse, error) {
		try, cancel := trying(ctx, d)
		defer cancel()
		return p.dl.Park(try, req)
	}
	resp, err := send()
	if refusedForGood(err) && req.GetRequest() != nil && status.Code(err) != codes.NotFound {
		req.Request, req.Metadata = nil, nil
		resp, err = send()
	}
	return resp.GetEntry().GetEntryId(), err
}

// refusedForGood reports a refusal that no waiting cures.
func refusedForGood(err error) bool {
	reason, _ := reasonOf(err)
	return err != nil && answered(err) && reason != dedupv1.Reason_REASON_QUOTA_EXCEEDED
}

func (p *Parker) told(f func(string, dedupv1.DeadLetterKind), req *dedupv1.ParkRequest) {
	if f != nil {
		f(req.GetMethod(), req.GetKind())
	}
}

// bound leaves out of a dead letter what dedupd would refuse it for.
func bound(req *dedupv1.ParkRequest) {
	if len(req.GetRequest().GetValue()) > MaxParkedRequest {
		req.Request = nil
	}
	if n := len(req.GetAttempts()); n > MaxParkedAttempts {
		req.Attempts = req.GetAttempts()[n-MaxParkedAttempts:]
	}
	req.Target, req.Note = cut(req.GetTarget(), maxTarget), cut(req.GetNote(), maxNote)
	if len(req.GetStatus()) > maxParkedStatus {
		req.Status = nil
	}
}

const (
	maxTarget       = 255
	maxParkedStatus = 64 << 10

	parkTime = 2 * time.Second // that the background waits for dedupd to take a dead letter
)

// parkedKey names the one entry that a dead letter belongs to: its kind and
// record.
func parkedKey(req *dedupv1.ParkRequest) string {
	id := req.GetRecordId()
	if len(id) == 0 {
		id = RecordID(req.GetIdentity())
	}
	return req.GetKind().String() + string(id)
}

// behind reports whether a dead letter has to go by the spool: an older one of
// its key is on the way there, or dedupd is known to be away.
func (q *completer) behind(key []byte) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.down > 0 || q.latest[string(key)] != nil
}

// holds reports that the spool is full, but has an older letter of the same key:
// that one stays, and nothing is lost.
func (q *completer) holds(l *letter) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	size := letterBytes + int64(proto.Size(l.message()))
	full := q.taken >= q.limits.letters || q.bytes+size > q.limits.bytes
	return full && !q.closed && q.latest[l.recordID] != nil
}

// park keeps a record that nobody could reconcile, with the call's request, for
// an operator; it returns the entry's id in hexadecimal, empty where there is
// none yet.
func (w *work) park(ctx context.Context, why string) (entry string) {
	if w.e.parker == nil {
		return ""
	}
	req := &dedupv1.ParkRequest{}
	if w.call.Parked != nil {
		req = w.call.Parked()
	}
	if req.GetMethod() == "" {
		req.Method = w.call.Operation
	}
	req.Record = &dedupv1.ParkRequest_Identity{Identity: w.identity}
	req.Kind = dedupv1.DeadLetterKind_DEAD_LETTER_KIND_UNRECONCILED
	req.Fingerprints, req.Note = w.call.Fingerprints, why
	// Our own words: they hold no key and no request, and cannot fail to encode.
	req.Status, _ = proto.Marshal(&statuspb.Status{Code: int32(codes.FailedPrecondition), Message: cut(why, maxNote)})
	return hex.EncodeToString(w.e.parker.Park(ctx, req, parkTime).Entry)
}
