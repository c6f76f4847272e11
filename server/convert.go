package server

import (
	"context"
	"encoding/binary"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/storage"
)

// holder is who a call of a grant's holder names.
type holder struct {
	identity storage.Identity
	id       storage.RecordID
	attempt  storage.AttemptID
	fence    storage.Fence
}

func holderOf(req interface {
	GetIdentity() *dedupv1.Identity
	GetAttemptId() []byte
	GetFence() int64
},
) (holder, error) {
	identity, err := identityOf(req.GetIdentity())
	if err != nil {
		return holder{}, err
	}
	return holder{
		identity: identity,
		id:       identity.RecordID(),
		attempt:  attemptOf(req.GetAttemptId()),
		fence:    storage.Fence(req.GetFence()),
	}, nil
}

func identityOf(id *dedupv1.Identity) (storage.Identity, error) {
	out := storage.Identity{
		Namespace: id.GetNamespace(),
		Operation: id.GetOperation(),
		Caller:    string(id.GetCaller()),
		Key:       string(id.GetKey()),
	}
	return out, out.Validate()
}

// recordOf is the id of a record that is named by its parts or by its id.
func recordOf(req interface {
	GetIdentity() *dedupv1.Identity
	GetRecordId() []byte
},
) (storage.RecordID, error) {
	if b := req.GetRecordId(); len(b) == len(storage.RecordID{}) {
		return storage.RecordID(b), nil
	}
	identity, err := identityOf(req.GetIdentity())
	return identity.RecordID(), err
}

// attemptOf takes what the proto's rule has found to be 16 bytes.
func attemptOf(b []byte) (a storage.AttemptID) {
	copy(a[:], b)
	return a
}

func versionOf(b []byte) int64 {
	if len(b) != 8 {
		return 0
	}
	return int64(binary.BigEndian.Uint64(b)) //nolint:gosec // the bits of a version
}

func (c *core) reserveOf(ctx context.Context, req *dedupv1.ReserveRequest) (storage.Reserve, error) {
	identity, err := identityOf(req.GetIdentity())
	q := storage.Reserve{
		Identity:    identity,
		Fingerprint: fingerprintOf(req.GetFingerprints()),
		Attempt:     attemptOf(req.GetAttemptId()),
		Lease:       req.GetLease().AsDuration(),
		OnUnknown:   onUnknownOf(req.GetOnUnknown()),
		Basis:       basisOf(req.GetBasis()),
		Trace:       traceOf(ctx),
	}
	if claim := req.GetReplay(); claim != nil {
		q.Claim = &storage.ReplayClaim{Entry: entryIDOf(claim.GetEntryId()), Token: tokenOf(claim.GetToken())}
		q.Terms = c.terms
	}
	return q, err
}

func fingerprintOf(fps []*dedupv1.Fingerprint) storage.Fingerprint {
	if len(fps) == 0 {
		return nil
	}
	out := make(storage.Fingerprint, len(fps))
	for i, fp := range fps {
		out[i] = storage.Digest{
			Version:       fp.GetVersion(),
			Server:        string(fp.GetDigest()),
			Client:        string(fp.GetClientDigest()),
			UnknownFields: fp.GetUnknownFields(),
		}
	}
	return out
}

func onUnknownOf(o dedupv1.OnUnknown) storage.OnUnknown {
	switch o {
	case dedupv1.OnUnknown_ON_UNKNOWN_RECONCILE:
		return storage.OnUnknownReconcile
	case dedupv1.OnUnknown_ON_UNKNOWN_RERUN:
		return storage.OnUnknownRerun
	case dedupv1.OnUnknown_ON_UNKNOWN_UNSPECIFIED, dedupv1.OnUnknown_ON_UNKNOWN_REFUSE:
	}
	return storage.OnUnknownRefuse
}

func basisOf(b dedupv1.Basis) storage.Basis {
	switch b {
	case dedupv1.Basis_BASIS_BOUNDED:
		return storage.BasisBounded
	case dedupv1.Basis_BASIS_FENCED:
		return storage.BasisFenced
	case dedupv1.Basis_BASIS_INBOX:
		return storage.BasisInbox
	case dedupv1.Basis_BASIS_UNSPECIFIED:
	}
	return 0
}

// effectOf takes anything that it does not know for the worst.
func effectOf(e dedupv1.Effect) storage.Effect {
	switch e {
	case dedupv1.Effect_EFFECT_NONE:
		return storage.EffectNone
	case dedupv1.Effect_EFFECT_REPEATABLE:
		return storage.EffectRepeatable
	case dedupv1.Effect_EFFECT_UNKNOWN, dedupv1.Effect_EFFECT_UNSPECIFIED:
	}
	return storage.EffectUnknown
}

func (c *core) resolveOf(req *dedupv1.ResolveRequest) (storage.Resolve, error) {
	q := storage.Resolve{
		Version:   versionOf(req.GetVersion()),
		Completed: req.GetCompleted() != nil,
		Note:      req.GetNote(),
		Terms:     c.terms,
	}
	var err error
	if o := req.GetCompleted().GetOutcome(); o != nil {
		q.Outcome, err = outcomeOf(o, "completed.outcome", c.maxOutcome)
	}
	return q, err
}

func (c *core) granted(ans storage.Answer) *dedupv1.ReserveResponse_Granted {
	rec := ans.Record
	g := &dedupv1.Granted{
		Fence:           int64(rec.Fence),
		Mode:            modeOf(rec.Mode),
		LeaseLeft:       wireDuration(ans.LeaseLeft()),
		MaxOutcomeBytes: int64(c.maxOutcome),
		EarlierGrants:   rec.Grants - 1,
		Skew:            wireDuration(c.skew),
	}
	if rec.PrevGrant != 0 {
		g.LastGrantAge = wireDuration(ans.Now.Sub(rec.PrevGrant))
	}
	if rec.Mode == storage.ModeReconcile {
		g.LastRunEndedAge = wireDuration(ans.Now.Sub(rec.RunEnd))
	}
	return &dedupv1.ReserveResponse_Granted{Granted: g}
}

func completedOf(ans storage.Answer) *dedupv1.Completed {
	c := &dedupv1.Completed{
		Outcome:     outcomeTo(ans.Outcome),
		Kept:        ans.Kept,
		ByOperator:  ans.Record.ByOperator(),
		CompletedAt: timeOf(ans.Record.CompletedAt),
		Ends:        endsOf(ans.Record, ans.Now),
	}
	if ans.Kept { // the error's end, not the record's
		end := ans.Record.HoldEnd
		left := wireDuration(end.Sub(ans.Now))
		c.Ends = &dedupv1.Ends{ExpiresIn: left, AbsentIn: left, ExpiresAt: timeOf(end), AbsentAt: timeOf(end)}
	}
	return c
}

func inProgress(ans storage.Answer) *dedupv1.ReserveResponse_InProgress {
	return &dedupv1.ReserveResponse_InProgress{InProgress: &dedupv1.InProgress{
		RetryAfter: wireDuration(ans.RetryAfter),
		LeaseLeft:  wireDuration(ans.LeaseLeft()),
		Age:        wireDuration(ans.Now.Sub(ans.Record.GrantedAt)),
	}}
}
