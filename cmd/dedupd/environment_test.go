package main

import (
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAMisspeltVariableIsRefusedAndAStrangeOneTold(t *testing.T) {
	t.Parallel()
	var cmd commandLine
	parser, err := newParser(&cmd, streams{out: io.Discard, err: io.Discard}, func(int) {})
	require.NoError(t, err)
	for name, test := range map[string]struct{ settings, refused, told string }{
		"right ones":             {"DEDUPD_LISTEN=a DEDUPD_ALERT_WEBHOOK=x DEDUPD_RECORD_VERSION=y PATH=/bin", "", ""},
		"of somebody else":       {"DEDUPE_LISTEN=a XDEDUPD_LISTNE=b", "", ""},
		"of the tests":           {"DEDUPD_TEST=1 DEDUPD_TEST_SQL_URL=x", "", ""},
		"two letters swapped":    {"DEDUPD_LISTNE=a", "no setting is read from DEDUPD_LISTNE, did you mean DEDUPD_LISTEN? rename or unset it", ""},
		"a letter left out":      {"DEDUPD_SHO_KEYS=1", "did you mean DEDUPD_SHOW_KEYS?", ""},
		"a letter too many":      {"DEDUPD_STOREE=postgres://u:secret@h/d", "did you mean DEDUPD_STORE?", ""},
		"in small letters":       {"dedupd_data=/d", "no setting is read from dedupd_data, did you mean DEDUPD_DATA?", ""},
		"not near to any":        {"DEDUPD_HOME=/opt/secret", "", "dedupd: warning: DEDUPD_HOME is set, and no setting is read from it"},
		"of an image":            {"DEDUPD_VERSION=1.2", "", "DEDUPD_VERSION is set, and no setting is read from it"},
		"of what is only typed":  {"DEDUPD_YES=secret", "", "dedupd: warning: DEDUPD_YES is set, and not read: --yes is typed or left out\n"},
		"of what is typed twice": {"DEDUPD_DRY_RUN=1", "", "--dry-run is typed or left out"},
		"of Kubernetes": {"DEDUPD_SERVICE_HOST=10.0.0.1 DEDUPD_SERVICE_PORT=7480 DEDUPD_SERVICE_PORT_GRPC=7480 DEDUPD_PORT=tcp://10.0.0.1:7480 " +
			"DEDUPD_PORT_7480_TCP=tcp://10.0.0.1:7480 DEDUPD_PORT_7480_TCP_ADDR=10.0.0.1 DEDUPD_PORT_7480_TCP_PROTO=tcp DEDUPD_HEADLESS_SERVICE_HOST=10.0.0.2", "", ""},
	} {
		var told strings.Builder
		err := checkEnvironment(parser.Model, strings.Fields(test.settings), &told)
		if test.refused == "" {
			require.NoError(t, err, name)
		} else {
			require.ErrorContains(t, err, test.refused, name)
			require.Equal(t, exitUsage, exitCode(err), name)
			require.NotContains(t, err.Error(), "secret", "a value may be one")
		}
		require.Contains(t, told.String(), test.told, name)
		require.Equal(t, test.told == "", told.Len() == 0, "%s: %s", name, &told)
		require.NotContains(t, told.String(), "secret", name)
	}
}

func TestAMisspeltVariableKeepsAServerFromItsDefaults(t *testing.T) {
	t.Parallel()
	cmd := command(t, "serve", "--in-memory", "--listen", "127.0.0.1:0", "--http", "")
	cmd.Env = append(cmd.Env, "DEDUPD_RETENTOIN=30d")
	out, err := cmd.CombinedOutput()
	require.Error(t, err)
	require.Equal(t, exitUsage, cmd.ProcessState.ExitCode())
	require.Equal(t, "dedupd: no setting is read from DEDUPD_RETENTOIN, did you mean DEDUPD_RETENTION? rename or unset it\n", string(out))

	cmd = command(t, "serve", "--help")
	cmd.Env = append(cmd.Env, "DEDUPD_RETENTOIN=30d")
	require.NoError(t, cmd.Run(), "help is given all the same")
}

func TestSlipsAreCounted(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"abc", "abc", 0}, {"abc", "acb", 1}, {"abc", "ab", 1}, {"abc", "xabc", 1}, {"abc", "", 3}, {"abc", "xyz", 3}, {"ca", "abc", 3}} {
		require.Equal(t, test.want, slips(test.a, test.b), test)
		require.Equal(t, test.want, slips(test.b, test.a), test)
	}
}

// Who did not type a flag does not know where it comes from.
func TestAWrongValueNamesTheVariableThatHoldsIt(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		setting string
		args    []string
		want    string
	}{
		{"DEDUPD_OUTPUT=jsn", []string{"keys", "list"}, `but got "jsn" (--output is set by DEDUPD_OUTPUT); see`},
		{"DEDUPD_RETENTION=1s", []string{"serve"}, "1m0s to 400d are allowed (--retention is set by DEDUPD_RETENTION); see"},
		{"DEDUPD_ADDR=nowhere", []string{"keys", "list"}, `dedupd: --addr is "nowhere"; it takes host:port (--addr is set by DEDUPD_ADDR)` + "\n"},
		{"DEDUPD_ADDR=127.0.0.1:1", []string{"keys", "list", "--addr", "nowhere"}, `dedupd: --addr is "nowhere"; it takes host:port` + "\n"},
		{"DEDUPD_TIMEOUT=1m", []string{"keys", "list", "--timeout", "0s"}, "--timeout is 0s; it takes more than zero\n"},
		{"DEDUPD_TIMEOUT=abc", []string{"keys", "list"}, "(from envar DEDUPD_TIMEOUT=\"abc\"); see"},
	} {
		cmd := command(t, test.args...)
		cmd.Env = append(cmd.Env, test.setting)
		out, err := cmd.CombinedOutput()
		require.Error(t, err)
		require.Equal(t, exitUsage, cmd.ProcessState.ExitCode(), string(out))
		require.Contains(t, string(out), test.want)
	}
}
