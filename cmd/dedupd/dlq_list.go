package main

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
)

// dlqListCmd lists dead letters.
type dlqListCmd struct {
	entryFilter `embed:""`
	NewestFirst bool `help:"List the newest first."`
	Limit       int  `default:"100" help:"Stop after this many dead letters; 0 lists all."`
	remote      `embed:""`
	display     `embed:""`
}

// Validate is called by the parser.
func (c *dlqListCmd) Validate() error {
	if c.Limit < 0 {
		return usagef("--limit is %d; it takes 0 for all, or a number of dead letters", c.Limit)
	}
	return c.entryFilter.Validate()
}

// Run lists them.
func (c *dlqListCmd) Run(ctx context.Context, s streams) error {
	conn, err := c.connect()
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // nothing is in flight
	request := &dedupv1.DeadLetterServiceListRequest{Filter: c.message(), NewestFirst: c.NewestFirst, PageSize: maxPage}
	if c.Limit > 0 {
		request.PageSize = int32(min(c.Limit, maxPage))
	}
	rows := c.entryRows(s.out)
	left := c.Limit
	walk := entryListing{remote: c.remote, request: request}
	err = walk.each(ctx, conn, func(e *dedupv1.DeadLetter) (bool, error) {
		left--
		return left != 0, rows.add(e)
	})
	if err != nil {
		return err
	}
	return rows.end(c.Limit > 0 && left == 0)
}

// entryListing reads dead letters page after page.
type entryListing struct {
	remote  remote
	request *dedupv1.DeadLetterServiceListRequest
}

// each hands every entry to do until it says no, and returns its error.
func (l entryListing) each(ctx context.Context, conn grpc.ClientConnInterface, do func(*dedupv1.DeadLetter) (bool, error)) error {
	client := dedupv1.NewDeadLetterServiceClient(conn)
	for {
		page, err := l.page(ctx, client)
		if err != nil {
			return err
		}
		for _, e := range page.GetEntries() {
			if more, err := do(e); err != nil || !more {
				return err
			}
		}
		if len(page.GetNextPageToken()) == 0 {
			return nil
		}
		l.request.PageToken = page.GetNextPageToken()
	}
}

func (l entryListing) page(ctx context.Context, client dedupv1.DeadLetterServiceClient) (*dedupv1.DeadLetterServiceListResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, l.remote.Timeout)
	defer cancel()
	page, err := client.List(ctx, l.request)
	return page, overWire(l.remote.Addr, err)
}

// entryRows prints many dead letters as they come: JSON at once, a table at the
// end.
type entryRows struct {
	display
	w     io.Writer
	table table.Writer
	count int
}

func (d display) entryRows(w io.Writer) *entryRows {
	t := newTable()
	t.AppendHeader(table.Row{"entry", "kind", "state", "namespace", "operation", "caller", "key", "code", "count", "replays", "age", "result"})
	return &entryRows{display: d, w: w, table: t}
}

func (r *entryRows) add(e *dedupv1.DeadLetter) error {
	r.count++
	if r.Output == outputJSON {
		return r.entryJSON(r.w, e, false)
	}
	id := e.GetIdentity()
	r.table.AppendRow(table.Row{
		hex.EncodeToString(e.GetEntryId()), kindName(e.GetKind()), entryState(e), id.GetNamespace(),
		printable([]byte(id.GetOperation())), r.secret(id.GetCaller()), r.secret(id.GetKey()), codeName(e.GetCode()),
		strconv.FormatInt(e.GetCount(), 10), strconv.FormatInt(e.GetReplays(), 10), rough(e.GetAge()), resultName(e.GetResult()),
	})
	return nil
}

// end prints what is left, and whether the listing was cut.
func (r *entryRows) end(cut bool) error {
	if r.Output == outputJSON {
		return nil
	}
	if r.count == 0 {
		_, err := fmt.Fprintln(r.w, "no dead letters")
		return err
	}
	text := r.table.Render()
	if cut {
		text += "\nstopped at --limit; 0 lists all"
	}
	_, err := fmt.Fprintln(r.w, text)
	return err
}

// dlqGroupsCmd counts dead letters that have something in common.
type dlqGroupsCmd struct {
	entryFilter `embed:""`
	Limit       int          `default:"100" help:"Print this many groups, the largest: 1 to 1000."`
	Output      outputFormat `short:"o" enum:"table,json" default:"table" help:"How to print: table, or json (one group per line)."`
	remote      `embed:""`
}

// Validate is called by the parser.
func (c *dlqGroupsCmd) Validate() error {
	if c.Limit < 1 || c.Limit > maxPage {
		return usagef("--limit is %d; it takes 1 to %d", c.Limit, maxPage)
	}
	return c.entryFilter.Validate()
}

// Run prints them.
func (c *dlqGroupsCmd) Run(ctx context.Context, s streams) error {
	conn, err := c.connect()
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // nothing is in flight
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	reply, err := dedupv1.NewDeadLetterServiceClient(conn).Groups(ctx, &dedupv1.GroupsRequest{
		Filter: c.message(), Limit: int32(c.Limit), //nolint:gosec // Validate bounds it
	})
	if err != nil {
		return overWire(c.Addr, err)
	}
	t := newTable()
	t.AppendHeader(table.Row{"entries", "parked", "namespace", "operation", "kind", "code", "oldest", "newest", "sample", "message"})
	for _, g := range reply.GetGroups() {
		if c.Output == outputJSON {
			if err := jsonLine(s.out, g); err != nil {
				return err
			}
			continue
		}
		t.AppendRow(table.Row{
			strconv.FormatInt(g.GetEntries(), 10), strconv.FormatInt(g.GetCount(), 10), g.GetNamespace(), printable([]byte(g.GetOperation())),
			kindName(g.GetKind()), codeName(g.GetCode()), rough(g.GetOldestAge()), rough(g.GetNewestAge()),
			hex.EncodeToString(g.GetSampleId()), printable([]byte(g.GetSignature())),
		})
	}
	switch {
	case c.Output == outputJSON:
		return nil
	case len(reply.GetGroups()) == 0:
		_, err = fmt.Fprintln(s.out, "no dead letters")
	default:
		_, err = fmt.Fprintln(s.out, t.Render())
	}
	return err
}

func kindName(k dedupv1.DeadLetterKind) string {
	return strings.ToLower(strings.TrimPrefix(k.String(), "DEAD_LETTER_KIND_"))
}

// entryState is the state's name, and whether an operator has asked for a replay.
func entryState(e *dedupv1.DeadLetter) string {
	name := strings.ToLower(strings.TrimPrefix(e.GetState().String(), "DEAD_LETTER_STATE_"))
	if e.GetRequested() && e.GetState() == dedupv1.DeadLetterState_DEAD_LETTER_STATE_PARKED {
		name += ", requested"
	}
	return name
}

func resultName(r dedupv1.ReplayResult) string {
	if r == dedupv1.ReplayResult_REPLAY_RESULT_UNSPECIFIED {
		return ""
	}
	return strings.ToLower(strings.TrimPrefix(r.String(), "REPLAY_RESULT_"))
}

func codeName(c int32) string {
	if c == int32(codes.OK) {
		return ""
	}
	return codes.Code(c).String() //nolint:gosec // any number is a code to gRPC
}

// entryJSON prints an entry on one line. What a request says is left out unless
// it is asked for.
func (d display) entryJSON(w io.Writer, e *dedupv1.DeadLetter, request bool) error {
	e = proto.CloneOf(e)
	d.mask(e.GetIdentity())
	if !request {
		e.Request, e.Metadata = nil, nil
	}
	return jsonLine(w, e)
}
