package console

import (
	"context"
	"encoding/hex"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/internal/show"
)

// A page of a listing reads a bounded number of records and may be empty; a
// search goes on for this long before it asks whether to go on.
const searchTime = 3 * time.Second

// listing is the page of records.
type listing struct {
	Namespace, Operation, State string
	Records                     []*dedupv1.RecordInfo
	Next                        string // query of the next page, or ""
	States                      []string
	// Of a search by key, which is sent by POST so that no address holds a key.
	Key     string
	Token   string
	Partial bool // the search has not seen all yet
}

func stateNames() []string {
	names := make([]string, 0, len(dedupv1.State_name))
	for _, s := range []dedupv1.State{
		dedupv1.State_STATE_UNKNOWN, dedupv1.State_STATE_RESERVED, dedupv1.State_STATE_COMPLETED,
		dedupv1.State_STATE_RELEASED, dedupv1.State_STATE_EXPIRED,
	} {
		names = append(names, show.Name(s, "STATE_"))
	}
	return names
}

// records lists by namespace, operation and state.
func (c *console) records(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	page := &listing{
		Namespace: field(q, "namespace"), Operation: field(q, "operation"), State: field(q, "state"),
		States: stateNames(),
	}
	token, err := hex.DecodeString(field(q, "from"))
	if err != nil {
		c.fail(w, "records", status.Error(codes.InvalidArgument, "the address of this page is damaged; start from the first page"))
		return
	}
	req := &dedupv1.ListRecordsRequest{
		Namespace: page.Namespace, Operation: page.Operation, PageSize: pageSize, PageToken: token,
	}
	if page.State != "" {
		req.States = []dedupv1.State{dedupv1.State(dedupv1.State_value["STATE_"+strings.ToUpper(page.State)])}
	}
	next, err := c.search(r.Context(), req, page)
	if err != nil {
		c.fail(w, "records", err)
		return
	}
	if len(next) > 0 {
		q.Set("from", hex.EncodeToString(next))
		page.Next = "/console/records?" + q.Encode()
	}
	c.render(w, http.StatusOK, "records", "Records", "records", page)
}

// findRecords lists the records of one key, whoever the caller is; or goes to
// the one record whose id was given.
func (c *console) findRecords(w http.ResponseWriter, r *http.Request) {
	if err := r.ParseForm(); err != nil {
		c.fail(w, "records", status.Error(codes.InvalidArgument, "the form is too large or damaged"))
		return
	}
	text := r.PostForm.Get("key") // as typed: a key has no white space at its ends, but a typo is the operator's to see
	if id, err := hex.DecodeString(strings.TrimSpace(text)); err == nil && len(id) == 32 {
		http.Redirect(w, r, "/console/records/"+hex.EncodeToString(id), http.StatusSeeOther) //nolint:gosec // hex digits
		return
	}
	page := &listing{Key: text, States: stateNames()}
	token, err := hex.DecodeString(r.PostForm.Get("from"))
	if err != nil || text == "" {
		c.fail(w, "records", status.Error(codes.InvalidArgument, "give the key, or the 64 hex digits of a record's id"))
		return
	}
	next, err := c.search(r.Context(), &dedupv1.ListRecordsRequest{Key: []byte(text), PageSize: pageSize, PageToken: token}, page)
	if err != nil {
		c.fail(w, "records", err)
		return
	}
	page.Token = hex.EncodeToString(next)
	c.render(w, http.StatusOK, "records", "Records", "records", page)
}

// search pages until the page is full, all is seen, or the time is up, and
// returns where to go on.
func (c *console) search(ctx context.Context, req *dedupv1.ListRecordsRequest, into *listing) ([]byte, error) {
	until := time.Now().Add(searchTime)
	for {
		res, err := c.admin.ListRecords(ctx, req)
		if err != nil {
			return nil, err
		}
		into.Records = append(into.Records, res.GetRecords()...)
		req.PageToken = res.GetNextPageToken()
		full := len(into.Records) >= pageSize
		if len(req.GetPageToken()) == 0 || full {
			return req.GetPageToken(), nil
		}
		if time.Now().After(until) {
			into.Partial = true
			return req.GetPageToken(), nil
		}
	}
}

