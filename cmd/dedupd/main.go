// Command dedupd is the whole product in one binary: the service itself, the
// operator's tools, a demonstration and a benchmark. It is the only place that
// joins stores, server and interceptors.
//
// The life of an invocation:
//
//  1. main hands the arguments and the standard streams to run, which knows no
//     globals and so can be tested.
//  2. kong fills one of the command structs from flags and DEDUPD_… variables;
//     what cannot be is a usage error, exit code 2.
//  3. The command's Run does the work under a context that SIGINT and SIGTERM
//     end; a second signal ends the process at once.
//  4. An error becomes one sentence on stderr and an exit code (explain.go).
//
// It holds no rule of the protocol: those are in storage/transition.go.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"
)

// commandLine is everything that can be typed.
type commandLine struct {
	Serve   serveCmd   `cmd:"" help:"Run the service."`
	Migrate migrateCmd `cmd:"" help:"Make or update the schema of a CockroachDB or PostgreSQL database."`
	Keys    keysCmd    `cmd:"" help:"Look at records, and settle those whose outcome is unknown."`
	Top     topCmd     `cmd:"" help:"Show live what a server does, and what needs somebody."`
	Dlq     dlqCmd     `cmd:"" help:"Look at dead letters, replay, requeue and discard them."`
	Policy  policyCmd  `cmd:"" help:"Explain what the methods of a service get from the interceptors."`
	Demo    demoCmd    `cmd:"" help:"Charge orders through lost replies and crashes, with and without dedupd, and count double charges. Takes less than a minute; exits with 1 unless dedupd charged every order exactly once."`
	Bench   benchCmd   `cmd:"" help:"Measure dedupd against a bare gRPC echo, client and server as two processes on this machine."`
	Version versionCmd `cmd:"" help:"Print the version and how it was built; so does --version."`

	DemoPayments demoPaymentsCmd `cmd:"" hidden:"" help:"The demo's sample service."`
	BenchEcho    benchEchoCmd    `cmd:"" hidden:"" help:"The benchmark's bare server."`
}

// streams are the standard streams of a run.
type streams struct {
	in      *os.File
	out     io.Writer
	err     io.Writer
	environ []string // the variables, to tell those that nobody reads
}

func main() {
	os.Exit(run(context.Background(), os.Args[1:], streams{in: os.Stdin, out: os.Stdout, err: os.Stderr, environ: os.Environ()}))
}

// run does what args ask and returns the exit code.
func run(parent context.Context, args []string, s streams) int {
	ctx, stop := signal.NotifyContext(parent, os.Interrupt, syscall.SIGTERM)
	defer stop()
	// From the first signal on, the next one has its default effect again.
	defer context.AfterFunc(ctx, stop)()

	var cmd commandLine
	helped := false
	parser, err := newParser(&cmd, s, func(int) { helped = true })
	if err != nil {
		return report(s.err, err)
	}
	if len(args) == 1 && args[0] == "--version" {
		args = []string{"version"} // no flag of its own: 'keys resolve' has one of that name
	}
	call, err := parser.Parse(args)
	if helped {
		return exitDone
	}
	if err != nil {
		var found *kong.ParseError
		if len(args) == 0 && errors.As(err, &found) {
			parser.Stdout = s.err
			_ = found.Context.PrintUsage(false) // the sentence that follows names --help
		}
		return report(s.err, usageOf(err, s.environ))
	}
	if err := checkEnvironment(parser.Model, s.environ, s.err); err != nil {
		return report(s.err, err)
	}
	call.BindTo(ctx, (*context.Context)(nil))
	call.Bind(s)
	err = fromVariable(call.Run(), call, s.environ)
	if err != nil && ctx.Err() != nil && errors.Is(err, context.Canceled) {
		err = errInterrupted
	}
	return report(s.err, err)
}

func newParser(cmd *commandLine, s streams, exit func(int)) (*kong.Kong, error) {
	return kong.New(cmd,
		kong.Name("dedupd"),
		kong.Description("dedupd makes retried calls harmless: for one key the effect happens at most once, and every repeat gets the first answer.\n\n"+
			"A flag can also be set by the variable shown beside it; the command line wins. A DEDUPD_ variable that is nearly one of them is refused. Durations are written like 90s, 12h or 7d.\n\n"+
			"Exit codes: 0 done, 1 failed, 2 wrong command line, 3 no such record or dead letter, 4 done in part, 130 interrupted."),
		kong.DefaultEnvars("DEDUPD"),
		kong.Writers(s.out, s.err),
		kong.Exit(exit),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 100}),
	)
}

// report prints err as one sentence and returns its exit code.
func report(w io.Writer, err error) int {
	if err == nil {
		return exitDone
	}
	// A stderr that cannot be written to leaves nobody to tell.
	_, _ = fmt.Fprintln(w, "dedupd: "+explain(err))
	return exitCode(err)
}
