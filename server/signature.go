package server

import (
	"net/url"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/dedupd/dedupd/storage"
)

const (
	maxSignature = 512 // bytes of a signature
	shortSecret  = 6   // bytes; a shorter key is masked where it is a word of its own only
	mask         = "…"
)

// signer masks what differs between two failures of one cause, so that entries
// can be counted by it and little of a request is left: what stands in quotes,
// addresses, ids in hex, and every word with a digit in it.
type signer struct{ masked []*regexp.Regexp }

func newSigner() *signer {
	return &signer{masked: []*regexp.Regexp{
		regexp.MustCompile("\"[^\"]*\"?|`[^`]*`?|“[^”]*”?|«[^»]*»?|\\B'[^']*'\\B"),
		regexp.MustCompile(`[^\s<>(),;]+@[^\s<>(),;]+`),
		regexp.MustCompile(`\b[0-9a-fA-F]{4,}(?:-[0-9a-fA-F]{4,})+\b|\b[0-9a-fA-F]{8,}\b`),
		regexp.MustCompile(`[\p{L}_]*\p{Nd}[\p{L}\p{Nd}_]*(?:[.,:][\p{Nd}]+)*`),
	}}
}

// sign is the signature of a message about id's record: at most 512 bytes of
// valid UTF-8. Key and caller are masked wherever they stand, also escaped as in
// a URL and in another case, before anything else is; and once more after it, as
// blanks that were cut may have put one together.
func (s *signer) sign(message string, id storage.Identity) string {
	message = strings.ToValidUTF8(hideAll(message, id), mask)
	for _, re := range s.masked {
		message = re.ReplaceAllString(message, mask)
	}
	message = strings.Join(strings.FieldsFunc(message, func(r rune) bool {
		return unicode.IsSpace(r) || !unicode.IsPrint(r)
	}), " ")
	return cut(hideAll(message, id), maxSignature)
}

func hideAll(message string, id storage.Identity) string {
	for _, secret := range [...]string{id.Key, id.Caller} {
		for _, form := range [...]string{secret, url.QueryEscape(secret), url.PathEscape(secret)} {
			message = hide(message, form)
		}
	}
	return message
}

// hide masks secret in message, whatever its case. A short one is masked as a word
// of its own: as a part of words it tells nothing, and would mask most of them.
func hide(message, secret string) string {
	switch {
	case secret == "":
		return message
	case !utf8.ValidString(secret):
		return strings.ReplaceAll(message, secret, mask)
	case len(secret) >= shortSecret:
		return regexp.MustCompile("(?i)"+regexp.QuoteMeta(secret)).ReplaceAllLiteralString(message, mask)
	}
	word := regexp.MustCompile(`(?i)(^|[^\p{L}\p{N}])` + regexp.QuoteMeta(secret) + `($|[^\p{L}\p{N}])`)
	for range 2 { // neighbours share what stands between them
		message = word.ReplaceAllString(message, "${1}"+mask+"${2}")
	}
	return message
}

// cut shortens s to at most limit bytes, at the end of a character.
func cut(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return s[:limit]
}