// life is the page of one record.
type life struct {
	Record  *dedupv1.RecordInfo
	Entries []*dedupv1.DeadLetter
	Events  []event
	Bases   []basis
	// Resolvable: an operator's verdict is taken now; else WhyNot says why not.
	Resolvable bool
	WhyNot     string
}

// event is a point of the timeline.
type event struct {
	At    *timestamppb.Timestamp
	What  string
	Note  string
	Class string // past, now, future
}

type basis struct{ Name, Meaning string }

func bases() []basis {
	return []basis{
		{"BOUNDED", "no effect of a grant lands after its lease"},
		{"FENCED", "the resource refuses older fences, and the look registered its own"},
		{"INBOX", "effect and record id commit together"},
	}
}

// record shows one record, its life and its dead letters.
func (c *console) record(w http.ResponseWriter, r *http.Request) {
	page, err := c.lifeOf(r.Context(), r.PathValue("id"))
	if err != nil {
		c.fail(w, "records", err)
		return
	}
	c.render(w, http.StatusOK, "record", "Record "+short(page.Record.GetRecordId()), "records", page)
}

func (c *console) lifeOf(ctx context.Context, text string) (*life, error) {
	id, err := idOf(text, 32)
	if err != nil {
		return nil, err
	}
	found, err := c.dedup.Lookup(ctx, &dedupv1.LookupRequest{Record: &dedupv1.LookupRequest_RecordId{RecordId: id}})
	if err != nil {
		return nil, err
	}
	letters, err := c.letters.List(ctx, &dedupv1.DeadLetterServiceListRequest{
		Filter: &dedupv1.DeadLetterFilter{RecordId: id, States: allLetterStates()}, NewestFirst: true, PageSize: pageSize,
	})
	if err != nil {
		return nil, err
	}
	page := &life{Record: found.GetRecord(), Entries: letters.GetEntries(), Bases: bases()}
	page.Events = timeline(page.Record, page.Entries)
	page.WhyNot = whyNoVerdict(page.Record)
	page.Resolvable = page.WhyNot == ""
	return page, nil
}

// whyNoVerdict says why an operator's verdict would be refused, or "".
func whyNoVerdict(rec *dedupv1.RecordInfo) string {
	switch {
	case rec.GetState() == dedupv1.State_STATE_RESERVED:
		return "A run is going on. A verdict is taken once its lease has ended."
	case rec.GetState() != dedupv1.State_STATE_UNKNOWN:
		return "Nothing is to be settled here."
	case !slices.ContainsFunc(rec.GetVersion(), func(b byte) bool { return b != 0 }):
		return "The last lease still runs its full time, so the effect may still be on its way. Look again when it is over."
	}
	return ""
}

// timeline is what is known of a record's life, oldest first.
func timeline(rec *dedupv1.RecordInfo, entries []*dedupv1.DeadLetter) []event {
	var events []event
	add := func(at *timestamppb.Timestamp, what, note string) {
		if at != nil {
			events = append(events, event{At: at, What: what, Note: note})
		}
	}
	add(rec.GetCreatedAt(), "first granted", "")
	if rec.GetGrants() > 1 {
		add(rec.GetGrantedAt(), "granted again", show.Name(rec.GetMode(), "MODE_")+" mode")
	}
	switch rec.GetState() {
	case dedupv1.State_STATE_RESERVED, dedupv1.State_STATE_UNKNOWN:
		add(rec.GetLeaseEndsAt(), "lease ends", "from here on the outcome is unknown unless it was told before")
	case dedupv1.State_STATE_UNSPECIFIED, dedupv1.State_STATE_ABSENT, dedupv1.State_STATE_RELEASED,
		dedupv1.State_STATE_COMPLETED, dedupv1.State_STATE_EXPIRED:
	}
	note := ""
	if rec.GetByOperator() {
		note = "by an operator"
	}
	add(rec.GetCompletedAt(), "completed", note)
	for _, e := range entries {
		kind := show.Name(e.GetKind(), "DEAD_LETTER_KIND_")
		add(e.GetParkedAt(), "dead letter parked", kind)
		if e.GetCount() > 1 {
			add(e.GetLastParkedAt(), "parked again", kind)
		}
		add(e.GetClosedAt(), "dead letter "+show.Name(e.GetState(), "DEAD_LETTER_STATE_"), kind)
	}
	if rec.GetPins() == 0 {
		add(rec.GetEnds().GetExpiresAt(), "outcome expires", "a repeat is refused from here on")
		if rec.GetEnds().GetAbsentAt().AsTime().After(rec.GetEnds().GetExpiresAt().AsTime()) {
			add(rec.GetEnds().GetAbsentAt(), "record absent", "a repeat would be new from here on")
		}
	}
	slices.SortStableFunc(events, func(a, b event) int { return a.At.AsTime().Compare(b.At.AsTime()) })
	markTimes(events, time.Now()) // the store judges; this only colours
	return events
}

