package nethttp

import (
	"context"
	"errors"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors/guard"
)

// ParkWith keeps the deliveries whose outcome nobody knows as dead letters with
// dedupd, by the given parker, or in its spool while dedupd is away. The method of
// the entry is WebhookConfig.Operation, which is no gRPC method: once the record is
// settled, the sender's next delivery is answered by it.
func ParkWith(p *guard.Parker) Parker { return parker{p} }

type parker struct{ p *guard.Parker }

// Park implements Parker.
func (k parker) Park(ctx context.Context, l Letter) error {
	kept := k.p.Park(ctx, &dedupv1.ParkRequest{
		Record: &dedupv1.ParkRequest_Identity{Identity: l.Identity}, Method: l.Identity.GetOperation(), Target: l.Path,
		Kind: dedupv1.DeadLetterKind_DEAD_LETTER_KIND_UNRECONCILED, Fingerprints: l.Fingerprints,
		Request: &dedupv1.Response{TypeUrl: l.ContentType, Value: l.Body},
	}, parkTime)
	if kept.Entry == nil && !kept.Spooled {
		return errors.New("neither dedupd nor the spool took the dead letter")
	}
	return nil
}
