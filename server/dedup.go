package server

import (
	"context"
	"log/slog"
	"time"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/storage"
)

// core is what the services share.
type core struct {
	store      stored
	terms      storage.Terms
	maxOutcome int
	skew       time.Duration
	waiters    *waiters
	metrics    *metrics
	hot        *hotKeys
	census     *census
	began      time.Time
	version    string
	log        *slog.Logger
}

// dedupService is the protocol of handlers and those who ask for them. The
// messages it is given have passed the limits of the proto.
type dedupService struct {
	dedupv1.UnimplementedDedupServiceServer
	*core
}

func (s *dedupService) Reserve(ctx context.Context, req *dedupv1.ReserveRequest) (*dedupv1.ReserveResponse, error) {
	q, err := s.reserveOf(ctx, req)
	if err != nil {
		return nil, err
	}
	ans, err := s.reserve(ctx, q, req.GetWait().AsDuration())
	if err != nil {
		return nil, err
	}
	id := reservedID(q, ans)
	s.metrics.operation(q.Identity).reserved(ans)
	s.hot.asked(id, q.Identity, ans)
	res := &dedupv1.ReserveResponse{RecordId: id[:]}
	switch ans.Verdict {
	case storage.VerdictGranted:
		res.Answer = s.granted(ans)
		if ans.Record.Mode == storage.ModeReconcile {
			res.Traceparent = traceparentOf(ans.Record)
		}
	case storage.VerdictCompleted:
		res.Answer = &dedupv1.ReserveResponse_Completed{Completed: completedOf(ans)}
		res.Traceparent = traceparentOf(ans.Record)
	case storage.VerdictInProgress:
		res.Answer = inProgress(ans)
	case storage.VerdictOK, storage.VerdictOutcomeUnknown, storage.VerdictKeyReused, storage.VerdictKeyExpired,
		storage.VerdictStaleHolder, storage.VerdictNotReconciled, storage.VerdictRecordChanged, storage.VerdictNotFound,
		storage.VerdictEntryChanged, storage.VerdictClaimInvalid, storage.VerdictFull:
		return nil, refusalOf(ans)
	}
	if q.Claim != nil {
		res.Replayed = identityTo(answerIdentity(ans))
	}
	return res, nil
}

// reservedID is the id of the record that an answer to q is about: of a replay the
// entry's, whoever the caller is.
func reservedID(q storage.Reserve, ans storage.Answer) storage.RecordID {
	if q.Claim != nil && ans.Record != nil {
		return ans.Record.ID()
	}
	return q.Identity.RecordID()
}

// reserve asks the store, and holds the caller while somebody else has the key.
func (s *dedupService) reserve(ctx context.Context, q storage.Reserve, wait time.Duration) (storage.Answer, error) {
	ans, err := s.store.Reserve(ctx, q)
	if err != nil || ans.Verdict != storage.VerdictInProgress || wait == 0 {
		return ans, err
	}
	place, ok := s.waiters.join(ctx, reservedID(q, ans), wait, false)
	if !ok {
		return ans, nil
	}
	s.metrics.operation(q.Identity).waits.Inc()
	woken := false
	for {
		ans, err = s.store.Reserve(ctx, q)
		if err != nil || ans.Verdict != storage.VerdictInProgress {
			place.leave(ans, err == nil && ans.Verdict == storage.VerdictGranted, woken)
			return ans, err
		}
		if ans, woken, err = place.wait(ctx, ans); !woken {
			place.leave(ans, false, false)
			return ans, err
		}
	}
}

func (s *dedupService) BeginRun(ctx context.Context, req *dedupv1.BeginRunRequest) (*dedupv1.BeginRunResponse, error) {
	who, err := holderOf(req)
	if err != nil {
		return nil, err
	}
	ans, err := s.store.BeginRun(ctx, who.id, storage.BeginRun{Attempt: who.attempt, Fence: who.fence})
	if err != nil {
		return nil, err
	}
	if ans.Verdict != storage.VerdictOK {
		return nil, refusalOf(ans)
	}
	return &dedupv1.BeginRunResponse{LeaseLeft: wireDuration(ans.LeaseLeft())}, nil
}

func (s *dedupService) Complete(ctx context.Context, req *dedupv1.CompleteRequest) (*dedupv1.CompleteResponse, error) {
	who, err := holderOf(req)
	if err != nil {
		return nil, err
	}
	outcome, err := outcomeOf(req.GetOutcome(), "outcome", s.maxOutcome)
	if err != nil {
		return nil, err
	}
	ans, err := s.store.Complete(ctx, who.id, storage.Complete{
		Identity: who.identity, Attempt: who.attempt, Fence: who.fence, Outcome: outcome,
		Retention: req.GetRetention().AsDuration(), Terms: s.terms,
	})
	s.changed(who.id, ans, err)
	if err != nil {
		return nil, err
	}
	if ans.Conflict != nil {
		s.conflict(ctx, who, ans.Conflict)
		s.metrics.parked(ans)
	}
	if ans.Verdict != storage.VerdictOK {
		return nil, refusalOf(ans)
	}
	s.metrics.operation(who.identity).completed(ans)
	return &dedupv1.CompleteResponse{State: stateOf(ans.State), Ends: endsOf(ans.Record, ans.Now)}, nil
}