func markTimes(events []event, now time.Time) {
	for i := range events {
		events[i].Class = "past"
		if events[i].At.AsTime().After(now) {
			events[i].Class = "future"
		}
	}
}

// verdict is the page that asks once more.
type verdict struct {
	Record    *dedupv1.RecordInfo
	Completed bool
	Basis     basis
	Version   string
	Note      string
}

// resolve asks for confirmation, and then settles the record.
func (c *console) resolve(w http.ResponseWriter, r *http.Request) {
	page, err := c.lifeOf(r.Context(), r.PathValue("id"))
	if err == nil {
		err = r.ParseForm()
	}
	if err != nil {
		c.fail(w, "records", err)
		return
	}
	back := "/console/records/" + hex.EncodeToString(page.Record.GetRecordId())
	ask, req, err := verdictOf(page.Record, r.PostForm)
	if err != nil {
		c.failBack(w, "records", back, err)
		return
	}
	if r.PostForm.Get("confirm") != "yes" {
		c.render(w, http.StatusOK, "resolve", "Settle the record?", "records", ask)
		return
	}
	if _, err := c.admin.Resolve(r.Context(), req); err != nil {
		c.failBack(w, "records", back, err)
		return
	}
	http.Redirect(w, r, back, http.StatusSeeOther) //nolint:gosec // hex digits
}

// verdictOf reads the form: what is asked, for the page and for the service.
func verdictOf(rec *dedupv1.RecordInfo, form url.Values) (*verdict, *dedupv1.ResolveRequest, error) {
	version, err := hex.DecodeString(form.Get("version"))
	if err != nil || len(version) != 8 {
		return nil, nil, status.Error(codes.InvalidArgument, "the form is damaged; open the record again")
	}
	ask := &verdict{
		Record: rec, Completed: form.Get("verdict") == "completed",
		Version: form.Get("version"), Note: field(form, "note"),
	}
	req := &dedupv1.ResolveRequest{
		Record:  &dedupv1.ResolveRequest_RecordId{RecordId: rec.GetRecordId()},
		Version: version, Note: ask.Note,
	}
	if ask.Note == "" {
		return nil, nil, status.Error(codes.InvalidArgument, "say in the note how you know; it goes into the audit log")
	}
	switch form.Get("verdict") {
	case "completed":
		req.Verdict = &dedupv1.ResolveRequest_Completed{Completed: &dedupv1.ResolveCompleted{}}
		return ask, req, nil
	case "released":
		i := slices.IndexFunc(bases(), func(b basis) bool { return b.Name == form.Get("basis") })
		if i < 0 {
			return nil, nil, status.Error(codes.InvalidArgument, "say why no earlier run can still have its effect")
		}
		ask.Basis = bases()[i]
		req.Verdict = &dedupv1.ResolveRequest_Released{Released: &dedupv1.ResolveReleased{
			Basis: dedupv1.Basis(dedupv1.Basis_value["BASIS_"+ask.Basis.Name]),
		}}
		return ask, req, nil
	}
	return nil, nil, status.Error(codes.InvalidArgument, "choose whether the effect happened")
}
