package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// ourVariables is the prefix of every variable of ours. What begins with
// testVariables belongs to the tests.
const (
	ourVariables  = "DEDUPD_"
	testVariables = "DEDUPD_TEST"
)

// linked is what Kubernetes and Docker tell every process of a service that is
// called dedupd.
var linked = regexp.MustCompile(`^DEDUPD_(\w+_)?(SERVICE_(HOST|PORT\w*)|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)=`)

// checkEnvironment refuses a variable whose name is nearly one of ours: what it was
// to set has silently kept its default, such as where the data is. Others that
// nobody reads are only told, since images and older releases have reasons of their
// own.
func checkEnvironment(model *kong.Application, environ []string, w io.Writer) error {
	known, typed := variables(model)
	for _, setting := range environ {
		name, _, _ := strings.Cut(setting, "=")
		switch plain := strings.ToUpper(name); {
		case !strings.HasPrefix(plain, ourVariables), strings.HasPrefix(plain, testVariables), known[name], linked.MatchString(setting):
		case typed[name] != "":
			_, _ = fmt.Fprintf(w, "dedupd: warning: %s is set, and not read: --%s is typed or left out\n", name, typed[name])
		default:
			if near := nearest(plain, slices.Sorted(maps.Keys(known))); near != "" {
				return usagef("no setting is read from %s, did you mean %s? rename or unset it", name, near)
			}
			_, _ = fmt.Fprintf(w, "dedupd: warning: %s is set, and no setting is read from it; `dedupd serve --help` shows those that are\n", name)
		}
	}
	return nil
}

// fromVariable names the variables that set the flags which a usage error speaks of:
// who did not type a flag does not know it.
func fromVariable(err error, call *kong.Context, environ []string) error {
	var usage *usageError
	if !errors.As(err, &usage) {
		return err
	}
	for _, flag := range call.Flags() {
		spoken := regexp.MustCompile(`--` + regexp.QuoteMeta(flag.Name) + `\b(?:[^-]|$)`).MatchString(err.Error())
		typed := slices.ContainsFunc(call.Path, func(p *kong.Path) bool { return p.Flag == flag })
		if !spoken || typed {
			continue
		}
		for _, name := range flag.Envs {
			set := slices.ContainsFunc(environ, func(e string) bool { return strings.HasPrefix(e, name+"=") })
			if set && !strings.Contains(err.Error(), name) {
				err = usagef("%s (--%s is set by %s)", err, flag.Name, name)
			}
		}
	}
	return err
}

// variables are the names that are read, and the flags that have none of their own
// by the name that they would have.
func variables(model *kong.Application) (known map[string]bool, typed map[string]string) {
	known, typed = map[string]bool{}, map[string]string{}
	_ = kong.Visit(model, func(node kong.Visitable, next kong.Next) error { // no error of ours
		if flag, ok := node.(*kong.Flag); ok {
			for _, name := range flag.Envs {
				known[name] = true
			}
			if len(flag.Envs) == 0 {
				typed[ourVariables+strings.ToUpper(strings.ReplaceAll(flag.Name, "-", "_"))] = flag.Name
			}
		}
		return next(nil)
	})
	return known, typed
}

// nearest is the name that name was probably meant to be; empty if there is none.
func nearest(name string, names []string) string {
	best, found := 3, "" // a slip or two
	if len(name) < len(ourVariables)+5 {
		best = 2 // of a short one
	}
	for _, other := range names {
		if d := slips(name, other); d < best {
			best, found = d, other
		}
	}
	return found
}

// slips is how many letters were left out, added, mistaken or swapped with the next
// to make b of a.
func slips(a, b string) int {
	before, row := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		last := row
		next := make([]int, len(b)+1)
		next[0] = i + 1
		for j := range len(b) {
			same := last[j]
			if a[i] != b[j] {
				same++
			}
			next[j+1] = min(same, last[j+1]+1, next[j]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				next[j+1] = min(next[j+1], before[j-1]+1)
			}
		}
		before, row = last, next
	}
	return row[len(b)]
}
