package main

import (
	"cmp"
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
)

// dlqShowCmd shows one dead letter.
type dlqShowCmd struct {
	Entry       string `arg:"" help:"Id of the dead letter, as 'dlq list' and errors print it."`
	ShowRequest bool   `help:"Print the request and its metadata, which may hold personal data and secrets: as JSON with --descriptors, or with --target of a service that has gRPC reflection; else as base64."`
	descriptors `embed:""`
	target      `embed:""`
	remote      `embed:""`
	display     `embed:""`
}

// Validate is called by the parser.
func (c *dlqShowCmd) Validate() error {
	if _, err := entryID(c.Entry); err != nil {
		return err
	}
	if c.Target != "" {
		return c.check()
	}
	return nil
}

// Run shows it.
func (c *dlqShowCmd) Run(ctx context.Context, s streams) error {
	conn, err := c.connect()
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // nothing is in flight
	id, _ := entryID(c.Entry)           // Validate has read it
	e, err := getEntry(ctx, c.remote, conn, id)
	if err != nil {
		return err
	}
	if c.Output == outputJSON {
		return c.entryJSON(s.out, e, c.ShowRequest)
	}
	request := ""
	if c.ShowRequest && e.GetRequest() != nil {
		if request, err = c.request(ctx, e); err != nil {
			return err
		}
	}
	return c.entry(s.out, e, request)
}

// request is the request as text: JSON where a descriptor is at hand.
func (c *dlqShowCmd) request(ctx context.Context, e *dedupv1.DeadLetter) (string, error) {
	if c.Descriptors == "" && c.Target == "" {
		return fmt.Sprintf("%q (give --descriptors or --target to read it as JSON)", e.GetRequest().GetValue()), nil
	}
	types, err := c.typesOf(ctx, c.target, c.Timeout, e.GetMethod())
	if err != nil {
		return "", err
	}
	return types.toJSON(e.GetRequest().GetValue())
}

// entry prints one dead letter for a person.
func (c *dlqShowCmd) entry(w io.Writer, e *dedupv1.DeadLetter, request string) error {
	t := newTable()
	for _, f := range c.entryFacts(e) {
		if f.value != "" {
			t.AppendRow(table.Row{f.name, f.value})
		}
	}
	for i, a := range e.GetAttempts() {
		name := ""
		if i == 0 {
			name = "attempts"
		}
		t.AppendRow(table.Row{name, a.GetAt().AsTime().UTC().Format("2006-01-02 15:04:05.000Z") + " " + codeName(a.GetCode())})
	}
	if c.ShowRequest {
		for _, m := range e.GetMetadata() {
			t.AppendRow(table.Row{"metadata", printable([]byte(m.GetKey())) + ": " + printable(m.GetValue())})
		}
	}
	text := t.Render()
	if request != "" {
		text += "\n\n" + safeLines(request)
	}
	_, err := fmt.Fprintln(w, text)
	return err
}

func (d display) entryFacts(e *dedupv1.DeadLetter) []fact {
	id := e.GetIdentity()
	request := "none stored: it cannot be replayed"
	if e.GetHasRequest() {
		request = strconv.FormatInt(e.GetRequestSize(), 10) + " bytes of " + printable([]byte(e.GetRequest().GetTypeUrl()))
	}
	facts := []fact{
		{"entry", hex.EncodeToString(e.GetEntryId())},
		{"kind", kindName(e.GetKind())},
		{"state", entryState(e)},
		{"result", resultName(e.GetResult())},
		{"record", hex.EncodeToString(e.GetRecordId())},
		{"record state", stateName(e.GetRecordState())},
		{"namespace", id.GetNamespace()},
		{"operation", printable([]byte(id.GetOperation()))},
		{"caller", d.secret(id.GetCaller())},
		{"key", d.secret(id.GetKey())},
		{"target", printable([]byte(e.GetTarget()))},
		{"method", printable([]byte(e.GetMethod()))},
		{"request", request},
		{"failed with", failure(e)},
		{"parked", at(e.GetParkedAt(), e.GetAge(), "ago")},
		{"parked last", at(e.GetLastParkedAt(), nil, "")},
		{"count", strconv.FormatInt(e.GetCount(), 10)},
		{"replays", strconv.FormatInt(e.GetReplays(), 10)},
		{"last failed with", statusText(e.GetReplayStatus())},
		{"claimed for", rough(e.GetClaimLeft())},
		{"closed", at(e.GetClosedAt(), nil, "")},
		{"edited from", hex.EncodeToString(e.GetParentId())},
		{"note", printable([]byte(e.GetNote()))},
	}
	if e.GetRecordState() == dedupv1.State_STATE_UNSPECIFIED {
		facts[5].value = ""
	}
	if c := e.GetConflict(); c != nil {
		facts = append(facts, fact{"conflict", conflictText(c)})
	}
	return append(facts, fact{"next", entryNext(e)})
}

