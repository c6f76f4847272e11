package interceptors_test

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	protobuf "google.golang.org/protobuf/proto"

	demov1 "github.com/dedupd/dedupd/gen/dedup/demo/v1"
	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors"
)

// letters is a way to dedupd's dead letters that can be cut.
type letters struct {
	w    *world
	down atomic.Bool
}

func (l *letters) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	if l.down.Load() {
		return status.Error(codes.Unavailable, "no way to dedupd")
	}
	return l.w.dedupd.Conn().Invoke(ctx, method, args, reply, opts...)
}

func (l *letters) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, errors.New("no streams")
}

// parking is a world whose client parks charges after three tries.
func parking(t *testing.T, s setup, opts ...interceptors.ClientOption) (*world, *letters, demov1.PaymentsServiceClient) {
	t.Helper()
	w := newWorld(t, s)
	way := &letters{w: w}
	p, err := interceptors.NewParker(interceptors.ParkerConfig{DeadLetters: dedupv1.NewDeadLetterServiceClient(way)})
	require.NoError(t, err)
	t.Cleanup(p.Close)
	conn := w.dial(t, append([]interceptors.ClientOption{
		interceptors.WithDeadLetters(p), interceptors.WithParked(charge), interceptors.WithMaxAttempts(3),
	}, opts...))
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	return w, way, demov1.NewPaymentsServiceClient(conn)
}

// entries are the dead letters that dedupd has, whole.
func (w *world) entries(t *testing.T, states ...dedupv1.DeadLetterState) []*dedupv1.DeadLetter {
	t.Helper()
	dl := dedupv1.NewDeadLetterServiceClient(w.dedupd.Conn())
	page, err := dl.List(t.Context(), &dedupv1.DeadLetterServiceListRequest{Filter: &dedupv1.DeadLetterFilter{States: states}})
	require.NoError(t, err)
	var all []*dedupv1.DeadLetter
	for _, e := range page.GetEntries() {
		got, err := dl.Get(t.Context(), &dedupv1.DeadLetterServiceGetRequest{EntryId: e.GetEntryId()})
		require.NoError(t, err)
		all = append(all, got.GetEntry())
	}
	return all
}

const (
	exhausted    = dedupv1.DeadLetterKind_DEAD_LETTER_KIND_EXHAUSTED
	unreconciled = dedupv1.DeadLetterKind_DEAD_LETTER_KIND_UNRECONCILED
	resolved     = dedupv1.DeadLetterState_DEAD_LETTER_STATE_RESOLVED
)

var errBusy = status.Error(codes.Unavailable, "the ledger is busy")

func always(err error) func(context.Context, int, *demov1.ChargeRequest) (*demov1.ChargeResponse, error) {
	return func(context.Context, int, *demov1.ChargeRequest) (*demov1.ChargeResponse, error) {
		return nil, interceptors.NotApplied(err)
	}
}

func TestACallIsParkedOnceItsTriesAreUsedUpAndNotBefore(t *testing.T) { // G05
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, _, client := parking(t, setup{}, interceptors.WithParkedMetadata("x-region"))
		w.handle = fails(interceptors.NotApplied(errBusy), interceptors.NotApplied(errBusy))
		_, err := client.Charge(t.Context(), order(), interceptors.WithKey("well"))
		require.NoError(t, err)
		require.Empty(t, w.entries(t), "twice failed, then done: nothing to park")

		began := time.Now()
		w.handle = always(errBusy)
		ctx := metadata.AppendToOutgoingContext(t.Context(), "x-region", "eu", "x-other", "o", "authorization", "ada")
		_, err = client.Charge(ctx, order(), interceptors.WithKey("ill"))
		require.Equal(t, codes.Unavailable, status.Code(err), "the caller has its error")
		require.ErrorContains(t, err, "the ledger is busy")
		id, ok := interceptors.DeadLetterOf(fmt.Errorf("pay: %w", err))
		require.True(t, ok)
		require.Equal(t, 6, w.called(), "three for each")

		all := w.entries(t)
		require.Len(t, all, 1)
		e := all[0]
		require.Equal(t, hex.EncodeToString(e.GetEntryId()), id)
		require.Equal(t, exhausted, e.GetKind())
		require.Equal(t, "ill", string(e.GetIdentity().GetKey()))
		require.Equal(t, "ada", string(e.GetIdentity().GetCaller()), "by the record that the service named")
		require.Equal(t, charge, e.GetMethod())
		require.Equal(t, "passthrough:///payments", e.GetTarget())
		var sent demov1.ChargeRequest
		require.NoError(t, protobuf.Unmarshal(e.GetRequest().GetValue(), &sent))
		require.True(t, protobuf.Equal(order(), &sent))
		require.Equal(t, "type.googleapis.com/dedup.demo.v1.ChargeRequest", e.GetRequest().GetTypeUrl())
		require.Len(t, e.GetMetadata(), 1, "by the list alone")
		require.Equal(t, "eu", string(e.GetMetadata()[0].GetValue()))
		var last statuspb.Status
		require.NoError(t, protobuf.Unmarshal(e.GetStatus(), &last))
		require.Equal(t, "the ledger is busy", last.GetMessage())
		require.Len(t, e.GetAttempts(), 3)
		for _, a := range e.GetAttempts() {
			require.Equal(t, int32(codes.Unavailable), a.GetCode())
			require.False(t, a.GetAt().AsTime().Before(began.Truncate(time.Microsecond)))
			began = a.GetAt().AsTime()
		}
	})
}

