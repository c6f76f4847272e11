package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors/replay"
)

// dlqCmd groups what an operator does with dead letters. Each talks to a running
// server; only replay talks to the service that the calls were sent to, and only
// where it is told to.
type dlqCmd struct {
	List    dlqListCmd    `cmd:"" help:"List dead letters, in the order of parking."`
	Groups  dlqGroupsCmd  `cmd:"" help:"Count dead letters by operation, kind, status code and message."`
	Show    dlqShowCmd    `cmd:"" help:"Show one dead letter. Exits with 3 when there is none."`
	Replay  dlqReplayCmd  `cmd:"" help:"Send dead letters again, each under its own key and to --target. Exits with 4 when only some are done."`
	Requeue dlqRequeueCmd `cmd:"" help:"Ask the owner's replayer for a replay."`
	Discard dlqDiscardCmd `cmd:"" help:"Close dead letters without a replay."`
}

// entryFilter chooses dead letters.
type entryFilter struct {
	Namespace string   `env:"-" placeholder:"NAME" help:"Only this namespace."`
	Operation string   `env:"-" placeholder:"NAME" help:"Only this operation."`
	Kind      []string `env:"-" enum:"exhausted,unreconciled,overdue,conflict" placeholder:"KIND" help:"Only these kinds: exhausted, unreconciled, overdue, conflict."`
	State     []string `env:"-" enum:"parked,replaying,resolved,discarded" placeholder:"STATE" help:"Only these states: parked, replaying, resolved, discarded. Default: parked and replaying."`
	Code      []string `env:"-" placeholder:"CODE" help:"Only these status codes, by name or number: unavailable, 14."`
	Signature string   `env:"-" placeholder:"TEXT" help:"Only this message, as 'dlq groups' prints it."`
	OlderThan span     `env:"-" default:"0s" placeholder:"TIME" help:"Parked at least this long ago."`
	NewerThan span     `env:"-" default:"0s" placeholder:"TIME" help:"Parked at most this long ago."`
}

// Validate is called by the parser.
func (f *entryFilter) Validate() error {
	for _, name := range f.Code {
		if _, ok := codeNamed(name); !ok {
			return fmt.Errorf("--code %s is no status code; write unavailable, deadline_exceeded or a number up to 16", strconv.Quote(name))
		}
	}
	return nil
}

// empty reports that f chooses everything.
func (f *entryFilter) empty() bool {
	return f.Namespace == "" && f.Operation == "" && len(f.Kind) == 0 && len(f.State) == 0 &&
		len(f.Code) == 0 && f.Signature == "" && f.OlderThan == 0 && f.NewerThan == 0
}

func (f *entryFilter) message() *dedupv1.DeadLetterFilter {
	m := &dedupv1.DeadLetterFilter{Namespace: f.Namespace, Operation: f.Operation, Signature: f.Signature}
	for _, k := range f.Kind {
		m.Kinds = append(m.Kinds, dedupv1.DeadLetterKind(dedupv1.DeadLetterKind_value["DEAD_LETTER_KIND_"+strings.ToUpper(k)]))
	}
	for _, s := range f.State {
		m.States = append(m.States, dedupv1.DeadLetterState(dedupv1.DeadLetterState_value["DEAD_LETTER_STATE_"+strings.ToUpper(s)]))
	}
	for _, c := range f.Code {
		code, _ := codeNamed(c)                // Validate has read it
		m.Codes = append(m.Codes, int32(code)) //nolint:gosec // one of 17 codes
	}
	if f.OlderThan > 0 {
		m.OlderThan = durationpb.New(time.Duration(f.OlderThan))
	}
	if f.NewerThan > 0 {
		m.YoungerThan = durationpb.New(time.Duration(f.NewerThan))
	}
	return m
}

// codeNamed reads a status code: its name in any case, with or without
// underscores, or its number.
func codeNamed(s string) (codes.Code, bool) {
	plain := func(s string) string { return strings.ToLower(strings.ReplaceAll(s, "_", "")) }
	for c := codes.OK; c <= codes.Unauthenticated; c++ {
		if plain(s) == plain(c.String()) || s == strconv.FormatUint(uint64(c), 10) {
			return c, true
		}
	}
	return 0, false
}

// chosen are the dead letters that a command acts on: by their ids, or all that a
// filter chooses. Nothing of it is read from the environment: what was left there
// would act on entries that nobody looked at.
type chosen struct {
	Entry       []string `arg:"" optional:"" help:"Ids of dead letters, as 'dlq list' prints them; or choose by the flags."`
	entryFilter `embed:""`
	Limit       int  `env:"-" default:"1000" help:"Refuse to act on more dead letters than this at once."`
	DryRun      bool `env:"-" help:"Only print which dead letters it would be; write and send nothing."`
	Yes         bool `env:"-" help:"Do not ask. For scripts."`
}

