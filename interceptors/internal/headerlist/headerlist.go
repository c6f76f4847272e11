// Package headerlist says which headers and trailers of an answer are stored with its
// outcome, for every door: those that the policy names, none that belong to one
// caller or to the transport, none beyond dedupd's limits. It keeps no state.
package headerlist

import (
	"fmt"
	"slices"
	"strings"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
)

// Limits of an outcome's metadata.
const (
	// MaxEntries is how many headers, and how many trailers, are stored.
	MaxEntries = 64
	// MaxValue is the greatest length of one value, in bytes.
	MaxValue = 8 << 10

	maxName = 255

	ownPrefix = "idempotency-" // of the names that the doors themselves send
)

// Names returns the names that a policy lists, sorted and without doubles. It
// refuses what is no metadata name, or must never reach a later caller. kind is
// what the error calls them.
func Names(kind string, names []string) ([]string, error) {
	out := make([]string, 0, len(names))
	for _, name := range names {
		if len(name) == 0 || len(name) > maxName || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-_.") != "" {
			return nil, fmt.Errorf("replay %s %q is no metadata name: 1 to %d of a-z 0-9 - _ . are allowed", kind, name, maxName)
		}
		if Denied(name) {
			return nil, fmt.Errorf("replay %s %q would hand one caller's secrets or the transport's own data to another, take it off the list", kind, name)
		}
		out = append(out, name)
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// Denied reports whether metadata of that name is never replayed, whatever a
// policy says.
func Denied(name string) bool {
	switch name {
	case "set-cookie", "set-cookie2", "cookie", "authorization", "www-authenticate",
		"proxy-authorization", "proxy-authenticate", "authentication-info",
		"content-type", "user-agent", "te":
		return true
	}
	return strings.HasPrefix(name, "grpc-") || strings.HasPrefix(name, ownPrefix) || strings.HasPrefix(name, ":")
}

// Metadata returns the entries of the given names, which are lower case and
// sorted, in one order, so that equal outcomes have equal hashes. A name with a
// value beyond a limit is left out whole, never cut.
func Metadata(md map[string][]string, names []string) []*dedupv1.MetadataEntry {
	var out []*dedupv1.MetadataEntry
	for _, name := range names {
		values := md[name]
		if len(out)+len(values) > MaxEntries ||
			slices.ContainsFunc(values, func(v string) bool { return len(v) > MaxValue }) {
			continue
		}
		for _, v := range values {
			out = append(out, &dedupv1.MetadataEntry{Key: name, Value: []byte(v)})
		}
	}
	return out
}
