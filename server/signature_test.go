package server

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/dedupd/dedupd/storage"
)

func TestASignatureKeepsTheCauseAndMasksTheCase(t *testing.T) {
	t.Parallel()
	s := newSigner()
	for message, want := range map[string]string{
		"":                                    "",
		"connection refused":                  "connection refused",
		"shard 17 is down":                    "shard … is down",
		"took 1,204.5 ms":                     "took … ms",
		"dial tcp 10.0.0.7:443: i/o timeout":  "dial tcp …: i/o timeout",
		`no account "Jane Doe" in 'EU West'`:  "no account … in …",
		"can't charge, the card's expired":    "can't charge, the card's expired",
		"unterminated \"quote of a name":      "unterminated …",
		"user jane@example.com is unknown":    "user … is unknown",
		"id 7d9f3a1c-52aa-4b1e-9d3f-00aa is":  "id … is",
		"hash deadbeefcafe differs":           "hash … differs",
		"customer cus_Nf4kZ8 has no card":     "customer … has no card",
		"line one\n\tline\x00 two":            "line one line two",
		"order-4471-key was refused":          "… was refused",
		"ORDER-4471-KEY was refused":          "… was refused",
		"for customer-seven: declined":        "for …: declined",
		"GET /o?k=order-4471-key&c=1 is gone": "GET /o?k=…&c=… is gone",
	} {
		require.Equal(t, want, s.sign(message, storage.Identity{Key: "order-4471-key", Caller: "customer-seven"}), message)
	}
}

func TestASignatureNeverHoldsTheKey(t *testing.T) {
	t.Parallel()
	s := newSigner()
	for _, key := range []string{
		"abcdefgh", "a b c d e f", `quote"d key`, "it's a key", "ключ-к-заказу", "100% sure", "a/b?c", "[regexp].*", "…", "ab", "x",
	} {
		id := storage.Identity{Key: key}
		for _, message := range []string{
			"failed for " + key, key + " " + key + " failed", "failed: (" + strings.ToUpper(key) + ")", strings.Repeat("é", 250) + key,
		} {
			got := s.sign(message, id)
			if key != mask {
				words := " " + strings.ToLower(got) + " "
				require.NotContains(t, words, " "+strings.ToLower(key)+" ", message)
			}
			if len(key) >= shortSecret {
				require.NotContains(t, strings.ToLower(got), strings.ToLower(key), message)
			}
			require.LessOrEqual(t, len(got), maxSignature)
			require.True(t, utf8.ValidString(got))
		}
	}
	require.Equal(t, "a catalogue of … errors", s.sign("a catalogue of cat errors", storage.Identity{Key: "cat"}), "a short key is masked as a word")
	require.Equal(t, "…x", s.sign("\xff\xfe-keyx", storage.Identity{Key: "\xff\xfe-key"}))
}

func FuzzSignature(f *testing.F) {
	f.Add("shard 7 of \"eu\" refused order-4471", "order-4471")
	f.Add("\xff\xfe", "\xff")
	f.Add("key\n\nof two words", "key of two words")
	s := newSigner()
	f.Fuzz(func(t *testing.T, message, key string) {
		got := s.sign(message, storage.Identity{Key: key})
		require.LessOrEqual(t, len(got), maxSignature)
		require.True(t, utf8.ValidString(got))
		if len(key) >= shortSecret && utf8.ValidString(key) && !strings.Contains(key, mask) {
			require.NotContains(t, got, key)
		}
	})
}
