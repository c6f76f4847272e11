package ending

import (
	"strings"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors/policy"
)

// Tell is how a caller is told of a failed run what is left behind, which its code
// does not tell: none, repeatable or unknown; nothing where the answer is stored.
func Tell(left dedupv1.Effect) string {
	if left == dedupv1.Effect_EFFECT_UNSPECIFIED {
		return ""
	}
	return strings.ToLower(strings.TrimPrefix(left.String(), "EFFECT_"))
}

// Told reads what Tell says, as values of a header: the effect, by its code where
// nothing is told, and whether a second run of the same request completes it.
func Told(values []string, byCode policy.Effect) (e policy.Effect, repeatable bool) {
	switch {
	case len(values) != 1:
		return byCode, false
	case values[0] == "none":
		return policy.EffectNone, false
	}
	return policy.EffectUnknown, values[0] == "repeatable"
}
