package consumer

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors/policy"
)

// Limits of an entry's metadata at dedupd.
const (
	maxHeaders     = 63 // beside the message's id
	maxHeaderName  = 255
	maxHeaderValue = 8 << 10

	// messageID is the metadata entry that holds Message.ID.
	messageID = "message-id"
)

type atDedupd struct {
	client  dedupv1.DeadLetterServiceClient
	headers []string
}

// AtDedupd keeps dead letters with dedupd, beside their records: `dedupd dlq` and
// its alerts know them, a record that is parked does not expire, and one that is
// settled after all closes its letter. There is one letter for a record and kind
// (UNRECONCILED for CauseUnknown, else EXHAUSTED); its method is the operation, its
// request the body as a google.protobuf.BytesValue. Of the headers only those named
// are kept: leave out what holds credentials. A body over 4 MiB is refused, so its
// message stays in the queue.
func AtDedupd(client dedupv1.DeadLetterServiceClient, headers ...string) DeadLetters {
	return atDedupd{client: client, headers: headers}
}

// Park keeps the letter.
func (a atDedupd) Park(ctx context.Context, l Letter) error {
	if a.client == nil {
		return errNoClient
	}
	body, err := anypb.New(wrapperspb.Bytes(l.Message.Body))
	if err != nil {
		return err
	}
	req := &dedupv1.ParkRequest{
		Record: &dedupv1.ParkRequest_Identity{Identity: l.Identity},
		ParkId: make([]byte, 16), Kind: dedupv1.DeadLetterKind_DEAD_LETTER_KIND_EXHAUSTED,
		Method: l.Identity.GetOperation(), Request: &dedupv1.Response{TypeUrl: body.GetTypeUrl(), Value: body.GetValue()},
		Metadata: a.metadata(l.Message), Note: noteOf(l),
	}
	_, _ = rand.Read(req.ParkId) // never fails: crypto/rand ends the process rather than return an error
	if l.Cause == CauseUnknown {
		req.Kind = dedupv1.DeadLetterKind_DEAD_LETTER_KIND_UNRECONCILED
	}
	if l.Fingerprint != nil {
		req.Fingerprints = []*dedupv1.Fingerprint{l.Fingerprint}
	}
	// A status that cannot be encoded, or is too long, costs the letter its status.
	if s, err := proto.Marshal(policy.StatusOf(l.Err).Proto()); err == nil && len(s) <= 64<<10 {
		req.Status = s
	}
	_, err = a.client.Park(ctx, req)
	return err
}

var errNoClient = errors.New("give AtDedupd a client of dedupd's DeadLetterService")

func noteOf(l Letter) string {
	note := fmt.Sprintf("a message: %v after %d runs", l.Cause, l.Runs)
	if len(l.Refused) > 0 {
		note += "; its key is that of record " + hex.EncodeToString(l.Refused)
	}
	return note
}

// metadata returns the message's id and its allowed headers, as far as dedupd takes
// them; names are lower case there.
func (a atDedupd) metadata(m Message) []*dedupv1.MetadataEntry {
	var out []*dedupv1.MetadataEntry
	add := func(name, value string) {
		if len(name) <= maxHeaderName && len(value) <= maxHeaderValue && len(out) <= maxHeaders {
			out = append(out, &dedupv1.MetadataEntry{Key: strings.ToLower(name), Value: []byte(value)})
		}
	}
	if m.ID != "" {
		add(messageID, m.ID)
	}
	for _, name := range slices.Sorted(slices.Values(a.headers)) {
		for _, value := range m.Headers[name] {
			add(name, value)
		}
	}
	return out
}
