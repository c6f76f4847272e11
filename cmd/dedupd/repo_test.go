package main_test

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	root   = "../.."
	module = "github.com/dedupd/dedupd"
)

// Imports point one way, and what a service imports stays light.
func TestImportsPointOneWay(t *testing.T) {
	t.Parallel()
	const (
		prometheus, otel, pgx = "github.com/prometheus", "go.opentelemetry.io", "github.com/jackc"
		nats, watermill       = "github.com/nats-io", "github.com/ThreeDotsLabs"
	)
	type rule struct {
		pkg  string
		deny []string
	}
	rules := []rule{
		{"/cmd/dedupd", []string{nats, watermill}},
		{"/server", []string{module + "/storage/", module + "/interceptors", module + "/cmd"}},
		{"/storage/embedded", []string{module + "/server", module + "/interceptors", module + "/gen", module + "/cmd"}},
	}
	// What a service imports brings none of these, except an adapter that which it is
	// for; and no broker's server reaches anybody.
	heavy := []string{
		module + "/server", module + "/storage", module + "/cmd", "github.com/cockroachdb", pgx, "cel.dev", "github.com/google/cel-go",
		"buf.build/go/protovalidate", "github.com/stretchr", prometheus, otel, nats, watermill,
	}
	adapters := map[string]string{
		"/interceptors/prom": prometheus, "/interceptors/otel": otel, "/interceptors/inbox/pgxinbox": pgx,
		"/interceptors/consumer/jetstream": nats, "/interceptors/consumer/watermill": watermill,
	}
	for _, pkg := range goList(t, "./interceptors/...") {
		pkg = strings.TrimPrefix(pkg, module)
		if pkg == "/interceptors/dedupdtest" { // for tests alone: it holds a server, but no store
			rules = append(rules, rule{pkg, []string{module + "/storage/", "github.com/cockroachdb", pgx}})
			continue
		}
		deny := []string{nats + "/nats-server"}
		for _, dep := range heavy {
			if dep != adapters[pkg] {
				deny = append(deny, dep)
			}
		}
		rules = append(rules, rule{pkg, deny})
	}
	for _, rule := range rules {
		t.Run(rule.pkg, func(t *testing.T) {
			t.Parallel()
			for _, dep := range goList(t, "-deps", "."+rule.pkg) {
				for _, denied := range rule.deny {
					require.False(t, strings.HasPrefix(dep, denied), "%s must not depend on %s", rule.pkg, dep)
				}
			}
		})
	}
	t.Run("storage is the standard library alone", func(t *testing.T) {
		t.Parallel()
		for _, dep := range goList(t, "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", "./storage") {
			require.Equal(t, module+"/storage", dep)
		}
	})
}

// Every package says what it is for, once, and every folder of Go files has its
// page of prose.
func TestPackagesAreDocumented(t *testing.T) {
	t.Parallel()
	for _, dir := range goList(t, "-f", "{{.Dir}}", "./...") {
		if strings.Contains(filepath.ToSlash(dir), "/gen/") {
			continue
		}
		docs := 0
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		require.NoError(t, err)
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments|parser.PackageClauseOnly)
			require.NoError(t, err)
			if f.Doc != nil {
				docs++
			}
		}
		require.Equal(t, 1, docs, "package comments in %s", dir)
		require.FileExists(t, filepath.Join(dir, "README.md"))
	}
}

func TestGoModHasNoReplace(t *testing.T) {
	t.Parallel()
	require.NotRegexp(t, `(?m)^\s*replace\b`, read(t, "go.mod"))
}

// What a README tells people to type exists.
func TestReadmeCommandsExist(t *testing.T) {
	t.Parallel()
	makefile := read(t, "Makefile")
	seen := 0
	for _, page := range readmes(t) {
		for _, m := range regexp.MustCompile("(?m)(?:^|`)make ([a-z][a-z-]*)").FindAllStringSubmatch(read(t, page), -1) {
			require.Regexp(t, `(?m)^`+m[1]+`:`, makefile, "%s names make %s", page, m[1])
			seen++
		}
	}
	require.Positive(t, seen)
}

// The Go snippets of the README are compiled: each stands, line for line, in an
// example that the tests run.
func TestReadmeSnippetsAreCompiled(t *testing.T) {
	t.Parallel()
	example := unindent(read(t, "cmd/dedupd/readme_test.go"))
	snippets := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(read(t, "README.md"), -1)
	require.NotEmpty(t, snippets)
	for _, m := range snippets {
		require.True(t, strings.Contains(example, unindent(m[1])), "no example holds this snippet:\n%s", m[1]) //nolint:testifylint // Contains would print the whole file
	}
}

func goList(t *testing.T, args ...string) []string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"list"}, args...)...)
	cmd.Dir = root
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	require.NoError(t, err)
	return strings.Fields(string(out))
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, path))
	require.NoError(t, err)
	return string(b)
}

func readmes(t *testing.T) []string {
	t.Helper()
	var pages []string
	err := fs.WalkDir(os.DirFS(root), ".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && path != "." && strings.HasPrefix(d.Name(), ".") {
			return fs.SkipDir
		}
		if d.Name() == "README.md" {
			pages = append(pages, path)
		}
		return err
	})
	require.NoError(t, err)
	return pages
}

func unindent(s string) string {
	lines := strings.Split(s, "\n")
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	return strings.TrimSpace(strings.Join(lines, "\n"))
}
