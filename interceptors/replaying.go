package interceptors

import (
	"context"
	"encoding/hex"
	"strings"

	"google.golang.org/grpc/metadata"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors/guard"
)

const claimBytes = 16 // of an entry's id, and of a claim's token

// Replay is what a handler is told whose call replays a dead letter.
type Replay = guard.Replay

// FromReplay tells a keyed handler whose call it repeats: the original caller,
// whose record it is, while CallerFunc and whatever else authenticates see the
// replayer. A handler that authorizes by caller does so by this one, once it has
// found that the replayer may replay. ok is false for a call that replays nothing.
func FromReplay(ctx context.Context) (replay Replay, ok bool) { return guard.ReplayFrom(ctx) }

// incomingReplay returns the claim that a call's metadata carries, nil if it
// carries none. A malformed one is refused, never taken for none.
func incomingReplay(ctx context.Context) (*dedupv1.ReplayClaim, error) {
	return replayOf(metadata.ValueFromIncomingContext(ctx, HeaderReplay))
}

// replayOf reads the header's values.
func replayOf(values []string) (*dedupv1.ReplayClaim, error) {
	if len(values) == 0 {
		return nil, nil //nolint:nilnil // most calls replay nothing
	}
	entry, token, _ := strings.Cut(values[0], ".")
	claim := &dedupv1.ReplayClaim{EntryId: lowerHex(entry), Token: lowerHex(token)}
	if len(values) > 1 || len(claim.GetEntryId()) != claimBytes || len(claim.GetToken()) != claimBytes {
		return nil, replayInvalid("the " + HeaderReplay + " header holds no claim of a dead letter")
	}
	return claim, nil
}

func lowerHex(s string) []byte {
	b, err := hex.DecodeString(s)
	if err != nil || strings.ToLower(s) != s {
		return nil
	}
	return b
}

func replayInvalid(message string) error {
	return refusal{reason: dedupv1.Reason_REASON_KEY_INVALID, message: message, field: HeaderReplay}.err()
}
