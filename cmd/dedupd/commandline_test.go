package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"github.com/stretchr/testify/require"
)

// typed runs a command line in this process and returns its exit code, stdout
// and stderr.
func typed(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	in, err := os.Open(os.DevNull)
	require.NoError(t, err)
	var out, errs strings.Builder
	code = run(t.Context(), args, streams{in: in, out: &out, err: &errs})
	require.NoError(t, in.Close())
	return code, out.String(), errs.String()
}

func TestEveryFlagHasHelpAndAVariable(t *testing.T) {
	t.Parallel()
	// Never from the environment: it would act on what nobody looked at.
	verdict := []string{"completed", "released", "outcome-file", "basis", "note", "yes"}
	shown := []string{"addr", "addr-tls", "addr-ca", "addr-cert", "addr-key", "timeout", "output", "show-keys", "show-request", "newest-first", "limit"} // all that what changes many reads from it
	where := ""
	var cmd commandLine
	parser, err := newParser(&cmd, streams{out: &strings.Builder{}, err: &strings.Builder{}}, func(int) {})
	require.NoError(t, err)
	seen := map[string]string{}
	err = kong.Visit(parser.Model, func(node kong.Visitable, next kong.Next) error {
		if command, ok := node.(*kong.Node); ok {
			defer func(outer string) { where = outer }(where)
			where = command.FullPath()
		}
		if flag, ok := node.(*kong.Flag); ok && flag.Name != "help" {
			require.NotEmpty(t, flag.Help, flag.Name)
			acts := strings.HasPrefix(where, "dedupd dlq") || strings.HasPrefix(where, "dedupd keys redact") || strings.HasPrefix(where, "dedupd keys forget")
			typed := acts && !slices.Contains(shown, flag.Name)
			if typed || len(flag.Envs) == 0 && flag.Name == "limit" || slices.Contains(verdict, flag.Name) {
				require.Empty(t, flag.Envs, flag.Name)
				return next(nil)
			}
			require.Len(t, flag.Envs, 1, flag.Name)
			require.True(t, strings.HasPrefix(flag.Envs[0], "DEDUPD_"), flag.Envs[0])
			if other, ok := seen[flag.Envs[0]]; ok {
				require.Equal(t, other, flag.Name, "two flags share a variable")
			}
			seen[flag.Envs[0]] = flag.Name
		}
		return next(nil)
	})
	require.NoError(t, err)
	for _, env := range []string{"DEDUPD_DATA", "DEDUPD_LISTEN", "DEDUPD_ADDR", "DEDUPD_RECORD_VERSION", "DEDUPD_GC_PERCENT", "DEDUPD_IN_MEMORY"} {
		require.Contains(t, seen, env)
	}
}

func TestEveryCommandHasHelp(t *testing.T) {
	t.Parallel()
	for _, words := range [][]string{{}, {"serve"}, {"keys"}, {"keys", "get"}, {"keys", "list"}, {"keys", "watch"}, {"keys", "resolve"}, {"keys", "redact"}, {"keys", "forget"}, {"top"}, {"dlq"}, {"dlq", "list"}, {"dlq", "groups"}, {"dlq", "show"}, {"dlq", "replay"}, {"dlq", "requeue"}, {"dlq", "discard"}, {"policy"}, {"policy", "explain"}, {"demo"}, {"bench"}, {"version"}} {
		code, stdout, stderr := typed(t, append(words, "--help")...)
		require.Equal(t, exitDone, code, words)
		require.Contains(t, stdout, "Usage: dedupd", words)
		require.NotContains(t, stdout, "demo-payments", "hidden commands stay hidden")
		require.Empty(t, stderr, words)
	}
}

