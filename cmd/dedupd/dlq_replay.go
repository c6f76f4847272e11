package main

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"

	"github.com/dedupd/dedupd/cmd/dedupd/internal/demo"
	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors"
	"github.com/dedupd/dedupd/interceptors/policy"
	"github.com/dedupd/dedupd/interceptors/replay"
)

// dlqReplayCmd sends dead letters again. dedupd itself calls nobody: this process
// does, and only where it is told to.
type dlqReplayCmd struct {
	chosen      `embed:""`
	target      `embed:""`
	Edit        string        `env:"-" placeholder:"FILE" help:"Send this request in place of the stored one, of one dead letter: protobuf's JSON, as 'dlq show --show-request' prints it; - reads stdin. It gets a new key and a new dead letter, linked to the old one, which is closed."`
	Force       bool          `env:"-" help:"Send what nobody can look up any more, its key having expired, under a new key. If the work was done after all, it is done twice."`
	Concurrency int           `env:"-" default:"4" help:"How many to send at a time, once an answer has shown that the service looks at keys."`
	Rate        float64       `env:"-" default:"10" help:"How many to begin in a second."`
	CallTimeout time.Duration `env:"-" default:"30s" help:"How long each may take, up to 14m."`
	descriptors `embed:""`
	remote      `embed:""`
	display     `embed:""`
}

// Validate is called by the parser.
func (c *dlqReplayCmd) Validate() error {
	if err := c.chosen.Validate(); err != nil {
		return err
	}
	if !c.DryRun {
		if err := c.check(); err != nil {
			return err
		}
	}
	switch {
	case c.Edit != "" && len(c.Entry) != 1:
		return errors.New("--edit belongs to one dead letter, named by its id")
	case c.Concurrency < 1 || c.Rate <= 0:
		return errors.New("--concurrency and --rate take more than zero")
	case c.CallTimeout < time.Second || c.CallTimeout > 14*time.Minute:
		return fmt.Errorf("--call-timeout is %v; it takes 1s to 14m", c.CallTimeout)
	}
	return nil
}

// Run finds them, asks, and sends them.
func (c *dlqReplayCmd) Run(ctx context.Context, s streams) error {
	if !c.DryRun {
		if err := askable(s, c.Yes); err != nil {
			return err
		}
	}
	conn, err := c.connect()
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // nothing is in flight
	found, missing, err := c.find(ctx, c.remote, conn)
	if err != nil {
		return err
	}
	consequence := "%s: sent to " + c.Target + ". What has not been done yet is done, under its first caller's name; what has been done is not done again."
	if c.Edit != "" {
		consequence = "%s: replaced. The new request is sent to " + c.Target + " under a new key, and the old key is closed: its caller's own retry is refused from now on, and the old request is never sent."
	}
	if ok, err := c.agreed(ctx, s, c.display, found, "replayed", consequence); !ok || err != nil {
		return err
	}
	out, err := c.dialTarget()
	if err != nil {
		return err
	}
	defer func() { _ = out.Close() }() // nothing is in flight
	run := &replaying{
		dlqReplayCmd: c, dl: dedupv1.NewDeadLetterServiceClient(conn), conn: conn,
		results: newResults(s.out, c.Output, "replayed"), progress: progressIn(s, "dead letters"),
	}
	if run.replayer, err = replay.New(replay.Config{
		DeadLetters: run.dl, Conn: out, Operator: true, Concurrency: c.Concurrency, Rate: c.Rate, CallTime: c.CallTimeout,
	}); err != nil {
		return err
	}
	for _, id := range missing {
		run.results.add(entryResult{Entry: id, Result: resultFailed, Message: errNoEntry.Error()})
	}
	ctx = c.with(ctx)
	if c.Edit != "" {
		err = run.edited(ctx, s, found[0])
	} else {
		err = run.all(ctx, found)
	}
	err = overWire(c.Addr, err)
	if err != nil && c.Edit == "" {
		err = fmt.Errorf("%w; %s", err, c.goOn(run.results.left(found, "nothing was sent")))
	}
	return errors.Join(run.results.end(), err, run.results.err())
}

// typedIDs is how many ids somebody can be asked to type.
const typedIDs = 20