// failure is what it was parked for, code and message.
func failure(e *dedupv1.DeadLetter) string {
	return cmp.Or(statusText(e.GetStatus()), codeName(e.GetCode()))
}

// statusText is the code and message of a serialised google.rpc.Status, or "".
func statusText(raw []byte) string {
	var s statuspb.Status
	if len(raw) == 0 || proto.Unmarshal(raw, &s) != nil {
		return ""
	}
	if s.GetMessage() == "" {
		return codeName(s.GetCode())
	}
	return codeName(s.GetCode()) + ": " + printable([]byte(s.GetMessage()))
}

func conflictText(c *dedupv1.ConflictInfo) string {
	what := "an error"
	if c.GetSuccess() {
		what = "a success"
	}
	met := "its record was gone: forgotten, or past its time"
	if c.GetRecordFence() != 0 {
		met = fmt.Sprintf("the record had fence %d", c.GetRecordFence())
	}
	return fmt.Sprintf("%s of the holder with fence %d was refused at %s, when %s",
		what, c.GetRefusedFence(), c.GetAt().AsTime().UTC().Format(time.RFC3339), met)
}

// entryNext says what an operator can do about an entry.
func entryNext(e *dedupv1.DeadLetter) string {
	id := hex.EncodeToString(e.GetEntryId())
	switch e.GetState() {
	case dedupv1.DeadLetterState_DEAD_LETTER_STATE_RESOLVED, dedupv1.DeadLetterState_DEAD_LETTER_STATE_DISCARDED:
		return ""
	case dedupv1.DeadLetterState_DEAD_LETTER_STATE_REPLAYING:
		return "wait: somebody replays it"
	case dedupv1.DeadLetterState_DEAD_LETTER_STATE_PARKED, dedupv1.DeadLetterState_DEAD_LETTER_STATE_UNSPECIFIED:
	}
	switch {
	case e.GetKind() == dedupv1.DeadLetterKind_DEAD_LETTER_KIND_CONFLICT:
		return "the effect may have happened twice: look, undo one, then: dedupd dlq discard " + id + " --note ..."
	case e.GetRecordState() == dedupv1.State_STATE_UNKNOWN && e.GetHasRequest():
		return "dedupd dlq replay " + id + " --target HOST:PORT ..., where its service has a reconciler; else find out whether the effect happened, then: dedupd keys resolve --id " + hex.EncodeToString(e.GetRecordId())[:shortID] + " ..."
	case e.GetRecordState() == dedupv1.State_STATE_UNKNOWN:
		return "find out whether the effect happened, then: dedupd keys resolve --id " + hex.EncodeToString(e.GetRecordId())[:shortID] + " ..."
	case !e.GetHasRequest():
		return "settle it by hand, then: dedupd dlq discard " + id + " --note ..."
	}
	return "dedupd dlq replay " + id + " --target HOST:PORT ..."
}

// safeLines keeps the lines of a text and quotes what a terminal would act upon.
func safeLines(s string) string {
	lines := strings.Split(s, "\n")
	for i, line := range lines {
		lines[i] = printable([]byte(line))
	}
	return strings.Join(lines, "\n")
}