func TestAWrongCommandLineIsOneSentenceAndExitCode2(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"unknown command":                {[]string{"sevre"}, "unexpected argument sevre, did you mean \"serve\"?; see `dedupd --help`"},
		"unknown command of keys":        {[]string{"keys", "foo"}, "see `dedupd keys --help`"},
		"an address with a scheme":       {[]string{"keys", "list", "--addr", "http://127.0.0.1:7480"}, `--addr is "http://127.0.0.1:7480"; it takes host:port`},
		"an address without a port":      {[]string{"keys", "list", "--addr", "dedupd"}, `--addr is "dedupd"; it takes host:port`},
		"unknown flag":                   {[]string{"serve", "--port", "1"}, "unknown flag --port; see `dedupd serve --help`"},
		"no such log format":             {[]string{"serve", "--log-format", "xml"}, `must be one of "auto","text","json"`},
		"retention too short":            {[]string{"serve", "--retention", "59s"}, "--retention is 59s; 1m0s to 400d are allowed"},
		"retention too long":             {[]string{"serve", "--retention", "401d"}, "--retention is 401d; 1m0s to 400d are allowed"},
		"tombstone too long":             {[]string{"serve", "--tombstone", "400d1s"}, "0s to 400d are allowed"},
		"outcome too large":              {[]string{"serve", "--max-outcome", "5MiB"}, "--max-outcome is 5MiB; 1 to 4MiB are allowed"},
		"no dead letters at all":         {[]string{"serve", "--dead-letter-cap", "0"}, "--dead-letter-cap is 0; 1 to 10000000 are allowed"},
		"dead letters kept too short":    {[]string{"serve", "--dead-letter-hold", "1s"}, "--dead-letter-hold is 1s; 1m0s to 400d are allowed"},
		"a webhook that is no URL":       {[]string{"serve", "--alert-webhook", "hook"}, "--alert-webhook takes http://host/path or https://host/path"},
		"alerts too often":               {[]string{"serve", "--alert-every", "0s"}, "--alert-every is 0s; 1s to 1h0m0s are allowed"},
		"alerts without a cool-down":     {[]string{"serve", "--alert-cool-down", "0s"}, "--alert-cool-down is 0s; 1s to 1d are allowed"},
		"alerts repeated too soon":       {[]string{"serve", "--alert-repeat", "1m"}, "--alert-repeat is 1m0s; 5m0s to 30d are allowed"},
		"no outcome at all":              {[]string{"serve", "--max-outcome", "0"}, "1 to 4MiB are allowed"},
		"memory and a directory":         {[]string{"serve", "--in-memory", "--data", "x"}, "exclude each other"},
		"http open to everybody":         {[]string{"serve", "--http", "0.0.0.0:7481"}, "--open-http-without-auth"},
		"http open by an empty host":     {[]string{"serve", "--http", ":7481"}, "--open-http-without-auth"},
		"no port":                        {[]string{"serve", "--listen", "localhost"}, "it takes host:port"},
		"no policy to explain":           {[]string{"policy", "explain"}, "name a file descriptor set"},
		"no key":                         {[]string{"keys", "get"}, "name the record by its key, or by --id"},
		"key without operation":          {[]string{"keys", "get", "k", "--namespace", "n"}, "a key needs its --namespace and --operation"},
		"key without namespace":          {[]string{"keys", "get", "k", "--operation", "/a/b"}, "a key needs its --namespace and --operation"},
		"key and id":                     {[]string{"keys", "get", "k", "--id", "0123456789ab"}, "not by both"},
		"key twice":                      {[]string{"keys", "get", "k", "--key-hex", "6b", "--operation", "/a/b", "--namespace", "n"}, "not both"},
		"key not hex":                    {[]string{"keys", "get", "--key-hex", "6", "--operation", "/a/b", "--namespace", "n"}, "--key-hex takes hex digits"},
		"id too short":                   {[]string{"keys", "get", "--id", "0123456789a"}, "--id takes 12 to 64 hex digits"},
		"id not hex":                     {[]string{"keys", "get", "--id", "0123456789xx"}, "--id takes 12 to 64 hex digits"},
		"no such state":                  {[]string{"keys", "list", "--state", "lost"}, "must be one of"},
		"negative limit":                 {[]string{"keys", "list", "--limit=-1"}, "--limit is -1"},
		"no verdict":                     {[]string{"keys", "resolve", "--id", "0123456789ab", "--note", "n"}, "give a verdict"},
		"both verdicts":                  {[]string{"keys", "resolve", "--id", "0123456789ab", "--note", "n", "--completed", "--released"}, "exclude each other"},
		"released without a basis":       {[]string{"keys", "resolve", "--id", "0123456789ab", "--note", "n", "--released"}, "--released needs --basis"},
		"completed with a basis":         {[]string{"keys", "resolve", "--id", "0123456789ab", "--note", "n", "--completed", "--basis", "inbox"}, "--basis belongs to --released"},
		"no note":                        {[]string{"keys", "resolve", "--id", "0123456789ab", "--completed"}, "--note"},
		"empty note":                     {[]string{"keys", "resolve", "--id", "0123456789ab", "--completed", "--note", " "}, "--note is 1 bytes"},
		"note too long":                  {[]string{"keys", "resolve", "--id", "0123456789ab", "--completed", "--note", strings.Repeat("n", 1025)}, "--note is 1025 bytes"},
		"version not hex":                {[]string{"keys", "resolve", "--id", "0123456789ab", "--completed", "--note", "n", "--version", "12"}, "--version takes 16 hex digits"},
		"nobody to ask and no --yes":     {[]string{"keys", "resolve", "--id", "0123456789ab", "--completed", "--note", "n"}, "pass --yes if you are sure"},
		"outcome file that is not there": {[]string{"keys", "resolve", "--id", "0123456789ab", "--completed", "--note", "n", "--outcome-file", "/no/such/file"}, "/no/such/file"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			code, stdout, stderr := typed(t, test.args...)
			require.Equal(t, exitUsage, code, stderr)
			require.Empty(t, stdout)
			require.Contains(t, stderr, test.want)
			require.Equal(t, 1, strings.Count(stderr, "\n"), stderr)
		})
	}
}

