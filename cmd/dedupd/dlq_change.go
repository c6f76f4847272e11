package main

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"google.golang.org/grpc"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
)

// noted is a reason for the audit log.
type noted struct {
	Note string `env:"-" required:"" help:"Why, for the audit log: 1 to 1024 bytes; never a key or a request."`
}

// Validate is called by the parser.
func (n *noted) Validate() error {
	if strings.TrimSpace(n.Note) == "" || len(n.Note) > maxNote {
		return fmt.Errorf("--note is %d bytes; 1 to %d are allowed, and not only white space", len(n.Note), maxNote)
	}
	return nil
}

// dlqRequeueCmd asks the owner's replayer for a replay.
type dlqRequeueCmd struct {
	chosen  `embed:""`
	noted   `embed:""`
	remote  `embed:""`
	display `embed:""`
}

// Validate is called by the parser.
func (c *dlqRequeueCmd) Validate() error { return errors.Join(c.chosen.Validate(), c.noted.Validate()) }

// Run asks for it.
func (c *dlqRequeueCmd) Run(ctx context.Context, s streams) error {
	return c.change(ctx, s, c.remote, c.display, change{
		done: "requeued", consequence: "Their owner's replayer sends %s again, and may open a final error again.",
		send: func(ctx context.Context, client dedupv1.DeadLetterServiceClient, ids [][]byte) ([]*dedupv1.EntryAnswer, error) {
			reply, err := client.Requeue(ctx, &dedupv1.RequeueRequest{EntryIds: ids, Note: c.Note})
			return reply.GetAnswers(), err
		},
	})
}

// dlqDiscardCmd closes dead letters without a replay.
type dlqDiscardCmd struct {
	chosen  `embed:""`
	noted   `embed:""`
	remote  `embed:""`
	display `embed:""`
}

// Validate is called by the parser.
func (c *dlqDiscardCmd) Validate() error { return errors.Join(c.chosen.Validate(), c.noted.Validate()) }

// Run closes them.
func (c *dlqDiscardCmd) Run(ctx context.Context, s streams) error {
	return c.change(ctx, s, c.remote, c.display, change{
		done: "discarded", consequence: "Nobody replays %s any more; what their records say stays as it is.",
		send: func(ctx context.Context, client dedupv1.DeadLetterServiceClient, ids [][]byte) ([]*dedupv1.EntryAnswer, error) {
			reply, err := client.Discard(ctx, &dedupv1.DiscardRequest{EntryIds: ids, Note: c.Note})
			return reply.GetAnswers(), err
		},
	})
}

// change is what a command does to dead letters.
type change struct {
	done        string // "discarded"
	consequence string
	send        func(context.Context, dedupv1.DeadLetterServiceClient, [][]byte) ([]*dedupv1.EntryAnswer, error)
}

const changeBatch = 100 // the protocol's limit of ids in one call

// change finds, shows, asks, and changes.
func (c *chosen) change(ctx context.Context, s streams, r remote, d display, what change) error {
	if !c.DryRun {
		if err := askable(s, c.Yes); err != nil {
			return err
		}
	}
	conn, err := r.connect()
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // nothing is in flight
	found, missing, err := c.find(ctx, r, conn)
	if err != nil {
		return err
	}
	if ok, err := c.agreed(ctx, s, d, found, what.done, what.consequence); !ok || err != nil {
		return err
	}
	results := newResults(s.out, d.Output, what.done)
	for _, id := range missing {
		results.add(entryResult{Entry: id, Result: resultFailed, Message: errNoEntry.Error()})
	}
	for batch := range slices.Chunk(found, changeBatch) {
		if err = c.changeBatch(ctx, r, conn, batch, what, results); err != nil {
			break
		}
	}
	if err != nil {
		results.left(found, "dedupd did not say what came of it")
		err = fmt.Errorf("%w; run the same command again for the rest", err)
	}
	return errors.Join(results.end(), err, results.err())
}

