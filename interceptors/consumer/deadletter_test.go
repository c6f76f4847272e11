package consumer_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"buf.build/go/protovalidate"
	"github.com/stretchr/testify/require"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors"
	"github.com/dedupd/dedupd/interceptors/consumer"
)

// parking is dedupd's way to take dead letters: by the limits of its proto.
type parking struct {
	dedupv1.DeadLetterServiceClient
	parked []*dedupv1.ParkRequest
	err    error
}

func (p *parking) Park(_ context.Context, req *dedupv1.ParkRequest, _ ...grpc.CallOption) (*dedupv1.ParkResponse, error) {
	if err := errors.Join(p.err, protovalidate.Validate(req)); err != nil {
		return nil, err
	}
	p.parked = append(p.parked, req)
	return &dedupv1.ParkResponse{}, nil
}

func TestDeadLettersAreKeptAtDedupd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, at := newWorld(t), &parking{}
		p := w.start(func(c *consumer.Config) { c.DeadLetters = consumer.AtDedupd(at, "X-Shop", "trace") })
		m := message("a", 1)
		m.Headers = map[string][]string{"X-Shop": {"north"}, "authorization": {"secret"}, "trace": {strings.Repeat("x", 9<<10)}}
		fails := func(err error) func(context.Context) error { return func(context.Context) error { return err } }
		at.err = status.Error(codes.ResourceExhausted, "the namespace is at its cap")
		require.Equal(t, "nack run 1", words(p.Handle(t.Context(), m, fails(interceptors.Final(status.Error(codes.NotFound, "no such card"))))))
		at.err = nil
		require.Equal(t, "dead_letter final", words(p.Handle(t.Context(), m, nil)))
		require.Equal(t, "dead_letter unknown run 1", words(p.Handle(t.Context(), message("b", 1), fails(errors.New(strings.Repeat("x", 1<<17))))))
		m.Body = []byte("another order")
		require.Equal(t, "dead_letter refused", words(p.Handle(t.Context(), m, nil)))
		require.Len(t, at.parked, 3)

		final, unknown, refused := at.parked[0], at.parked[1], at.parked[2]
		require.Equal(t, dedupv1.DeadLetterKind_DEAD_LETTER_KIND_EXHAUSTED, final.GetKind())
		require.Equal(t, "a", string(final.GetIdentity().GetKey()))
		require.Equal(t, "consume orders", final.GetMethod())
		require.Len(t, final.GetFingerprints(), 1)
		var body wrapperspb.BytesValue
		require.NoError(t, proto.Unmarshal(final.GetRequest().GetValue(), &body))
		require.Equal(t, "order a", string(body.GetValue()))
		var st statuspb.Status
		require.NoError(t, proto.Unmarshal(final.GetStatus(), &st))
		require.Equal(t, "no such card", st.GetMessage())
		kept := map[string]string{}
		for _, e := range final.GetMetadata() {
			kept[e.GetKey()] = string(e.GetValue())
		}
		require.Equal(t, map[string]string{"message-id": "a", "x-shop": "north"}, kept)

		require.Equal(t, dedupv1.DeadLetterKind_DEAD_LETTER_KIND_UNRECONCILED, unknown.GetKind())
		require.Equal(t, "a message: unknown after 1 runs", unknown.GetNote())
		require.Empty(t, unknown.GetStatus(), "it is too long")
		require.Contains(t, refused.GetNote(), "its key is that of record ")
		require.NotEqual(t, final.GetIdentity().GetKey(), refused.GetIdentity().GetKey())
		require.NotEqual(t, final.GetParkId(), unknown.GetParkId())
		require.Error(t, consumer.AtDedupd(nil).Park(t.Context(), consumer.Letter{}))
	})
}

// G03: one letter, however often its message comes back.
func TestALetterIsKeptOnceForItsRecord(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		at := dedupv1.NewDeadLetterServiceClient(w.dedupd.Conn())
		p := w.start(func(c *consumer.Config) { c.DeadLetters, c.MaxRuns = consumer.AtDedupd(at), 1 })
		poison := func(context.Context) error { return interceptors.NotApplied(errors.New("cannot read it")) }
		for range 3 {
			require.Equal(t, consumer.DeadLetter, p.Handle(t.Context(), message("a", 1), poison).Action)
		}
		page, err := at.List(t.Context(), &dedupv1.DeadLetterServiceListRequest{})
		require.NoError(t, err)
		require.Len(t, page.GetEntries(), 1)
		require.EqualValues(t, 3, page.GetEntries()[0].GetCount())
		require.Equal(t, "a", string(page.GetEntries()[0].GetIdentity().GetKey()))
	})
}
