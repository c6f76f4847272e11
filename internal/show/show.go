// Package show writes values for people: on a terminal and on a page. Text from
// outside becomes harmless here, and keys and callers are masked unless they are
// asked for. It has no state and does no I/O.
package show

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// ShortID is how many hex digits of a record's id errors, logs and tables show.
const ShortID = 12

// Secret returns a key or a caller as text, or says only how long it is unless
// shown is set: the one may be a customer's secret, the other is a customer's name.
func Secret(s []byte, shown bool) string {
	switch {
	case len(s) == 0:
		return ""
	case shown:
		return Printable(s)
	}
	return fmt.Sprintf("**** (%d bytes)", len(s))
}

// Printable returns b as text that cannot move a terminal's cursor or change the
// direction of a line; anything that is not plain text is quoted.
func Printable(b []byte) string {
	s := string(b)
	odd := func(r rune) bool { return r == utf8.RuneError || !unicode.IsPrint(r) }
	if strings.ContainsFunc(s, odd) {
		return strconv.QuoteToGraphic(s)
	}
	return s
}

// Rough rounds d to what a person reads: two units at most.
func Rough(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d >= 2*day:
		hours := int64(d.Round(time.Hour) / time.Hour)
		return strconv.FormatInt(hours/24, 10) + "d" + strconv.FormatInt(hours%24, 10) + "h"
	case d >= time.Hour:
		return strings.TrimSuffix(d.Round(time.Minute).String(), "0s")
	case d >= time.Second:
		return d.Round(time.Second).String()
	default:
		return d.Round(time.Millisecond).String()
	}
}

// Name is a generated enum's value for people: lower snake, without the enum's
// prefix.
func Name(value fmt.Stringer, prefix string) string {
	return strings.ToLower(strings.TrimPrefix(value.String(), prefix))
}