func (c *chosen) changeBatch(ctx context.Context, r remote, conn grpc.ClientConnInterface, batch []*dedupv1.DeadLetter, what change, results *results) error {
	ctx, cancel := context.WithTimeout(ctx, r.Timeout)
	defer cancel()
	ids := make([][]byte, len(batch))
	for i, e := range batch {
		ids[i] = e.GetEntryId()
	}
	answers, err := what.send(ctx, dedupv1.NewDeadLetterServiceClient(conn), ids)
	if err != nil {
		return overWire(r.Addr, err)
	}
	for i, a := range answers {
		res := entryResult{
			Entry: hex.EncodeToString(a.GetEntryId()), Result: strings.ToUpper(what.done),
			Operation: batch[min(i, len(batch)-1)].GetIdentity().GetOperation(),
		}
		if a.GetReason() != dedupv1.Reason_REASON_UNSPECIFIED {
			res.Result, res.Code, res.Message = resultFailed, strings.TrimPrefix(a.GetReason().String(), "REASON_"), a.GetMessage()
		}
		results.add(res)
	}
	return nil
}

// agreed shows the entries and asks; false where nothing is to be done.
func (c *chosen) agreed(ctx context.Context, s streams, d display, found []*dedupv1.DeadLetter, done, consequence string) (bool, error) {
	if len(found) == 0 {
		_, err := fmt.Fprintln(s.err, "no dead letters are chosen; nothing was written")
		return false, err
	}
	w, shown := s.err, display{Output: outputTable, ShowKeys: d.ShowKeys}
	if c.DryRun {
		w, shown = s.out, d
	}
	if c.DryRun || !c.Yes {
		rows := shown.entryRows(w)
		for _, e := range found {
			if err := rows.add(e); err != nil {
				return false, err
			}
		}
		if err := rows.end(false); err != nil {
			return false, err
		}
	}
	switch {
	case c.DryRun:
		_, err := fmt.Fprintf(s.err, "dry run: %s would be %s; nothing was written\n", counted(len(found), "dead letter"), done)
		return false, err
	case c.Yes:
		return true, nil
	}
	if err := confirm(ctx, s, "\n"+fmt.Sprintf(consequence, counted(len(found), "dead letter"))); err != nil {
		return false, err
	}
	return true, nil
}

// counted is a number of things.
func counted[N int | int64](n N, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

const resultFailed = "FAILED"

// entryResult is what became of one entry.
type entryResult struct {
	Entry     string `json:"entry"`
	Operation string `json:"operation,omitempty"`
	Result    string `json:"result"`
	Code      string `json:"code,omitempty"`
	Message   string `json:"message,omitempty"`
	Replaced  string `json:"replacedBy,omitempty"` // the entry that was made of it
}

// results prints what became of each entry: JSON at once, a table at the end.
type results struct {
	tally
	w      io.Writer
	format outputFormat
	table  table.Writer
	told   map[string]bool // entries
	failed error           // of the writer
}

func newResults(w io.Writer, format outputFormat, done string) *results {
	t := newTable()
	t.AppendHeader(table.Row{"entry", "operation", "result", "code", "message"})
	return &results{w: w, format: format, table: t, told: map[string]bool{}, tally: tally{verb: done}}
}

func (r *results) add(res entryResult) {
	r.tally.add(res.Result)
	r.told[res.Entry] = true
	if r.format == outputJSON {
		line, err := json.Marshal(res)
		if err == nil {
			_, err = fmt.Fprintln(r.w, string(line))
		}
		r.failed = errors.Join(r.failed, err)
		return
	}
	message := printable([]byte(res.Message))
	if res.Replaced != "" {
		message = strings.TrimSpace("now entry " + res.Replaced + "  " + message)
	}
	r.table.AppendRow(table.Row{res.Entry, printable([]byte(res.Operation)), res.Result, res.Code, message})
}

// left names the entries that nothing has been told of, since something has ended
// the command before its time, and returns their ids.
func (r *results) left(found []*dedupv1.DeadLetter, why string) (ids []string) {
	for _, e := range found {
		if id := hex.EncodeToString(e.GetEntryId()); !r.told[id] {
			r.add(entryResult{Entry: id, Operation: e.GetIdentity().GetOperation(), Result: resultFailed, Message: why})
			ids = append(ids, id)
		}
	}
	return ids
}

// end prints the table.
func (r *results) end() error {
	if r.format == outputJSON || r.all == 0 {
		return r.failed
	}
	_, err := fmt.Fprintln(r.w, r.table.Render())
	return err
}