// G03: one key is one entry, however often it fails.
func TestAKeyThatKeepsFailingIsOneEntryWithACount(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, _, client := parking(t, setup{})
		w.handle = always(errBusy)
		for range 3 {
			_, err := client.Charge(t.Context(), order(), interceptors.WithKey("k"))
			require.Error(t, err)
		}
		all := w.entries(t)
		require.Len(t, all, 1)
		require.EqualValues(t, 3, all[0].GetCount())
	})
}

func TestAPermanentErrorIsToldAndNotParked(t *testing.T) { // E06
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var told []codes.Code
		w, _, client := parking(t, setup{}, interceptors.WithCallObserver(interceptors.CallObserver{
			Permanent: func(_ context.Context, _ string, code codes.Code) { told = append(told, code) },
		}))
		w.handle = always(status.Error(codes.InvalidArgument, "no such currency"))
		_, err := client.Charge(t.Context(), order(), interceptors.WithKey("k"))
		require.Equal(t, codes.InvalidArgument, status.Code(err))
		_, ok := interceptors.DeadLetterOf(err)
		require.False(t, ok)
		require.Equal(t, []codes.Code{codes.InvalidArgument}, told)
		require.Empty(t, w.entries(t))
	})
}

func TestACallIsNotParkedUnasked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, _, client := parking(t, setup{})
		w.handle = always(status.Error(codes.Aborted, "later")) // nothing was applied
		ctx, cancel := context.WithCancel(t.Context())
		go func() { // the caller gives up in the first wait
			w.awaitCalls(1)
			cancel()
		}()
		_, err := client.Charge(ctx, order(), interceptors.WithKey("left"))
		require.Equal(t, codes.Canceled, status.Code(err))
		other := w.dial(t, []interceptors.ClientOption{interceptors.WithMaxAttempts(2)})
		_, err = demov1.NewPaymentsServiceClient(other).Charge(t.Context(), order(), interceptors.WithKey("other"))
		require.Error(t, err)
		require.NoError(t, other.Close())
		require.Empty(t, w.entries(t), "nothing was applied and its caller does not want it any more; the method is not named")
	})
}

func (w *world) awaitCalls(n int) {
	for w.called() < n {
		pass(time.Millisecond)
	}
	pass(10 * time.Millisecond)
}

func TestAnUnknownOutcomeIsParkedThoughItsTimeIsOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, _, client := parking(t, setup{}, interceptors.WithIdentity("test", "ada"))
		w.handle = takes(time.Minute)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		_, err := client.Charge(ctx, order(), interceptors.WithKey("k"))
		require.ErrorIs(t, err, interceptors.ErrOutcomeUnknown)
		require.Less(t, time.Since(began), 1300*time.Millisecond)
		_, ok := interceptors.DeadLetterOf(err)
		require.True(t, ok)
		require.Len(t, w.entries(t), 1)
		pass(2 * time.Minute) // the run ends, with success
		all := w.entries(t, resolved)
		require.Len(t, all, 1, "what was done needs nobody")
		require.Equal(t, dedupv1.ReplayResult_REPLAY_RESULT_SUPERSEDED, all[0].GetResult())
	})
}