// conflict reports what may be the trace of a double effect. It is the only
// trace that there is, so it is counted and logged before anything else is said.
func (s *dedupService) conflict(ctx context.Context, who holder, c *storage.Conflict) {
	s.metrics.operation(who.identity).conflicts.Inc()
	s.log.LogAttrs(ctx, slog.LevelError, "conflict: a refused Complete may be the trace of a double effect",
		slog.String("record", who.id.Short()),
		slog.String("namespace", who.identity.Namespace),
		slog.String("operation", who.identity.Operation),
		slog.Int64("refused_fence", int64(c.RefusedFence)),
		slog.Int64("record_fence", int64(c.RecordFence)),
		slog.Bool("refused_success", c.Success),
		hexAttr("refused_hash", c.RefusedHash),
		hexAttr("record_hash", c.RecordHash),
		slog.Time("at", c.At.Time()),
	)
}

func (s *dedupService) Extend(ctx context.Context, req *dedupv1.ExtendRequest) (*dedupv1.ExtendResponse, error) {
	who, err := holderOf(req)
	if err != nil {
		return nil, err
	}
	q := storage.Extend{Attempt: who.attempt, Fence: who.fence, Lease: req.GetLease().AsDuration()}
	ans, err := s.store.Extend(ctx, who.id, q)
	if err != nil {
		return nil, err
	}
	if ans.Verdict != storage.VerdictOK {
		return nil, refusalOf(ans)
	}
	return &dedupv1.ExtendResponse{LeaseLeft: wireDuration(ans.LeaseLeft())}, nil
}

func (s *dedupService) Release(ctx context.Context, req *dedupv1.ReleaseRequest) (*dedupv1.ReleaseResponse, error) {
	who, err := holderOf(req)
	if err != nil {
		return nil, err
	}
	kept, err := keptOf(req, s.maxOutcome)
	if err != nil {
		return nil, err
	}
	ans, err := s.store.Release(ctx, storage.Release{
		Identity: who.identity, Attempt: who.attempt, Fence: who.fence,
		Effect: effectOf(req.GetEffect()), Error: kept, Hold: req.GetHold().AsDuration(),
		Note: req.GetNote(), Terms: s.terms,
	})
	s.changed(who.id, ans, err)
	if err != nil {
		return nil, err
	}
	if ans.Verdict != storage.VerdictOK {
		return nil, refusalOf(ans)
	}
	return &dedupv1.ReleaseResponse{State: stateOf(ans.State), Bound: ans.Record != nil && ans.Record.Bound}, nil
}

// changed wakes those who wait for the record. After an error too: the write may
// have happened all the same, and whoever is woken asks the store.
func (s *core) changed(id storage.RecordID, ans storage.Answer, err error) {
	switch {
	case err == nil && ans.Verdict == storage.VerdictOK && ans.State == storage.StateCompleted:
		s.waiters.settled(id)
	case err != nil || ans.Verdict == storage.VerdictOK:
		s.waiters.freed(id)
	}
}

func (s *dedupService) Lookup(ctx context.Context, req *dedupv1.LookupRequest) (*dedupv1.LookupResponse, error) {
	id, err := recordOf(req)
	if err != nil {
		return nil, err
	}
	q := storage.Lookup{Fingerprint: fingerprintOf(req.GetFingerprints())}
	ans, err := s.lookup(ctx, id, q, req.GetWait().AsDuration())
	if err != nil {
		return nil, err
	}
	if ans.Verdict != storage.VerdictOK {
		return nil, refusalOf(ans)
	}
	res := &dedupv1.LookupResponse{Record: infoOf(id, ans.Record, ans.State, ans.Now, s.skew)}
	if res.Record.Identity == nil {
		res.Record.Identity = req.GetIdentity()
	}
	if ans.Outcome != nil || len(q.Fingerprint) > 0 && ans.State == storage.StateCompleted {
		res.Completed = completedOf(ans)
	}
	return res, nil
}

// lookup asks the store, and holds the caller while the record is RESERVED.
func (s *dedupService) lookup(ctx context.Context, id storage.RecordID, q storage.Lookup, wait time.Duration) (storage.Answer, error) {
	ans, err := s.store.Lookup(ctx, id, q)
	if err != nil || !isRunning(ans) || wait == 0 {
		return ans, err
	}
	place, ok := s.waiters.join(ctx, id, wait, true)
	if !ok {
		return ans, nil
	}
	defer func() { place.leave(ans, false, false) }()
	for {
		ans, err = s.store.Lookup(ctx, id, q)
		if err != nil || !isRunning(ans) {
			return ans, err
		}
		var again bool
		if ans, again, err = place.wait(ctx, ans); !again {
			return ans, err
		}
	}
}

func isRunning(ans storage.Answer) bool {
	return ans.Verdict == storage.VerdictOK && ans.State == storage.StateReserved
}
