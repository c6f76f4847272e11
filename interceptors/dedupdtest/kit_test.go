package dedupdtest_test

import (
	"context"
	"fmt"
	gotesting "testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	demov1 "github.com/dedupd/dedupd/gen/dedup/demo/v1"
	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors"
	"github.com/dedupd/dedupd/interceptors/dedupdtest"
)

func TestMain(m *gotesting.M) { goleak.VerifyTestMain(m) }

const method = demov1.PaymentsService_Charge_FullMethodName

// recorder is a test that takes down what fails.
type recorder struct {
	*gotesting.T
	faults []string
}

func (r *recorder) Errorf(format string, args ...any) {
	r.faults = append(r.faults, fmt.Sprintf(format, args...))
}

// service is a payments service whose handler is the test's.
type service struct {
	demov1.UnimplementedPaymentsServiceServer
	charge func(*demov1.ChargeRequest) (*demov1.ChargeResponse, error)
}

func (s *service) Charge(_ context.Context, req *demov1.ChargeRequest) (*demov1.ChargeResponse, error) {
	return s.charge(req)
}

// world is a kit with a service of it.
func world(t *gotesting.T, handler func(k *dedupdtest.Kit, n int) (*demov1.ChargeResponse, error), opts ...interceptors.ServerOption) (*recorder, *dedupdtest.Kit, dedupdtest.Call) {
	t.Helper()
	r := &recorder{T: t}
	k := dedupdtest.New(r)
	runs := 0
	conn := k.Serve(func(s grpc.ServiceRegistrar) {
		demov1.RegisterPaymentsServiceServer(s, &service{charge: func(*demov1.ChargeRequest) (*demov1.ChargeResponse, error) {
			runs++
			return handler(k, runs)
		}})
	}, append(opts, interceptors.SharedCaller())...)
	return r, k, dedupdtest.Unary(demov1.NewPaymentsServiceClient(conn).Charge, &demov1.ChargeRequest{Order: "1", Amount: 12})
}

// charges has an effect and another answer in every run.
func charges(k *dedupdtest.Kit, n int) (*demov1.ChargeResponse, error) {
	k.Effect()
	return &demov1.ChargeResponse{ChargeId: fmt.Sprint("charge ", n)}, nil
}

func ruling(v interceptors.Verdict) interceptors.ServerOption {
	return interceptors.WithReconciler(method, interceptors.Bounded, func(context.Context, interceptors.Attempt, proto.Message) (interceptors.Verdict, error) {
		return v, nil
	})
}

func policy(p *dedupv1.MethodPolicy) interceptors.ServerOption {
	return interceptors.WithMethod(method, interceptors.Method{Policy: p})
}

func TestAServiceWithoutAReconcilerSaysUnknownWhereItCannotKnow(t *gotesting.T) {
	t.Parallel()
	r, k, call := world(t, charges)
	require.Equal(t, "first answered, second replayed, effects 1", k.Twice(call).String())
	require.Equal(t, "first answered, second replayed, effects 1", k.LoseReply(call).String())
	require.Equal(t, "first answered, second outcome unknown, effects 1", k.KillBetween(call).String())
	require.Equal(t, "first answered, second outcome unknown, effects 1", k.LapseLease(call).String())
	require.Equal(t, 4, k.Effects())
	require.Empty(t, r.faults)
}

func TestAMethodThatIgnoresKeysIsFoundOut(t *gotesting.T) {
	t.Parallel()
	r, k, call := world(t, charges, policy(&dedupv1.MethodPolicy{Keys: dedupv1.KeyRule_KEY_RULE_OFF}))
	require.Equal(t, 2, k.Twice(call).Effects)
	require.Len(t, r.faults, 2)
	require.Contains(t, r.faults[0], "twice: the effect happened 2 times under one key")
	require.Contains(t, r.faults[1], "different responses")
	k.LoseReply(call)
	k.LapseLease(call)
	require.Len(t, r.faults, 6)
}

func TestAReconcilerThatIsWrongIsFoundOut(t *gotesting.T) {
	t.Parallel()
	rulings := map[string]interceptors.Verdict{
		"the effect happened 2 times":       interceptors.VerdictNotApplied(),
		"they are different responses":      interceptors.VerdictApplied(&demov1.ChargeResponse{ChargeId: "another"}),
		"one is an error, the other is not": interceptors.VerdictFailed(status.Error(codes.NotFound, "no such card")),
	}
	for says, v := range rulings {
		r, k, call := world(t, charges, ruling(v))
		k.KillBetween(call)
		require.NotEmpty(t, r.faults, says)
		require.Contains(t, r.faults[0], says)
	}
}

func TestAReconcilerThatOnlyLooksHasToWaitItsTime(t *gotesting.T) {
	t.Parallel()
	r, k, call := world(t, func(k *dedupdtest.Kit, n int) (*demov1.ChargeResponse, error) {
		if n == 1 { // it dies before its effect
			return nil, status.Error(codes.Internal, "it broke")
		}
		return charges(k, n)
	}, ruling(interceptors.VerdictNotSeen()))
	require.Equal(t, "first error Internal, second answered, effects 1", k.KillBetween(call).String())
	require.Equal(t, "first answered, second outcome unknown, effects 1", k.LapseLease(call).String())
	require.Empty(t, r.faults)
}

func TestAStoredErrorIsAnAnswerToo(t *gotesting.T) {
	t.Parallel()
	r, k, call := world(t, func(*dedupdtest.Kit, int) (*demov1.ChargeResponse, error) {
		return nil, interceptors.Final(status.Error(codes.NotFound, "no such card"))
	})
	require.Equal(t, "first error NotFound, second replayed error NotFound, effects 0", k.Twice(call).String())
	require.Equal(t, "first error NotFound, second replayed error NotFound, effects 0", k.LoseReply(call).String())
	require.Empty(t, r.faults)
	k.LapseLease(call)
	require.Len(t, r.faults, 1)
	require.Contains(t, r.faults[0], "call Kit.Effect")
}

func TestAKitSaysWhatItMisses(t *gotesting.T) {
	t.Parallel()
	r := &recorder{T: t}
	k := dedupdtest.New(r)
	k.Twice(nil)
	require.Len(t, r.faults, 1)
	require.Contains(t, r.faults[0], "Kit.Serve")
	k.Serve(func(grpc.ServiceRegistrar) {})
	require.Len(t, r.faults, 2)
	require.Contains(t, r.faults[1], "SharedCaller")
	_, err := k.Dedup().Lookup(t.Context(), &dedupv1.LookupRequest{Record: &dedupv1.LookupRequest_RecordId{RecordId: make([]byte, 32)}})
	require.NoError(t, err)
}
