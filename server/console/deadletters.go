package console

import (
	"context"
	"encoding/hex"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/internal/show"
)

const (
	maxGroups = 50
	actBatch  = 100    // entries of one call
	actMost   = 10_000 // entries of one confirmed action
)

// queue is the page of dead letters.
type queue struct {
	Filter  filterForm
	Groups  []*dedupv1.DeadLetterGroup
	Entries []*dedupv1.DeadLetter
	Next    string
	Kinds   []string
	States  []string
}

// Waits reports whether something on the page takes a replay or a discard.
func (q *queue) Waits() bool { return slices.ContainsFunc(q.Entries, waits) }

// filterForm is the filter as the form and the address hold it.
type filterForm struct {
	Namespace, Operation, Kind, State, Code, Signature string
}

func readFilter(v url.Values) filterForm {
	return filterForm{
		Namespace: field(v, "namespace"), Operation: field(v, "operation"), Kind: field(v, "kind"),
		State: field(v, "state"), Code: field(v, "code"), Signature: v.Get("signature"),
	}
}

// Query is the filter in an address.
func (f filterForm) Query() string {
	v := url.Values{}
	for name, value := range map[string]string{
		"namespace": f.Namespace, "operation": f.Operation, "kind": f.Kind,
		"state": f.State, "code": f.Code, "signature": f.Signature,
	} {
		if value != "" {
			v.Set(name, value)
		}
	}
	return v.Encode()
}

// GroupLink is the address of a group's entries.
func (f filterForm) GroupLink(g *dedupv1.DeadLetterGroup) string {
	f.Namespace, f.Operation = g.GetNamespace(), g.GetOperation()
	f.Kind = show.Name(g.GetKind(), "DEAD_LETTER_KIND_")
	f.Code, f.Signature = strconv.Itoa(int(g.GetCode())), g.GetSignature()
	return "/console/dead-letters?" + f.Query()
}

// proto is the filter for the service.
func (f filterForm) proto() (*dedupv1.DeadLetterFilter, error) {
	out := &dedupv1.DeadLetterFilter{Namespace: f.Namespace, Operation: f.Operation, Signature: f.Signature}
	if f.Kind != "" {
		out.Kinds = []dedupv1.DeadLetterKind{dedupv1.DeadLetterKind(dedupv1.DeadLetterKind_value["DEAD_LETTER_KIND_"+strings.ToUpper(f.Kind)])}
	}
	if f.State != "" {
		out.States = []dedupv1.DeadLetterState{dedupv1.DeadLetterState(dedupv1.DeadLetterState_value["DEAD_LETTER_STATE_"+strings.ToUpper(f.State)])}
	}
	if f.Code != "" {
		code, err := strconv.ParseInt(f.Code, 10, 32)
		if err != nil {
			return nil, status.Error(codes.InvalidArgument, "a status code is a number from 0 to 16")
		}
		out.Codes = []int32{int32(code)}
	}
	return out, nil
}

func allLetterStates() []dedupv1.DeadLetterState {
	return []dedupv1.DeadLetterState{
		dedupv1.DeadLetterState_DEAD_LETTER_STATE_PARKED, dedupv1.DeadLetterState_DEAD_LETTER_STATE_REPLAYING,
		dedupv1.DeadLetterState_DEAD_LETTER_STATE_RESOLVED, dedupv1.DeadLetterState_DEAD_LETTER_STATE_DISCARDED,
	}
}

func letterStateNames() []string {
	names := make([]string, 0, len(allLetterStates()))
	for _, s := range allLetterStates() {
		names = append(names, show.Name(s, "DEAD_LETTER_STATE_"))
	}
	return names
}

func kindNames() []string {
	kinds := []dedupv1.DeadLetterKind{
		dedupv1.DeadLetterKind_DEAD_LETTER_KIND_EXHAUSTED, dedupv1.DeadLetterKind_DEAD_LETTER_KIND_UNRECONCILED,
		dedupv1.DeadLetterKind_DEAD_LETTER_KIND_OVERDUE, dedupv1.DeadLetterKind_DEAD_LETTER_KIND_CONFLICT,
	}
	names := make([]string, 0, len(kinds))
	for _, k := range kinds {
		names = append(names, show.Name(k, "DEAD_LETTER_KIND_"))
	}
	return names
}

// deadLetters lists groups and entries.
func (c *console) deadLetters(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	page := &queue{Filter: readFilter(q), Kinds: kindNames(), States: letterStateNames()}
	filter, err := page.Filter.proto()
	if err != nil {
		c.fail(w, "dead-letters", err)
		return
	}
	token, err := hex.DecodeString(q.Get("from"))
	if err != nil {
		c.fail(w, "dead-letters", status.Error(codes.InvalidArgument, "the address of this page is damaged; start from the first page"))
		return
	}
	groups, err := c.letters.Groups(r.Context(), &dedupv1.GroupsRequest{Filter: filter, Limit: maxGroups})
	if err != nil {
		c.fail(w, "dead-letters", err)
		return
	}
	page.Groups = groups.GetGroups()
	next, err := c.entries(r.Context(), filter, token, pageSize, func(e *dedupv1.DeadLetter) {
		page.Entries = append(page.Entries, e)
	})
	if err != nil {
		c.fail(w, "dead-letters", err)
		return
	}
	if len(next) > 0 {
		q.Set("from", hex.EncodeToString(next))
		page.Next = "/console/dead-letters?" + q.Encode()
	}
	c.render(w, http.StatusOK, "deadletters", "Dead letters", "dead-letters", page)
}

