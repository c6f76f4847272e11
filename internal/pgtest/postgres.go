//go:build !cockroach

package pgtest

// startOther is where a build for CockroachDB starts one.
func startOther() (*Server, error) { return StartPrivate() }