func TestWhereNobodyKnowsTheRecordItIsTold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		told := 0
		w, _, client := parking(t, setup{}, interceptors.WithCallObserver(interceptors.CallObserver{
			Unparked: func(context.Context, string) { told++ },
		}))
		w.refuse()
		_, err := client.Charge(t.Context(), order(), interceptors.WithKey("k"))
		require.Error(t, err)
		require.Equal(t, 1, told)
		require.Empty(t, w.entries(t))
	})
}

func TestACallFailsWithDedupdAwayAndIsParkedLater(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, way, client := parking(t, setup{}, interceptors.WithIdentity("test", "ada"))
		w.refuse() // the service
		way.down.Store(true)
		_, err := client.Charge(t.Context(), order(), interceptors.WithKey("k"))
		require.Equal(t, codes.Unavailable, status.Code(err))
		id, ok := interceptors.DeadLetterOf(err)
		require.True(t, ok, "it is in the spool")
		require.Empty(t, id)
		way.down.Store(false)
		pass(time.Minute)
		all := w.entries(t)
		require.Len(t, all, 1)
		require.Len(t, all[0].GetAttempts(), 3)
	})
}

// G04: a parked key is not blocked: the record decides, and its success settles
// the entry.
func TestAParkedKeysOwnRetrySettlesIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, _, client := parking(t, setup{})
		w.handle = always(errBusy)
		_, err := client.Charge(t.Context(), order(), interceptors.WithKey("k"))
		require.Error(t, err)
		w.handle = nil
		_, err = client.Charge(t.Context(), order(), interceptors.WithKey("k"))
		require.NoError(t, err)
		require.Empty(t, w.entries(t))
		all := w.entries(t, resolved)
		require.Len(t, all, 1)
		require.Equal(t, dedupv1.ReplayResult_REPLAY_RESULT_SUPERSEDED, all[0].GetResult())
	})
}

// G04: where the outcome is unknown the refusal names the entry.
func TestARefusalNamesTheEntryThatWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, _, client := parking(t, setup{})
		w.handle = fails(status.Error(codes.Internal, "the bank hung up"))
		_, err := client.Charge(t.Context(), order(), interceptors.WithKey("k"), interceptors.WithMaxAttempts(1))
		require.ErrorIs(t, err, interceptors.ErrOutcomeUnknown)
		id, ok := interceptors.DeadLetterOf(err)
		require.True(t, ok)
		pass(2 * time.Minute) // what could settle by itself has had its time
		_, err = w.bare(t).Charge(metadata.AppendToOutgoingContext(t.Context(), interceptors.HeaderKey, "k"), order())
		requireReason(t, err, codes.FailedPrecondition, dedupv1.Reason_REASON_OUTCOME_UNKNOWN)
		again, ok := interceptors.DeadLetterOf(err)
		require.True(t, ok)
		require.Equal(t, id, again)
		require.Equal(t, 1, w.ran())
	})
}

// D05: a transient error is no result: what is parked for it can be done.
func TestAParkedTransientErrorIsNotTheRecordsAnswer(t *testing.T) {
	t.Parallel()
	for _, code := range []codes.Code{codes.Unavailable, codes.Aborted, codes.ResourceExhausted} {
		t.Run(code.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w, _, client := parking(t, setup{})
				w.handle = always(status.Error(code, "later"))
				_, err := client.Charge(t.Context(), order(), interceptors.WithKey("k"))
				require.Equal(t, code, status.Code(err))
				require.Len(t, w.entries(t), 1)
				require.Equal(t, dedupv1.State_STATE_RELEASED, w.state(t, "k"))
			})
		})
	}
}

func TestParkingOptionsAreChecked(t *testing.T) {
	t.Parallel()
	_, err := interceptors.ClientOptions(interceptors.WithParked(charge))
	require.ErrorContains(t, err, "WithDeadLetters")
	_, err = interceptors.ClientOptions(interceptors.WithDeadLetters(nil), interceptors.WithParked("Charge"), interceptors.WithParkedMetadata("authorization"))
	require.ErrorContains(t, err, "NewParker")
	require.ErrorContains(t, err, "no full method name")
	require.ErrorContains(t, err, "authorization")
}