// Validate is called by the parser.
func (c *chosen) Validate() error {
	if err := c.entryFilter.Validate(); err != nil {
		return err
	}
	switch {
	case len(c.Entry) == 0 && c.empty():
		return errors.New("name dead letters by their ids, or choose them by --namespace and the other flags")
	case len(c.Entry) > 0 && !c.empty():
		return errors.New("name dead letters by their ids or choose them by flags, not both")
	case c.Limit < 1:
		return fmt.Errorf("--limit is %d; it takes 1 or more", c.Limit)
	}
	for _, id := range c.Entry {
		if _, err := entryID(id); err != nil {
			return err
		}
	}
	return nil
}

// entryID reads a dead letter's id.
func entryID(s string) ([]byte, error) {
	id, err := hex.DecodeString(s)
	if err != nil || len(id) != 16 {
		return nil, fmt.Errorf("%s is no id of a dead letter; it has 32 hex digits", strconv.Quote(s))
	}
	return id, nil
}

// find returns the entries, without their requests where a filter chose them.
// Those that are named and not there come back in missing.
func (c *chosen) find(ctx context.Context, r remote, conn grpc.ClientConnInterface) (found []*dedupv1.DeadLetter, missing []string, err error) {
	if len(c.Entry) == 0 {
		walk := entryListing{remote: r, request: &dedupv1.DeadLetterServiceListRequest{Filter: c.message(), PageSize: maxPage}}
		err = walk.each(ctx, conn, func(e *dedupv1.DeadLetter) (bool, error) {
			if len(found) == c.Limit {
				return false, usagef("more than %d dead letters are chosen; choose fewer, or raise --limit", c.Limit)
			}
			found = append(found, e)
			return true, nil
		})
		return found, nil, err
	}
	ids := c.named()
	if len(ids) > c.Limit {
		return nil, nil, usagef("%d dead letters are named; name fewer, or raise --limit", len(ids))
	}
	for _, id := range ids {
		e, err := getEntry(ctx, r, conn, id)
		switch {
		case errors.Is(err, errNoEntry):
			missing = append(missing, hex.EncodeToString(id))
		case err != nil:
			return nil, nil, err
		default:
			found = append(found, e)
		}
	}
	if len(found) == 0 {
		return nil, nil, errNoEntry
	}
	return found, missing, nil
}

// named are the ids that were typed, each once: named twice, an entry would be
// acted on twice.
func (c *chosen) named() [][]byte {
	var ids [][]byte
	seen := map[string]bool{}
	for _, text := range c.Entry {
		id, _ := entryID(text) // Validate has read it
		if !seen[string(id)] {
			seen[string(id)] = true
			ids = append(ids, id)
		}
	}
	return ids
}

// getEntry asks for one entry; errNoEntry when there is none.
func getEntry(ctx context.Context, r remote, conn grpc.ClientConnInterface, id []byte) (*dedupv1.DeadLetter, error) {
	ctx, cancel := context.WithTimeout(ctx, r.Timeout)
	defer cancel()
	reply, err := dedupv1.NewDeadLetterServiceClient(conn).Get(ctx, &dedupv1.DeadLetterServiceGetRequest{EntryId: id})
	if status.Code(err) == codes.NotFound {
		return nil, errNoEntry
	}
	return reply.GetEntry(), overWire(r.Addr, err)
}

// tally counts what became of several entries.
type tally struct {
	verb        string // "replayed"
	all, fault  int
	unprotected int // done, but not as it was meant
}

func (t *tally) add(result string) {
	t.all++
	switch result {
	case resultFailed, string(replay.SkippedLive):
		t.fault++
	case string(replay.Unprotected):
		t.unprotected++
	}
}

// err says what could not be done; nil where all was.
func (t *tally) err() error {
	switch t.all {
	case t.all - t.fault - t.unprotected:
		return nil
	case t.fault:
		return fmt.Errorf("none of %d dead letters was %s", t.all, t.verb)
	}
	var parts []string
	if t.fault > 0 {
		parts = append(parts, fmt.Sprintf("%d of %d dead letters were not %s", t.fault, t.all, t.verb))
	}
	if t.unprotected > 0 {
		parts = append(parts, fmt.Sprintf("%d of %d ran without protection, so that nothing keeps a caller's own retry from doing it again", t.unprotected, t.all))
	}
	if t.fault+t.unprotected < t.all {
		parts = append(parts, "the rest were "+t.verb)
	}
	return &partialError{message: strings.Join(parts, "; ")}
}
