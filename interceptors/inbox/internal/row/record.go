package row

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/protobuf/encoding/protodelim"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors/guard"
)

const (
	// DefaultKeep is how long a local row is kept when Local.Keep is zero.
	DefaultKeep = 30 * 24 * time.Hour
	// localMaxOutcome is the largest response that a local row keeps.
	localMaxOutcome = 4 << 20
)

// Local names a record that lives in the table alone, without dedupd.
type Local struct {
	// Identity names the record: its key within caller, operation and namespace. An
	// operation and a key are required.
	Identity *dedupv1.Identity
	// Fingerprints tell another request under the same key apart, as
	// interceptors.Fingerprint makes them; at least one is required.
	Fingerprints []*dedupv1.Fingerprint
	// Keep is how long repeats get the answer, from the effect on; then the key is
	// new again. Zero means DefaultKeep.
	Keep time.Duration
}

type localKey struct{}

// WithLocal returns a context under which an inbox keeps the record l.
func WithLocal(ctx context.Context, l Local) (context.Context, error) {
	switch {
	case l.Identity.GetOperation() == "" || len(l.Identity.GetKey()) == 0:
		return nil, errors.New("inbox: a local record needs an operation and a key")
	case len(l.Fingerprints) == 0:
		return nil, errors.New("inbox: a local record needs a fingerprint of its request")
	case l.Keep < 0:
		return nil, errors.New("inbox: the time to keep a local record must not be negative")
	}
	if _, guarded := guard.AttemptFrom(ctx); guarded {
		return nil, errors.New("inbox: this context has a record of dedupd already; use a local one where there is none")
	}
	return context.WithValue(ctx, localKey{}, &l), nil
}

// record is what ctx says that is being run.
type record struct {
	id           []byte
	fence        int64 // 0 where there is no dedupd: the row's own lock is all there is
	fingerprints []*dedupv1.Fingerprint
	maxOutcome   int64
	keep         time.Duration // only where there is no dedupd
}

// recordOf finds the record of ctx.
func recordOf(ctx context.Context) (record, error) {
	if a, ok := guard.AttemptFrom(ctx); ok {
		return recordOfAttempt(a), nil
	}
	if l, ok := ctx.Value(localKey{}).(*Local); ok {
		return record{
			id: guard.RecordID(l.Identity), fingerprints: l.Fingerprints,
			maxOutcome: localMaxOutcome, keep: cmp.Or(l.Keep, DefaultKeep),
		}, nil
	}
	return record{}, ErrNoRecord
}

func recordOfAttempt(a guard.Attempt) record {
	return record{id: a.RecordID, fence: a.Fence, fingerprints: a.Fingerprints, maxOutcome: a.MaxOutcomeBytes}
}

func (r record) local() bool { return r.keep > 0 }

// encodeFingerprints writes each as a delimited message.
func encodeFingerprints(fingerprints []*dedupv1.Fingerprint) ([]byte, error) {
	var b bytes.Buffer
	for _, f := range fingerprints {
		if _, err := protodelim.MarshalTo(&b, f); err != nil {
			return nil, fmt.Errorf("inbox: a fingerprint cannot be encoded: %w", err)
		}
	}
	return b.Bytes(), nil
}

func decodeFingerprints(b []byte) ([]*dedupv1.Fingerprint, error) {
	var out []*dedupv1.Fingerprint
	for r := bytes.NewReader(b); ; {
		f := &dedupv1.Fingerprint{}
		err := protodelim.UnmarshalFrom(r, f)
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, fmt.Errorf("inbox: the row's fingerprint cannot be read: %w", err)
		}
		out = append(out, f)
	}
}

// interval is d as PostgreSQL and CockroachDB read it.
func interval(d time.Duration) string { return fmt.Sprintf("%d microseconds", d.Microseconds()) }
