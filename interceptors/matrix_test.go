package interceptors_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	demov1 "github.com/dedupd/dedupd/gen/dedup/demo/v1"
	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors"
)

// Where a call can be hit.
const (
	reserving    = "reserving"
	beforeEffect = "in the handler, before its effect"
	afterEffect  = "in the handler, after its effect"
	completing   = "completing"
	reconciling  = "reconciling an earlier run"

	completingMore = "completing, where there is a reconciler"
)

// What can hit it.
const (
	panics      = "panic"
	hangsUp     = "the client hangs up"
	runsOut     = "the deadline passes"
	restarts    = "dedupd restarts"
	unreachable = "dedupd cannot be reached"
	losesLease  = "the lease is lost"
)

// cell is one field of the matrix: what the tables say of it.
type cell struct {
	phase, fault string
	first        string        // what the client that was hit gets
	state        dedupv1.State // of the record, two minutes later
	second       string        // what the next call with the key gets then
	effects      int           // in all
}

const absent = dedupv1.State_STATE_ABSENT

// matrix is interceptors.md 3 and the tables of semantics.md, for a method
// whose unmarked errors leave the outcome unknown; only an earlier run has a
// reconciler, which rules that nothing was applied.
func matrix() []cell {
	return []cell{
		{reserving, hangsUp, "gone", absent, "answer", 1},
		{reserving, runsOut, "gone", absent, "answer", 1},
		{reserving, restarts, "unavailable", absent, "answer", 1},
		{reserving, unreachable, "unavailable", absent, "answer", 1},
		{reserving, losesLease, "unavailable", released, "answer", 1}, // granted, and never read

		{beforeEffect, panics, "broken", unknown, "unknown", 0},
		{beforeEffect, hangsUp, "gone", completed, "replay", 1},
		{beforeEffect, runsOut, "gone", completed, "replay", 1},
		{beforeEffect, restarts, "answer", completed, "replay", 1},
		{beforeEffect, unreachable, "answer", completed, "replay", 1},
		{beforeEffect, losesLease, "canceled", unknown, "unknown", 0},

		{afterEffect, panics, "broken", unknown, "unknown", 1},
		{afterEffect, hangsUp, "gone", completed, "replay", 1},
		{afterEffect, runsOut, "gone", completed, "replay", 1},
		{afterEffect, restarts, "answer", completed, "replay", 1},
		{afterEffect, unreachable, "answer", completed, "replay", 1},
		{afterEffect, losesLease, "answer", completed, "replay", 1}, // nobody was granted since

		{completing, hangsUp, "gone", completed, "replay", 1},
		{completing, runsOut, "gone", completed, "replay", 1},
		{completing, restarts, "answer", completed, "replay", 1},
		{completing, unreachable, "answer", completed, "replay", 1},
		{completing, losesLease, "answer", completed, "replay", 1},

		// The answer is withheld: a later run might answer otherwise.
		{completingMore, hangsUp, "gone", completed, "replay", 1},
		{completingMore, restarts, "withheld", completed, "replay", 1},
		{completingMore, unreachable, "withheld", completed, "replay", 1},

		{reconciling, panics, "unknown", released, "answer", 1}, // freed by the background reconciler
		{reconciling, hangsUp, "gone", completed, "replay", 1},
		{reconciling, runsOut, "gone", completed, "replay", 1},
		{reconciling, restarts, "unavailable", unknown, "answer", 1},
		{reconciling, unreachable, "unavailable", unknown, "answer", 1},
		{reconciling, losesLease, "in progress", released, "answer", 1}, // found not applied, too late to run
	}
}

func TestEveryFaultInEveryPhaseEndsAsTheTablesSay(t *testing.T) { // A01, A02, A05, A09, A11, H01, H02
	t.Parallel()
	for _, c := range matrix() {
		t.Run(c.phase+"/"+c.fault, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { newScene(t, c).play(t) })
		})
	}
}

// scene plays one cell.
type scene struct {
	cell
	*world
	client  demov1.PaymentsServiceClient // a plain one: it shows what the service says
	hangUp  context.CancelFunc
	hit     atomic.Bool // the fault has struck
	cut     atomic.Bool // no lease is extended, nor an outcome taken
	effects atomic.Int64
}

func newScene(t *testing.T, c cell) *scene {
	t.Helper()
	s := &scene{cell: c}
	opts := []interceptors.ServerOption{interceptors.Before(recovered)}
	if c.phase == reconciling || c.phase == completingMore {
		opts = append(opts, interceptors.WithReconciler(charge, interceptors.Fenced, s.reconcile))
	}
	s.world = newWorld(t, setup{server: opts})
	s.client = s.bare(t)
	s.ask, s.handle = s.onTheWay, s.handler
	s.lost = func(method string) bool { return c.phase == reserving && method == "Reserve" && s.cut.Load() }
	return s
}

