package interceptors

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/dedupd/dedupd/interceptors/guard"
	"github.com/dedupd/dedupd/interceptors/internal/keying"
)

// ChildKey names the key of a step of a keyed handler's work, for WithKey: the
// same on every run of the same request, and different from every other step's
// and record's. Calls of a keyed handler that are given no key have one of their
// own, made from method and request; name the step where a second run may send
// another request for it. It fails with FAILED_PRECONDITION outside a keyed
// handler, and for an empty name.
func ChildKey(ctx context.Context, step string) (string, error) {
	parent := guard.RecordIDFrom(ctx)
	if parent == nil {
		return "", status.Error(codes.FailedPrecondition, "a child key is for the calls of a keyed handler, hand its context on")
	}
	if step == "" {
		return "", status.Error(codes.FailedPrecondition, "name the step that the child key is for")
	}
	return keying.Step(parent, step), nil
}