func TestNothingTypedPrintsTheUsage(t *testing.T) {
	t.Parallel()
	code, stdout, stderr := typed(t)
	require.Equal(t, exitUsage, code)
	require.Empty(t, stdout)
	require.Contains(t, stderr, "Usage: dedupd <command>")
	require.Contains(t, stderr, "Run the service.")
	require.Regexp(t, "dedupd: expected one of \"serve\".*see `dedupd --help`\n$", stderr)
}

func TestAnOutcomeFileThatHoldsSomethingElseIsRefusedBeforeAnythingIsSent(t *testing.T) {
	t.Parallel()
	const cannotReach = "cannot reach dedupd at 127.0.0.1:1"
	file := filepath.Join(t.TempDir(), "outcome.json")
	for text, want := range map[string]string{
		`{"nonsense": 1}`:                 "does not hold a dedup.v1.Outcome",
		`{}`:                              "has neither a response nor the status of a failure",
		`{"status": ""}`:                  "has neither a response nor the status of a failure",
		`{"status": "EgJvaw=="}`:          "has neither a response nor the status of a failure", // code OK, a message
		`{"status": "CAU"}`:               cannotReach,                                          // NOT_FOUND
		`{"status": "//8="}`:              "has a status that is not a serialised google.rpc.Status",
		`{"response": {}}`:                "has a response without a typeUrl",
		`{"response": {"value": "CAE="}}`: "has a response without a typeUrl",
		`{"response": {"typeUrl": "type.googleapis.com/", "value": "CAE="}}`: "has a response without a typeUrl",
		`{"response": {"typeUrl": "type.googleapis.com/shop.v1.Receipt"}}`:   cannotReach,
		`{"omitted": {"size": "5000000"}}`:                                   cannotReach,
	} {
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		code, _, stderr := typed(t, "keys", "resolve", "--addr", "127.0.0.1:1", "--id", "0123456789ab", "--completed", "--note", "n", "--yes", "--outcome-file", file)
		require.Contains(t, stderr, want, text)
		require.Equal(t, want != cannotReach, code == exitUsage, text)
		require.Equal(t, 1, strings.Count(stderr, "\n"), stderr)
	}
}

func TestFlagsComeFromTheEnvironmentAndTheCommandLineWins(t *testing.T) {
	t.Setenv("DEDUPD_RETENTION", "2h")
	t.Setenv("DEDUPD_TOMBSTONE", "1d")
	t.Setenv("DEDUPD_LOG_LEVEL", "warn")
	t.Setenv("DEDUPD_RECORD_VERSION", "0011223344556677")
	var cmd commandLine
	parser, err := newParser(&cmd, streams{out: &strings.Builder{}, err: &strings.Builder{}}, func(int) {})
	require.NoError(t, err)
	_, err = parser.Parse([]string{"serve", "--tombstone", "2d"})
	require.NoError(t, err)
	require.Equal(t, span(2*time.Hour), cmd.Serve.Retention)
	require.Equal(t, span(48*time.Hour), cmd.Serve.Tombstone)
	require.Equal(t, "WARN", cmd.Serve.LogLevel.String())
	require.Equal(t, byteSize(1<<20), cmd.Serve.MaxOutcome)
	_, err = parser.Parse([]string{"keys", "resolve", "--id", "0123456789ab", "--completed", "--note", "n"})
	require.NoError(t, err)
	require.Equal(t, "0011223344556677", cmd.Keys.Resolve.Version)
}

func TestVersionTellsHowItWasBuilt(t *testing.T) {
	t.Parallel()
	code, stdout, _ := typed(t, "version")
	require.Equal(t, exitDone, code)
	require.Regexp(t, `^dedupd \S+ \(.*go1\.`, stdout)
	code, flag, _ := typed(t, "--version")
	require.Equal(t, exitDone, code)
	require.Equal(t, stdout, flag)
	code, stdout, _ = typed(t, "version", "-o", "json")
	require.Equal(t, exitDone, code)
	require.Regexp(t, `^\{"version":.*"go":"go1\..*\}\n$`, stdout)
}