// recovered is what services have in front of everything.
func recovered(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any, err error) {
	defer func() {
		if recover() != nil {
			err = status.Error(codes.Internal, "it panicked")
		}
	}()
	return handler(ctx, req)
}

func (s *scene) play(t *testing.T) {
	t.Helper()
	if s.phase == reconciling {
		_, err := dedupv1.NewDedupServiceClient(s.dedupd.Conn()).Reserve(t.Context(), s.crashed())
		require.NoError(t, err)
		pass(31 * time.Second)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if s.fault == runsOut {
		ctx, cancel = context.WithTimeout(ctx, 3*time.Second)
		defer cancel()
	}
	ctx, s.hangUp = context.WithCancel(ctx)
	defer s.hangUp()
	require.Equal(t, s.first, s.call(ctx), "what the call gets that was hit")
	require.True(t, s.hit.Load())

	pass(2 * time.Minute)
	require.Equal(t, s.cell.state.String(), s.world.state(t, "k").String())
	s.down.Store(false)
	s.cut.Store(false)
	require.Equal(t, s.second, s.call(t.Context()), "what the next one gets")
	require.EqualValues(t, s.cell.effects, s.effects.Load())
}

// crashed is the Reserve of a process that died since.
func (s *scene) crashed() *dedupv1.ReserveRequest {
	fp, _ := interceptors.Fingerprint(charge, order())
	return &dedupv1.ReserveRequest{
		Identity:     &dedupv1.Identity{Namespace: "test", Operation: charge, Caller: []byte("ada"), Key: []byte("k")},
		Fingerprints: []*dedupv1.Fingerprint{fp}, AttemptId: []byte("a dead process's"),
	}
}

// call makes the call and says what it gets.
func (s *scene) call(ctx context.Context) string {
	var trailer metadata.MD
	_, err := s.client.Charge(metadata.AppendToOutgoingContext(ctx, interceptors.HeaderKey, "k"), order(), grpc.Trailer(&trailer))
	reason, _ := interceptors.ReasonOf(err)
	switch {
	case err == nil && len(trailer[interceptors.TrailerReplayed]) > 0:
		return "replay"
	case err == nil:
		return "answer"
	case ctx.Err() != nil:
		return "gone"
	case reason == dedupv1.Reason_REASON_OUTCOME_UNKNOWN:
		return "unknown"
	case reason == dedupv1.Reason_REASON_STORE_UNAVAILABLE && !strings.Contains(err.Error(), "outcome is unknown"):
		return "unavailable"
	case reason == dedupv1.Reason_REASON_STORE_UNAVAILABLE:
		return "withheld"
	case reason == dedupv1.Reason_REASON_IN_PROGRESS:
		return "in progress"
	case status.Code(err) == codes.Internal:
		return "broken"
	case status.Code(err) == codes.Canceled:
		return "canceled"
	}
	return err.Error()
}

// strike lets the fault happen, once, in its phase.
func (s *scene) strike(ctx context.Context, phase string) {
	if s.phase != phase || s.hit.Swap(true) {
		return
	}
	switch s.fault {
	case panics:
		panic("boom") //nolint:forbidigo // the case
	case hangsUp:
		s.hangUp()
		synctest.Wait()
	case runsOut:
		pass(4 * time.Second)
	case restarts, unreachable:
		s.down.Store(true)
		away := 3 * time.Second
		if s.fault == unreachable {
			away = time.Minute
		}
		time.AfterFunc(away, func() { s.down.Store(false) })
	case losesLease:
		s.cut.Store(true)
		time.AfterFunc(time.Minute, func() { s.cut.Store(false) })
		if phase != reserving && phase != completing {
			<-ctx.Done()
		}
		if phase == afterEffect {
			pass(10 * time.Second) // its last step takes until after the lease's end
		}
	}
}

// onTheWay is between the service and dedupd.
func (s *scene) onTheWay(ctx context.Context, method string) error {
	switch method {
	case "Reserve":
		s.strike(ctx, reserving)
	case "Complete":
		s.strike(ctx, completing)
		s.strike(ctx, completingMore)
	}
	if s.down.Load() || s.cut.Load() && (method == "Extend" || method == "Complete" && s.phase == completing) {
		return status.Error(codes.Unavailable, "no way to dedupd")
	}
	return ctx.Err()
}

func (s *scene) handler(ctx context.Context, n int, _ *demov1.ChargeRequest) (*demov1.ChargeResponse, error) {
	s.strike(ctx, beforeEffect)
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.effects.Add(1)
	s.strike(ctx, afterEffect)
	return receipt(n), nil
}

func (s *scene) reconcile(ctx context.Context, _ interceptors.Attempt, _ proto) (interceptors.Verdict, error) {
	s.strike(ctx, reconciling)
	return interceptors.VerdictNotApplied(), nil
}
