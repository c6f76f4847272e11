package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Exit codes; stated in the help.
const (
	exitDone        = 0
	exitFailed      = 1
	exitUsage       = 2
	exitNoRecord    = 3
	exitPartial     = 4
	exitInterrupted = 130
)

var (
	errInterrupted = errors.New("interrupted")
	errNoRecord    = errors.New("no such record; that does not mean that nothing was applied, only that dedupd keeps nothing under this key; check namespace, operation and caller, which are part of what names it")
	errNoID        = errors.New("no such record; that does not mean that nothing was applied, only that dedupd keeps nothing under this id; check its digits, and --addr")
	errNothing     = errors.New("no such records; nothing was erased: check the spelling of namespace and caller")
	errNoEntry     = errors.New("no such dead letter; closed ones are kept for a month, then forgotten")
)

// usageError is a command line that cannot be right.
type usageError struct{ message string }

// Error returns the message.
func (e *usageError) Error() string { return e.message }

// partialError says that some of several things could not be done.
type partialError struct{ message string }

// Error returns the message.
func (e *partialError) Error() string { return e.message }

func usagef(format string, args ...any) error {
	return &usageError{message: fmt.Sprintf(format, args...)}
}

// usageOf turns what the parser found into a usage error that says where help
// is: that of the command, as far as there is one.
func usageOf(err error, environ []string) error {
	words := []string{"dedupd"}
	var found *kong.ParseError
	if errors.As(err, &found) {
		for _, step := range found.Context.Path {
			if step.Command != nil {
				words = append(words, step.Command.Name)
			}
		}
		err = fromVariable(usagef("%s", err), found.Context, environ)
	}
	return usagef("%s; see `%s --help`", err, strings.Join(words, " "))
}

func exitCode(err error) int {
	var usage *usageError
	var partial *partialError
	switch {
	case err == nil:
		return exitDone
	case errors.As(err, &usage):
		return exitUsage
	case slices.ContainsFunc([]error{errNoRecord, errNoID, errNothing, errNoEntry}, func(none error) bool { return errors.Is(err, none) }):
		return exitNoRecord
	case errors.Is(err, errInterrupted):
		return exitInterrupted
	case errors.As(err, &partial):
		return exitPartial
	}
	return exitFailed
}

// explain says err on one line for a person. What came over gRPC says what to do
// next; several errors are told one after the other.
func explain(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// remoteError is what a call to a server ended with.
type remoteError struct {
	addr string
	err  error
}

// Error returns the sentence.
func (e *remoteError) Error() string { return e.sentence() }

// Unwrap returns the status error.
func (e *remoteError) Unwrap() error { return e.err }

func (e *remoteError) sentence() string {
	st := status.Convert(e.err)
	reason, found, retry := detailsOf(st)
	switch reason {
	case "RECORD_CHANGED":
		state := ""
		if found != "" {
			state = " and is " + found + " now"
		}
		return "the record has changed since it was looked at" + state + "; nothing was written: look again with `dedupd keys get` and decide anew"
	case "STORE_UNAVAILABLE":
		return "the server cannot reach its store, and its log says why; try again once it can, a verdict too: whether it was written is not known"
	case "":
	default:
		return "refused with " + reason + ": " + st.Message() + after(retry)
	}
	switch st.Code() { //nolint:exhaustive // the other codes are told by their message
	case codes.Unavailable:
		return notReached(e.addr, st)
	case codes.Unimplemented:
		return "what listens at " + e.addr + " is not dedupd, or one of another version; --addr takes its gRPC address"
	case codes.DeadlineExceeded:
		if met(e.addr, st) != "" {
			return notReached(e.addr, st)
		}
		return "no answer from " + e.addr + " in time; try again, or wait longer with --timeout"
	case codes.Canceled:
		return errInterrupted.Error()
	}
	return fmt.Sprintf("%s answered %s: %s", e.addr, st.Code(), st.Message())
}

func after(retry time.Duration) string {
	if retry <= 0 {
		return ""
	}
	return "; try again in " + retry.Round(time.Millisecond).String()
}

// detailsOf returns the refusal's reason, the state found, and the hint.
func detailsOf(st *status.Status) (reason, state string, retry time.Duration) {
	for _, d := range st.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			if d.GetDomain() == "dedup.v1" {
				reason, state = d.GetReason(), d.GetMetadata()["state"]
			}
		case *errdetails.RetryInfo:
			retry = d.GetRetryDelay().AsDuration()
		}
	}
	return reason, state, retry
}

// overWire marks err as one that came from the server at addr.
func overWire(addr string, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, context.Canceled) || status.Code(err) == codes.Canceled {
		return errInterrupted
	}
	if _, ok := status.FromError(err); !ok {
		return err // our own words
	}
	return &remoteError{addr: addr, err: err}
}
