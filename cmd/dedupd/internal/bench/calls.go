package bench

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
)

// What the messages carry; the fingerprint is a SHA-256 and the response's size
// is stated in the report.
const (
	keyBytes      = 64
	responseBytes = 256
)

// reserveCall asks for a key that nobody has used.
func reserveCall(conn grpc.ClientConnInterface) call {
	dedup := dedupv1.NewDedupServiceClient(conn)
	return func(ctx context.Context, _, _ int) error {
		_, err := grant(ctx, dedup, freshReserve())
		return err
	}
}

// cycleCall reserves a fresh key and completes it.
func cycleCall(conn grpc.ClientConnInterface, done *completed) call {
	dedup := dedupv1.NewDedupServiceClient(conn)
	outcome := &dedupv1.Outcome{Result: &dedupv1.Outcome_Response{Response: &dedupv1.Response{
		TypeUrl: "type.googleapis.com/dedup.demo.v1.ChargeResponse", Value: random(responseBytes),
	}}}
	return func(ctx context.Context, caller, _ int) error {
		request := freshReserve()
		granted, err := grant(ctx, dedup, request)
		if err != nil {
			return err
		}
		_, err = dedup.Complete(ctx, &dedupv1.CompleteRequest{
			Identity: request.GetIdentity(), AttemptId: request.GetAttemptId(), Fence: granted.GetFence(), Outcome: outcome,
		})
		done.add(caller, request)
		return err
	}
}

// replayCall asks for a completed key under a new attempt id, as a retry does.
func replayCall(conn grpc.ClientConnInterface, done *completed) call {
	dedup := dedupv1.NewDedupServiceClient(conn)
	return func(ctx context.Context, caller, n int) error {
		request := done.get(caller, n)
		request.AttemptId = random(16)
		reply, err := dedup.Reserve(ctx, request)
		if err == nil && reply.GetCompleted().GetOutcome() == nil {
			err = errors.New("a completed record was not replayed")
		}
		return err
	}
}

func grant(ctx context.Context, dedup dedupv1.DedupServiceClient, request *dedupv1.ReserveRequest) (*dedupv1.Granted, error) {
	reply, err := dedup.Reserve(ctx, request)
	if err != nil {
		return nil, err
	}
	if reply.GetGranted() == nil {
		return nil, fmt.Errorf("a fresh key was not granted but answered %T", reply.GetAnswer())
	}
	return reply.GetGranted(), nil
}

func freshReserve() *dedupv1.ReserveRequest {
	key := make([]byte, keyBytes)
	hex.Encode(key, random(keyBytes/2))
	return &dedupv1.ReserveRequest{
		Identity:     &dedupv1.Identity{Namespace: "bench", Operation: "/dedup.demo.v1.PaymentsService/Charge", Key: key},
		Fingerprints: []*dedupv1.Fingerprint{{Version: 1, Digest: random(32)}},
		AttemptId:    random(16),
		Lease:        durationpb.New(0),
	}
}

func random(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return b
}

// completed remembers what each caller has completed. Callers do not share, so
// nothing is locked.
type completed struct{ requests [][]*dedupv1.ReserveRequest }

func newCompleted(callers int) *completed {
	return &completed{requests: make([][]*dedupv1.ReserveRequest, callers)}
}

func (c *completed) add(caller int, r *dedupv1.ReserveRequest) {
	c.requests[caller] = append(c.requests[caller], r)
}

func (c *completed) get(caller, n int) *dedupv1.ReserveRequest {
	mine := c.requests[caller]
	return mine[n%len(mine)]
}

func (c *completed) count() int {
	total := 0
	for _, r := range c.requests {
		total += len(r)
	}
	return total
}