// entries reads up to limit entries, newest first, and returns where to go on.
func (c *console) entries(ctx context.Context, filter *dedupv1.DeadLetterFilter, token []byte, limit int, add func(*dedupv1.DeadLetter)) ([]byte, error) {
	req := &dedupv1.DeadLetterServiceListRequest{Filter: filter, NewestFirst: true, PageToken: token}
	for n := 0; n < limit; {
		req.PageSize = int32(min(limit-n, 1000)) //nolint:gosec // small
		res, err := c.letters.List(ctx, req)
		if err != nil {
			return nil, err
		}
		for _, e := range res.GetEntries() {
			add(e)
			n++
		}
		req.PageToken = res.GetNextPageToken()
		if len(req.GetPageToken()) == 0 {
			break
		}
	}
	return req.GetPageToken(), nil
}

// deadLetter shows one entry.
func (c *console) deadLetter(w http.ResponseWriter, r *http.Request) {
	id, err := idOf(r.PathValue("id"), 16)
	if err != nil {
		c.fail(w, "dead-letters", err)
		return
	}
	res, err := c.letters.Get(r.Context(), &dedupv1.DeadLetterServiceGetRequest{EntryId: id})
	if err != nil {
		c.fail(w, "dead-letters", err)
		return
	}
	c.render(w, http.StatusOK, "deadletter", "Dead letter "+tail(id), "dead-letters", res.GetEntry())
}

// action is what an operator asks to be done with some entries: the page that
// asks once more, and then the one that tells what came of it.
type action struct {
	Do      string // requeue or discard
	Note    string
	IDs     []string
	Filter  filterForm
	All     bool // all that Filter chooses, when it was asked
	Count   int
	More    bool // over actMost
	Answers []*dedupv1.EntryAnswer
	Done    int
	Stopped string // why the rest was not asked for
}

// Joined is the ids in one form field.
func (a *action) Joined() string { return strings.Join(a.IDs, ",") }

// act asks for confirmation, and then requeues or discards.
func (c *console) act(w http.ResponseWriter, r *http.Request) {
	if err := r.ParseForm(); err != nil {
		c.fail(w, "dead-letters", status.Error(codes.InvalidArgument, "the form is too large or damaged"))
		return
	}
	ask, err := c.actionOf(r.Context(), r.PostForm)
	if err != nil {
		c.fail(w, "dead-letters", err)
		return
	}
	if r.PostForm.Get("confirm") != "yes" {
		c.render(w, http.StatusOK, "act", "Are you sure?", "dead-letters", ask)
		return
	}
	if err := c.perform(r.Context(), ask); err != nil {
		ask.Stopped = status.Convert(err).Message()
	}
	c.render(w, http.StatusOK, "acted", "Done", "dead-letters", ask)
}

// actionOf reads the form. Entries that a filter chooses are listed when it is
// asked; the confirmation names exactly these.
func (c *console) actionOf(ctx context.Context, form url.Values) (*action, error) {
	ask := &action{Do: form.Get("do"), Note: field(form, "note"), IDs: form["id"], Filter: readFilter(form)}
	if joined := form.Get("ids"); joined != "" { // of the page that asked: one field, however many
		ask.IDs = strings.Split(joined, ",")
	}
	switch {
	case ask.Do != "requeue" && ask.Do != "discard":
		return nil, status.Error(codes.InvalidArgument, "choose what to do: request a replay, or discard")
	case ask.Note == "":
		return nil, status.Error(codes.InvalidArgument, "say why in the note; it goes into the audit log")
	}
	if ask.All = form.Get("all") == "yes" && len(form.Get("ids")) == 0; ask.All {
		filter, err := ask.Filter.proto()
		if err != nil {
			return nil, err
		}
		ask.IDs = nil
		next, err := c.entries(ctx, filter, nil, actMost, func(e *dedupv1.DeadLetter) {
			if waits(e) {
				ask.IDs = append(ask.IDs, hex.EncodeToString(e.GetEntryId()))
			}
		})
		if err != nil {
			return nil, err
		}
		ask.More = len(next) > 0
	}
	ask.Count = len(ask.IDs)
	if ask.Count == 0 {
		return nil, status.Error(codes.InvalidArgument, "choose at least one entry that is parked")
	}
	if ask.Count > actMost {
		return nil, status.Errorf(codes.InvalidArgument, "at most %d entries go at once", actMost)
	}
	return ask, nil
}

// perform does it, in batches, and keeps what was refused.
func (c *console) perform(ctx context.Context, ask *action) error {
	ids := make([][]byte, 0, len(ask.IDs))
	for _, text := range ask.IDs {
		id, err := hex.DecodeString(text)
		if err != nil || len(id) != 16 {
			return status.Error(codes.InvalidArgument, "the form is damaged; open the list again")
		}
		ids = append(ids, id)
	}
	for len(ids) > 0 {
		n := min(len(ids), actBatch)
		answers, err := c.actOn(ctx, ask, ids[:n])
		if err != nil {
			return err
		}
		for _, a := range answers {
			if a.GetReason() == dedupv1.Reason_REASON_UNSPECIFIED {
				ask.Done++
			} else {
				ask.Answers = append(ask.Answers, a)
			}
		}
		ids = ids[n:]
	}
	return nil
}

func (c *console) actOn(ctx context.Context, ask *action, ids [][]byte) ([]*dedupv1.EntryAnswer, error) {
	if ask.Do == "requeue" {
		res, err := c.letters.Requeue(ctx, &dedupv1.RequeueRequest{EntryIds: ids, Note: ask.Note})
		return res.GetAnswers(), err
	}
	res, err := c.letters.Discard(ctx, &dedupv1.DiscardRequest{EntryIds: ids, Note: ask.Note})
	return res.GetAnswers(), err
}