// goOn says what to type for entries that were not sent. Metadata may be secret.
func (c *dlqReplayCmd) goOn(ids []string) string {
	if len(ids) == 0 || len(ids) > typedIDs {
		return "run the same command again: what has been done is not done again"
	}
	words := append([]string{"go on with: dedupd dlq replay"}, ids...)
	words = append(words, "--target", c.Target)
	switch {
	case c.Plaintext:
		words = append(words, "--plaintext")
	case c.CA != "":
		words = append(words, "--tls", "--ca", strconv.Quote(c.CA))
	default:
		words = append(words, "--tls")
	}
	for _, m := range c.Metadata {
		name, _, _ := strings.Cut(m, "=")
		words = append(words, "--metadata", name+"=...")
	}
	if c.Force {
		words = append(words, "--force")
	}
	words = append(words, "--addr", c.Addr)
	if c.remote.TLS {
		words = append(words, "--addr-tls")
	}
	for _, file := range [][2]string{{"--addr-ca", c.remote.CA}, {"--addr-cert", c.Cert}, {"--addr-key", c.Key}} {
		if file[1] != "" {
			words = append(words, file[0], strconv.Quote(file[1]))
		}
	}
	return strings.Join(words, " ")
}

// dialTarget connects to the service through the interceptors, as its clients do.
func (c *dlqReplayCmd) dialTarget() (*grpc.ClientConn, error) {
	opts, err := interceptors.ClientOptions(interceptors.WithoutBudget())
	if err != nil {
		return nil, err
	}
	return c.dial(opts...)
}

// replaying is one run of the command.
type replaying struct {
	*dlqReplayCmd
	dl       dedupv1.DeadLetterServiceClient
	conn     grpc.ClientConnInterface
	replayer *replay.Replayer
	results  *results
	progress demo.Progress
}

// all sends the entries, and where that is allowed those that have expired under
// new keys.
func (r *replaying) all(ctx context.Context, found []*dedupv1.DeadLetter) error {
	ids := make([][]byte, len(found))
	byID := map[string]*dedupv1.DeadLetter{}
	for i, e := range found {
		ids[i], byID[string(e.GetEntryId())] = e.GetEntryId(), e
	}
	var expired [][]byte
	r.progress.Begin("replay", len(ids))
	err := r.replayer.Replay(ctx, ids, func(res replay.Result) {
		r.progress.Placed()
		if r.Force && expiredKey(res) {
			expired = append(expired, res.EntryID)
			return
		}
		r.results.add(r.tell(res, byID[string(res.EntryID)], nil))
	})
	r.progress.End()
	for _, id := range expired {
		if err != nil {
			break
		}
		err = r.forced(ctx, id)
	}
	return err
}

// expiredKey reports that nobody can look the work up any more.
func expiredKey(res replay.Result) bool {
	reason, _ := interceptors.ReasonOf(res.Err)
	return res.Reason == dedupv1.Reason_REASON_KEY_EXPIRED || reason == dedupv1.Reason_REASON_KEY_EXPIRED
}

// tell says what came of one entry.
func (r *replaying) tell(res replay.Result, e *dedupv1.DeadLetter, parent []byte) entryResult {
	out := entryResult{
		Entry: hex.EncodeToString(res.EntryID), Operation: e.GetIdentity().GetOperation(), Result: string(res.Outcome),
	}
	if res.Err != nil {
		st := policy.StatusOf(res.Err)
		out.Code, out.Message = st.Code().String(), cmp.Or(met(r.Target, st), st.Message())
		if reason, _ := interceptors.ReasonOf(res.Err); reason == dedupv1.Reason_REASON_OUTCOME_UNKNOWN {
			out.Message += "; find out, then: dedupd keys resolve --id " + hex.EncodeToString(e.GetRecordId())[:shortID]
		}
		if expiredKey(res) {
			out.Message += "; --force sends it under a new key, if you are sure that it was not done"
		}
	}
	if res.Outcome == replay.SkippedLive {
		out.Message = "somebody else is at it; try again later"
	}
	if parent != nil {
		out.Entry, out.Replaced = hex.EncodeToString(parent), hex.EncodeToString(res.EntryID)
	}
	return out
}
