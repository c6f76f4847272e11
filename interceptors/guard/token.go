package guard

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
)

const (
	// MaxToken is the greatest length of a hand-over's token, in characters.
	MaxToken = 2560

	tokenVersion = "dh1." // a later one is refused, not guessed at
	tokenSum     = 8      // bytes of the SHA-256 that tells a damaged token
)

var (
	// ErrToken is returned by Resume for what is no token of this build, is
	// damaged, or belongs to another namespace.
	ErrToken          = errors.New("this is no token of a hand-over, or it was damaged on its way")
	errTokenVersion   = errors.New("it was made by a later version, update this process")
	errTokenNamespace = errors.New("it belongs to another namespace, resume it by an engine of that one")
)

// token names the grant for another process: its version, then in base64 of the
// URL alphabet a HandoffToken and a checksum.
func (h *hold) token() (string, error) {
	body, err := proto.MarshalOptions{Deterministic: true}.Marshal(&dedupv1.HandoffToken{
		Identity: h.identity, AttemptId: h.attemptID, Fence: h.fence, Fingerprints: h.call.Fingerprints,
		Retention: durationpb.New(h.call.Retention), OtherRuns: !h.call.ownAnswerStands(),
		EarlierGrants: h.grant.GetEarlierGrants(), MaxOutcomeBytes: h.grant.GetMaxOutcomeBytes(),
	})
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(append([]byte(tokenVersion), body...))
	token := tokenVersion + base64.RawURLEncoding.EncodeToString(append(body, sum[:tokenSum]...))
	if len(token) > MaxToken {
		return "", errors.New("the grant's fingerprints are too long to hand over")
	}
	return token, nil
}

// holdOf reads a token.
func (e *Engine) holdOf(token string) (*hold, error) {
	version, text, _ := strings.Cut(token, ".")
	if version+"." != tokenVersion || len(token) > MaxToken {
		if strings.HasPrefix(token, "dh") && len(version) < len(tokenVersion)+2 && text != "" {
			return nil, errors.Join(ErrToken, errTokenVersion)
		}
		return nil, ErrToken
	}
	raw, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || len(raw) < tokenSum {
		return nil, ErrToken
	}
	body, sum := raw[:len(raw)-tokenSum], raw[len(raw)-tokenSum:]
	want := sha256.Sum256(append([]byte(tokenVersion), body...))
	var t dedupv1.HandoffToken
	if !bytes.Equal(sum, want[:tokenSum]) || proto.Unmarshal(body, &t) != nil ||
		t.GetIdentity().GetOperation() == "" || t.GetFence() <= 0 || len(t.GetFingerprints()) == 0 {
		return nil, ErrToken
	}
	if t.GetIdentity().GetNamespace() != e.namespace {
		return nil, errors.Join(ErrToken, errTokenNamespace)
	}
	id := t.GetIdentity()
	c := Call{
		Operation: id.GetOperation(), Caller: id.GetCaller(), Key: id.GetKey(), Fingerprints: t.GetFingerprints(),
		Retention: t.GetRetention().AsDuration(), SharedWithRerun: t.GetOtherRuns(),
	}
	c.withDefaults()
	return &hold{
		work:      &work{e: e, call: c, identity: id, recordID: RecordID(id)},
		attemptID: t.GetAttemptId(), fence: t.GetFence(), mode: dedupv1.Mode_MODE_RUN,
		grant: &dedupv1.Granted{EarlierGrants: t.GetEarlierGrants(), MaxOutcomeBytes: t.GetMaxOutcomeBytes()},
	}, nil
}
