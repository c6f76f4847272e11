package main

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/internal/show"
)

// outputFormat is how results are printed.
type outputFormat string

const (
	outputTable outputFormat = "table"
	outputJSON  outputFormat = "json"
)

// display is how records are printed.
type display struct {
	Output   outputFormat `short:"o" enum:"table,json" default:"table" help:"How to print: table, or json (protobuf's JSON; lists print one record per line)."`
	ShowKeys bool         `help:"Print keys and callers. Without it they are masked, since they may be secrets."`
}

// one prints a single record.
func (d display) one(w io.Writer, info *dedupv1.RecordInfo) error {
	if d.Output == outputJSON {
		return d.json(w, info)
	}
	t := newTable()
	for _, f := range d.facts(info) {
		if f.value != "" {
			t.AppendRow(table.Row{f.name, f.value})
		}
	}
	_, err := fmt.Fprintln(w, t.Render())
	return err
}

// json prints info on one line.
func (d display) json(w io.Writer, info *dedupv1.RecordInfo) error {
	info = proto.CloneOf(info)
	d.mask(info.GetIdentity())
	return jsonLine(w, info)
}

// mask leaves out of JSON what a person would see masked.
func (d display) mask(id *dedupv1.Identity) {
	if id != nil && !d.ShowKeys {
		id.Key, id.Caller = nil, nil
	}
}

// jsonLine prints m on one line.
func jsonLine(w io.Writer, m proto.Message) error {
	text, err := protojson.Marshal(m)
	if err != nil {
		return err
	}
	// protojson varies its white space on purpose; scripts like it stable.
	var line bytes.Buffer
	if err := json.Compact(&line, text); err != nil {
		return err
	}
	_, err = fmt.Fprintln(w, line.String())
	return err
}

type fact struct{ name, value string }

func (d display) facts(info *dedupv1.RecordInfo) []fact {
	id := info.GetIdentity()
	facts := []fact{
		{"record", hex.EncodeToString(info.GetRecordId())},
		{"state", stateName(info.GetState()) + remarks(info)},
		{"namespace", id.GetNamespace()},
		{"operation", printable([]byte(id.GetOperation()))},
		{"caller", d.secret(id.GetCaller())},
		{"key", d.secret(id.GetKey())},
		{"fence", strconv.FormatInt(info.GetFence(), 10)},
		{"mode", strings.ToLower(strings.TrimPrefix(info.GetMode().String(), "MODE_"))},
		{"grants", strconv.FormatInt(info.GetGrants(), 10)},
		{"granted", at(info.GetGrantedAt(), info.GetAge(), "ago")},
		{"lease ends", at(info.GetLeaseEndsAt(), info.GetLeaseLeft(), "left")},
		{"completed", at(info.GetCompletedAt(), nil, "")},
		{"kept until", at(info.GetEnds().GetExpiresAt(), info.GetEnds().GetExpiresIn(), "left")},
		{"absent from", at(info.GetEnds().GetAbsentAt(), info.GetEnds().GetAbsentIn(), "left")},
		{"note", printable([]byte(info.GetNote()))},
		{"version", hex.EncodeToString(info.GetVersion())},
	}
	if info.GetState() == dedupv1.State_STATE_UNKNOWN {
		facts = append(facts, fact{"next", nextStep(info)})
	}
	return facts
}

// nextStep says what an operator can do about an unknown outcome.
func nextStep(info *dedupv1.RecordInfo) string {
	if info.GetLeaseLeft().AsDuration() > 0 {
		return "wait for the lease to end: the effect may still be on its way"
	}
	return "find out whether the effect happened, then: dedupd keys resolve --id " +
		shortOf(info) + " --completed | --released --basis ..., with --note"
}

// remarks are what qualifies a state.
func remarks(info *dedupv1.RecordInfo) string {
	var out []string
	if info.GetByOperator() {
		out = append(out, "by operator")
	}
	if info.GetBound() {
		out = append(out, "only the same request may run again")
	}
	if len(out) == 0 {
		return ""
	}
	return " (" + strings.Join(out, ", ") + ")"
}

// rows prints many records as they come: JSON at once, a table at the end.
type rows struct {
	display
	w     io.Writer
	table table.Writer
	count int
}

func (d display) rows(w io.Writer) *rows {
	t := newTable()
	t.AppendHeader(table.Row{"record", "state", "namespace", "operation", "caller", "key", "age", "lease left", "kept for"})
	return &rows{display: d, w: w, table: t}
}

func (r *rows) add(info *dedupv1.RecordInfo) error {
	r.count++
	if r.Output == outputJSON {
		return r.json(r.w, info)
	}
	id := info.GetIdentity()
	r.table.AppendRow(table.Row{
		shortOf(info), stateName(info.GetState()), id.GetNamespace(),
		printable([]byte(id.GetOperation())), r.secret(id.GetCaller()), r.secret(id.GetKey()),
		rough(info.GetAge()), rough(info.GetLeaseLeft()), rough(info.GetEnds().GetExpiresIn()),
	})
	return nil
}

// end prints what is left, and whether the listing was cut.
func (r *rows) end(cut bool) error {
	if r.Output == outputJSON {
		return nil
	}
	if r.count == 0 {
		_, err := fmt.Fprintln(r.w, "no records")
		return err
	}
	text := r.table.Render()
	if cut {
		text += "\nstopped at --limit; 0 lists all"
	}
	_, err := fmt.Fprintln(r.w, text)
	return err
}

// newTable has aligned columns and no lines, for people and for awk.
func newTable() table.Writer {
	t := table.NewWriter()
	t.SetStyle(table.StyleDefault)
	t.Style().Options = table.OptionsNoBordersAndSeparators
	t.Style().Format.Header = text.FormatUpper
	t.Style().Box.PaddingLeft = ""
	t.Style().Box.PaddingRight = "  "
	t.SuppressTrailingSpaces()
	return t
}

// secret masks a key or a caller unless they are to be shown.
func (d display) secret(s []byte) string { return show.Secret(s, d.ShowKeys) }

// printable returns b as text that is harmless on a terminal.
func printable(b []byte) string { return show.Printable(b) }

// shortOf is as much of the record's id as errors and logs show.
func shortOf(info *dedupv1.RecordInfo) string {
	id := hex.EncodeToString(info.GetRecordId())
	return id[:min(len(id), shortID)]
}

func stateName(s dedupv1.State) string { return show.Name(s, "STATE_") }

func stateOf(name string) dedupv1.State {
	return dedupv1.State(dedupv1.State_value["STATE_"+strings.ToUpper(name)])
}

// at writes a time for people, and how far away it is.
func at(t *timestamppb.Timestamp, d *durationpb.Duration, word string) string {
	if t == nil {
		return ""
	}
	out := t.AsTime().UTC().Format("2006-01-02 15:04:05Z")
	if d != nil {
		out += " (" + rough(d) + " " + word + ")"
	}
	return out
}

// rough rounds to what a person reads: two units at most.
func rough(d *durationpb.Duration) string {
	if d == nil {
		return ""
	}
	return show.Rough(d.AsDuration())
}
