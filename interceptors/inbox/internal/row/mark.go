package row

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors"
	"github.com/dedupd/dedupd/interceptors/guard"
	"github.com/dedupd/dedupd/interceptors/policy"
)

// rereads bounds how often a row that vanishes between two statements is asked for.
const rereads = 3

// Answer is what an earlier run of the same request stored.
type Answer struct {
	outcome *dedupv1.Outcome
}

// Outcome returns the answer as dedupd stores it.
func (a *Answer) Outcome() *dedupv1.Outcome { return a.outcome }

// Message returns the response; nil where it was nil. ErrNotStored says that it was
// too large to keep.
func (a *Answer) Message() (proto.Message, error) {
	if a.outcome.GetOmitted() != nil {
		return nil, ErrNotStored
	}
	return interceptors.AnswerOf(a.outcome, "")
}

// As returns the answer as a response of type R.
func As[R proto.Message](a *Answer) (R, error) {
	var none R
	m, err := a.Message()
	if err != nil || m == nil {
		return none, err
	}
	r, ok := m.(R)
	if !ok {
		return none, fmt.Errorf("inbox: the stored answer is a %s, not a %T", m.ProtoReflect().Descriptor().FullName(), none)
	}
	return r, nil
}

// Mark claims the record of ctx for the transaction of q.
func Mark(ctx context.Context, q Queries) (*Answer, error) {
	r, err := recordOf(ctx)
	if err != nil {
		return nil, err
	}
	found, err := r.take(ctx, q, markSQL())
	switch {
	case errors.Is(err, errAgain):
		return nil, err
	case err != nil:
		return nil, fmt.Errorf("inbox: the record cannot be marked: %w", err)
	case found == nil:
		return nil, nil
	case found.state != done && found.fence > r.fence:
		return nil, stale(ctx)
	case found.state != done:
		return nil, ErrNotDone
	case !guard.SameRequest(found.fingerprints, r.fingerprints):
		return nil, reused(ctx)
	}
	guard.KeptWithEffect(ctx, found.outcome)
	return &Answer{outcome: found.outcome}, nil
}

// Done writes the answer of the record that q's transaction has marked.
func Done(ctx context.Context, q Queries, resp proto.Message) error {
	r, err := recordOf(ctx)
	if err != nil {
		return err
	}
	// From here on the commit may come at any time.
	guard.MarkEffect(ctx)
	return r.done(ctx, q, resp)
}

func (r record) done(ctx context.Context, q Queries, resp proto.Message) error {
	o := interceptors.RunEnding(ctx, resp, nil, guard.Attempt{MaxOutcomeBytes: r.maxOutcome}, policy.Default(), 0).Outcome
	if o == nil {
		return errors.New("inbox: the response cannot be encoded")
	}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(o)
	if err != nil {
		return fmt.Errorf("inbox: the answer cannot be encoded: %w", err)
	}
	var fence int64
	found, err := q.Row(ctx, doneSQL, []any{r.id, r.fence, b, r.local(), interval(r.keep)}, &fence)
	if err != nil {
		return fmt.Errorf("inbox: the answer cannot be written: %w", err)
	}
	if !found {
		return ErrNotMarked
	}
	guard.KeptWithEffect(ctx, o)
	return nil
}

// found is a row that could not be taken.
type found struct {
	fence        int64
	state        string
	fingerprints []*dedupv1.Fingerprint
	outcome      *dedupv1.Outcome
}

// errAgain says that the row came and went between two statements.
var errAgain = errors.New("inbox: the row was deleted while it was read; run the transaction again")

// take runs a taking statement. nil: the row is ours; else it is what stands in the
// way.
func (r record) take(ctx context.Context, q Queries, statement string) (*found, error) {
	fingerprints, err := encodeFingerprints(r.fingerprints)
	if err != nil {
		return nil, err
	}
	for range rereads {
		var fence int64
		ours, err := q.Row(ctx, statement, []any{r.id, r.fence, fingerprints, interval(AskAfter)}, &fence)
		if ours || err != nil {
			return nil, err
		}
		f, err := r.read(ctx, q)
		if f != nil || err != nil {
			return f, err
		}
	}
	return nil, errAgain
}

// read returns the row; nil where there is none.
func (r record) read(ctx context.Context, q Queries) (*found, error) {
	var f found
	var fingerprints, outcome []byte
	there, err := q.Row(ctx, readSQL, []any{r.id}, &f.fence, &f.state, &fingerprints, &outcome)
	if err != nil || !there {
		return nil, err
	}
	if f.fingerprints, err = decodeFingerprints(fingerprints); err != nil {
		return nil, err
	}
	f.outcome = &dedupv1.Outcome{}
	if err := proto.Unmarshal(outcome, f.outcome); err != nil {
		return nil, fmt.Errorf("inbox: the row's answer cannot be read: %w", err)
	}
	return &f, nil
}
