package server

import (
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"log/slog"
	"strings"
	"time"

	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

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

func reserveOf(req *dedupv1.ReserveRequest) (storage.Reserve, error) {
	identity, err := identityOf(req.GetIdentity())
	return storage.Reserve{
		Identity:    identity,
		Fingerprint: fingerprintOf(req.GetFingerprints()),
		Attempt:     attemptOf(req.GetAttemptId()),
		Lease:       req.GetLease().AsDuration(),
		OnUnknown:   onUnknownOf(req.GetOnUnknown()),
		Basis:       basisOf(req.GetBasis()),
	}, err
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

// keptOf is the error that a Release asks to keep.
func keptOf(req *dedupv1.ReleaseRequest, limit int) (*storage.Outcome, error) {
	if req.GetError() == nil {
		return nil, nil //nolint:nilnil // none was sent
	}
	if req.GetEffect() == dedupv1.Effect_EFFECT_UNKNOWN {
		return nil, invalid("error", "no error can be kept with EFFECT_UNKNOWN: it settles nothing")
	}
	kept, err := outcomeOf(req.GetError(), "error", limit)
	if err == nil && kept.Success() {
		return nil, invalid("error.status", "the error to keep has status OK")
	}
	return kept, err
}

// outcomeOf checks what the proto's rules cannot, and keeps the status byte for
// byte.
func outcomeOf(o *dedupv1.Outcome, field string, limit int) (*storage.Outcome, error) {
	out := &storage.Outcome{Status: o.GetStatus()}
	if len(out.Status) > 0 {
		var st spb.Status
		if proto.Unmarshal(out.Status, &st) != nil {
			return nil, invalid(field+".status", "status is not a serialised google.rpc.Status")
		}
		out.Code = st.GetCode()
	}
	if r := o.GetResponse(); r != nil {
		if n := len(r.GetValue()); n > limit {
			return nil, invalid(field+".response.value", fmt.Sprintf(
				"response is %d bytes, at most %d are kept; leave it out and send its size and hash", n, limit))
		}
		out.HasResponse, out.TypeURL, out.Response = true, r.GetTypeUrl(), r.GetValue()
	}
	if r := o.GetOmitted(); r != nil {
		out.Omitted, out.TypeURL, out.Size = true, r.GetTypeUrl(), r.GetSize()
		copy(out.Sum[:], r.GetSha256())
	}
	var err error
	if out.Headers, err = metadataOf(o.GetHeaders(), field+".headers"); err != nil {
		return nil, err
	}
	out.Trailers, err = metadataOf(o.GetTrailers(), field+".trailers")
	return out, err
}

func metadataOf(entries []*dedupv1.MetadataEntry, field string) ([]storage.MetadataEntry, error) {
	if len(entries) == 0 {
		return nil, nil
	}
	out := make([]storage.MetadataEntry, len(entries))
	for i, e := range entries {
		if msg := metadataFault(e.GetKey(), e.GetValue()); msg != "" {
			return nil, invalid(fmt.Sprintf("%s[%d]", field, i), msg)
		}
		out[i] = storage.MetadataEntry{Key: e.GetKey(), Value: e.GetValue()}
	}
	return out, nil
}

// metadataFault says why an entry cannot be replayed: it is one caller's own, or
// gRPC could not send it.
func metadataFault(key string, value []byte) string {
	switch {
	case key == "set-cookie", key == "authorization", key == "www-authenticate":
		return key + " belongs to one caller and is never kept"
	case strings.HasPrefix(key, "grpc-"):
		return "grpc-* belongs to the transport and is never kept"
	}
	for i := range len(key) {
		c := key[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '_' && c != '.' {
			return "metadata keys hold a-z 0-9 - _ . only"
		}
	}
	if strings.HasSuffix(key, "-bin") {
		return ""
	}
	for _, c := range value {
		if c < ' ' || c > '~' {
			return "a value that is not printable ASCII needs a key that ends in -bin"
		}
	}
	return ""
}

func listOf(req *dedupv1.ListRecordsRequest) (storage.List, error) {
	q := storage.List{
		Namespace: req.GetNamespace(),
		Operation: req.GetOperation(),
		Limit:     int(cmp.Or(req.GetPageSize(), defaultPage)),
	}
	switch len(req.GetPageToken()) {
	case 0:
	case len(q.After):
		q.After = storage.RecordID(req.GetPageToken())
	default:
		return q, invalid("page_token", "page_token is not one that a page has given")
	}
	for _, s := range req.GetStates() {
		q.States = append(q.States, stateFrom(s))
	}
	return q, nil
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

func outcomeTo(o *storage.Outcome) *dedupv1.Outcome {
	if o == nil {
		return nil
	}
	out := &dedupv1.Outcome{Status: o.Status, Headers: metadataTo(o.Headers), Trailers: metadataTo(o.Trailers)}
	switch {
	case o.Omitted:
		out.Result = &dedupv1.Outcome_Omitted{Omitted: &dedupv1.OmittedResponse{
			Size: o.Size, Sha256: o.Sum[:], TypeUrl: o.TypeURL,
		}}
	case o.HasResponse:
		out.Result = &dedupv1.Outcome_Response{Response: &dedupv1.Response{TypeUrl: o.TypeURL, Value: o.Response}}
	}
	return out
}

func metadataTo(entries []storage.MetadataEntry) []*dedupv1.MetadataEntry {
	if len(entries) == 0 {
		return nil
	}
	out := make([]*dedupv1.MetadataEntry, len(entries))
	for i, e := range entries {
		out[i] = &dedupv1.MetadataEntry{Key: e.Key, Value: e.Value}
	}
	return out
}

// infoOf describes a record, which may be nil, as judged at now by a store whose
// clocks differ by up to skew.
func infoOf(id storage.RecordID, rec *storage.Record, state storage.State, now storage.Instant, skew time.Duration) *dedupv1.RecordInfo {
	info := &dedupv1.RecordInfo{RecordId: id[:], State: stateOf(state)}
	if rec == nil {
		return info
	}
	info.Identity = &dedupv1.Identity{
		Namespace: rec.Identity.Namespace,
		Operation: rec.Identity.Operation,
		Caller:    []byte(rec.Identity.Caller),
		Key:       []byte(rec.Identity.Key),
	}
	info.Mode = modeOf(rec.Mode)
	info.Fence = int64(rec.Fence)
	info.Grants = rec.Grants
	info.Version = binary.BigEndian.AppendUint64(nil, uint64(rec.VersionAt(now, skew))) //nolint:gosec // the bits of a version
	unfinished := state == storage.StateReserved || state == storage.StateUnknown
	if left := rec.LeaseEnd.Sub(now); left > 0 && unfinished {
		info.LeaseLeft = durationpb.New(left)
	}
	if rec.GrantedAt != 0 {
		info.Age = wireDuration(now.Sub(rec.GrantedAt))
	}
	info.Ends = endsOf(rec, now)
	info.CreatedAt = timeOf(rec.CreatedAt)
	info.GrantedAt = timeOf(rec.GrantedAt)
	info.LeaseEndsAt = timeOf(rec.LeaseEnd)
	info.CompletedAt = timeOf(rec.CompletedAt)
	info.Bound = rec.Bound
	info.ByOperator = rec.ByOperator()
	info.Note = rec.Note
	return info
}

// endsOf is nil for a record that has no end.
func endsOf(rec *storage.Record, now storage.Instant) *dedupv1.Ends {
	if rec == nil || rec.DropAt == 0 {
		return nil
	}
	expires := cmp.Or(rec.ExpiresAt, rec.DropAt)
	return &dedupv1.Ends{
		ExpiresIn: wireDuration(expires.Sub(now)),
		AbsentIn:  wireDuration(rec.DropAt.Sub(now)),
		ExpiresAt: timeOf(expires),
		AbsentAt:  timeOf(rec.DropAt),
	}
}

func modeOf(m storage.Mode) dedupv1.Mode {
	switch m {
	case storage.ModeRun:
		return dedupv1.Mode_MODE_RUN
	case storage.ModeReconcile:
		return dedupv1.Mode_MODE_RECONCILE
	}
	return dedupv1.Mode_MODE_UNSPECIFIED
}

func stateOf(s storage.State) dedupv1.State {
	switch s {
	case storage.StateAbsent:
		return dedupv1.State_STATE_ABSENT
	case storage.StateReserved:
		return dedupv1.State_STATE_RESERVED
	case storage.StateReleased:
		return dedupv1.State_STATE_RELEASED
	case storage.StateUnknown:
		return dedupv1.State_STATE_UNKNOWN
	case storage.StateCompleted:
		return dedupv1.State_STATE_COMPLETED
	case storage.StateExpired:
		return dedupv1.State_STATE_EXPIRED
	}
	return dedupv1.State_STATE_UNSPECIFIED
}

func stateFrom(s dedupv1.State) storage.State {
	switch s {
	case dedupv1.State_STATE_ABSENT:
		return storage.StateAbsent
	case dedupv1.State_STATE_RESERVED:
		return storage.StateReserved
	case dedupv1.State_STATE_RELEASED:
		return storage.StateReleased
	case dedupv1.State_STATE_UNKNOWN:
		return storage.StateUnknown
	case dedupv1.State_STATE_COMPLETED:
		return storage.StateCompleted
	case dedupv1.State_STATE_EXPIRED:
		return storage.StateExpired
	case dedupv1.State_STATE_UNSPECIFIED:
	}
	return 0
}

// wireDuration is never negative: what a peer acts on is a time that is left, or
// an age.
func wireDuration(d time.Duration) *durationpb.Duration { return durationpb.New(max(0, d)) }

// timeOf is nil for "none".
func timeOf(i storage.Instant) *timestamppb.Timestamp {
	if i == 0 {
		return nil
	}
	return timestamppb.New(i.Time())
}

func hexAttr(name string, sum [32]byte) slog.Attr {
	return slog.String(name, hex.EncodeToString(sum[:]))
}
