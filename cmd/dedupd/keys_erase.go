package main

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
)

// keysRedactCmd erases what tells of a person and keeps what recognizes repeats.
type keysRedactCmd struct {
	erasure `embed:""`
}

// Run counts, asks, and erases.
func (c *keysRedactCmd) Run(ctx context.Context, s streams) error {
	return c.run(ctx, s, erasing{
		done: "redacted",
		consequence: "Caller, key, outcome, requests and notes are erased, here and in dead letters. " +
			"Repeats are still recognized, and are told OUTCOME_NOT_STORED. This cannot be undone.",
		call: func(ctx context.Context, admin dedupv1.AdminServiceClient, q eraseRequest) (eraseReply, error) {
			return admin.Redact(ctx, &dedupv1.RedactRequest{Selector: q.selector, Note: q.note, PageToken: q.token, DryRun: q.dryRun})
		},
	})
}

// keysForgetCmd deletes records.
type keysForgetCmd struct {
	erasure `embed:""`
}

// Run counts, asks, and deletes.
func (c *keysForgetCmd) Run(ctx context.Context, s streams) error {
	return c.run(ctx, s, erasing{
		done: "forgotten",
		consequence: "Records and their dead letters are deleted. A repeat of a forgotten key is new: its handler runs again, " +
			"whatever it did before. This cannot be undone.",
		call: func(ctx context.Context, admin dedupv1.AdminServiceClient, q eraseRequest) (eraseReply, error) {
			return admin.Forget(ctx, &dedupv1.ForgetRequest{Selector: q.selector, Note: q.note, PageToken: q.token, DryRun: q.dryRun})
		},
	})
}

// erasure is what both verbs take. No part of it is read from the environment:
// one that was left there would erase what nobody meant.
type erasure struct {
	Key            string `arg:"" optional:"" help:"The key of one record."`
	KeyHex         string `name:"key-hex" env:"-" placeholder:"HEX" help:"The key in hex, for keys that cannot be typed."`
	Namespace      string `env:"-" placeholder:"NAME" help:"Namespace of the record, or of --all-of-caller."`
	Operation      string `env:"-" placeholder:"NAME" help:"Operation of the record."`
	Caller         string `env:"-" help:"Caller that the key belongs to."`
	ID             string `name:"id" env:"-" placeholder:"HEX" help:"One record by its id: all 64 hex digits."`
	AllOfCaller    string `env:"-" placeholder:"CALLER" help:"Every record of this caller in --namespace."`
	WholeNamespace string `env:"-" placeholder:"NAME" help:"Every record of this namespace."`
	DryRun         bool   `env:"-" help:"Only count."`
	Yes            bool   `env:"-" help:"Do not ask. For scripts."`

	noted  `embed:""`
	Output outputFormat `short:"o" enum:"table,json" default:"table" help:"How to print what was done: table, or json."`
	remote `embed:""`
}

// erasing is what tells the verbs apart.
type erasing struct {
	done        string
	consequence string
	call        func(context.Context, dedupv1.AdminServiceClient, eraseRequest) (eraseReply, error)
}

type eraseRequest struct {
	selector *dedupv1.RecordSelector
	note     string
	token    []byte
	dryRun   bool
}

// eraseReply is what RedactResponse and ForgetResponse have in common.
type eraseReply interface {
	GetRecords() int64
	GetDeadLetters() int64
	GetLive() int64
	GetNextPageToken() []byte
}

// eraseCount adds up the replies of one run.
type eraseCount struct {
	Records     int64 `json:"records"`
	DeadLetters int64 `json:"dead_letters"`
	Live        int64 `json:"left_out_live"`
	DryRun      bool  `json:"dry_run"`
}

// alsoCounted is why the number may be more than a list shows.
const alsoCounted = "what `keys list` leaves out is counted too: stubs of dead letters, marks of spent attempts, and what is past its time"

func (n eraseCount) String() string {
	return counted(n.Records, "record") + " and " + counted(n.DeadLetters, "dead letter")
}

// leftOut says before it is asked for what will be left.
func (n eraseCount) leftOut() string {
	if n.Live == 0 {
		return ""
	}
	return " and " + counted(n.Live, "record") + " left out, since an effect may still be on its way"
}

// Validate is called by the parser.
func (c *erasure) Validate() error {
	_, err := c.selector()
	return errors.Join(c.noted.Validate(), err)
}

// selector is the choice, which is exactly one.
func (c *erasure) selector() (*dedupv1.RecordSelector, error) {
	byKey := c.Key != "" || c.KeyHex != ""
	choices := 0
	for _, given := range []bool{byKey, c.ID != "", c.AllOfCaller != "", c.WholeNamespace != ""} {
		if given {
			choices++
		}
	}
	switch {
	case choices != 1:
		return nil, errors.New("choose what to erase by exactly one of a key, --id, --all-of-caller or --whole-namespace")
	case c.WholeNamespace != "" && c.Namespace != "":
		return nil, errors.New("--namespace does not belong to --whole-namespace")
	case c.WholeNamespace != "":
		return &dedupv1.RecordSelector{Choice: &dedupv1.RecordSelector_Namespace{Namespace: c.WholeNamespace}}, nil
	case c.AllOfCaller != "" && c.Namespace == "":
		return nil, errors.New("--all-of-caller needs its --namespace")
	case c.AllOfCaller != "":
		return &dedupv1.RecordSelector{Choice: &dedupv1.RecordSelector_Caller{Caller: &dedupv1.CallerSelector{
			Namespace: c.Namespace, Caller: []byte(c.AllOfCaller),
		}}}, nil
	case c.ID != "":
		id, err := hex.DecodeString(c.ID)
		if err != nil || len(id) != 32 {
			return nil, errors.New("--id takes all 64 hex digits here, as 'keys get' shows them")
		}
		return &dedupv1.RecordSelector{Choice: &dedupv1.RecordSelector_RecordId{RecordId: id}}, nil
	}
	one := selector{Key: c.Key, KeyHex: c.KeyHex, Namespace: c.Namespace, Operation: c.Operation, Caller: c.Caller}
	if err := one.Validate(); err != nil {
		return nil, err
	}
	return &dedupv1.RecordSelector{Choice: &dedupv1.RecordSelector_Identity{Identity: one.identity()}}, nil
}

// run counts first, so that what is asked for is known before it is gone.
func (c *erasure) run(ctx context.Context, s streams, e erasing) error {
	if err := askable(s, c.Yes || c.DryRun); err != nil {
		return err
	}
	conn, err := c.connect()
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // nothing is in flight
	choice, err := c.selector()
	if err != nil {
		return err
	}
	admin := dedupv1.NewAdminServiceClient(conn)
	found, err := c.all(ctx, s, admin, e, eraseRequest{selector: choice, note: c.Note, dryRun: true})
	if err != nil {
		return err
	}
	switch {
	case found.Records+found.DeadLetters+found.Live > 0:
	case c.AllOfCaller != "" || c.WholeNamespace != "":
		return errNothing
	default:
		return (&selector{ID: c.ID}).missing()
	}
	if c.DryRun {
		return c.tell(s, e, found)
	}
	if !c.Yes {
		word := "yes"
		if c.WholeNamespace != "" {
			word = c.WholeNamespace // a namespace is not erased by habit
		}
		if err := confirmBy(ctx, s, found.String()+" will be "+e.done+found.leftOut()+"; "+alsoCounted+". "+e.consequence, word); err != nil {
			return err
		}
	}
	done, err := c.all(ctx, s, admin, e, eraseRequest{selector: choice, note: c.Note})
	if err != nil {
		return fmt.Errorf("%s were %s before it stopped; run it again for the rest: %w", done, e.done, err)
	}
	return c.tell(s, e, done)
}

// all goes on until everything was looked at, and returns what came of it so
// far also when it is stopped.
func (c *erasure) all(ctx context.Context, s streams, admin dedupv1.AdminServiceClient, e erasing, q eraseRequest) (eraseCount, error) {
	n := eraseCount{DryRun: q.dryRun}
	progress := newCounter(s, map[bool]string{true: "counting", false: "erasing"}[q.dryRun])
	defer progress.end()
	for {
		reply, err := c.page(ctx, admin, e, q)
		if err != nil {
			return n, err
		}
		n.Records += reply.GetRecords()
		n.DeadLetters += reply.GetDeadLetters()
		n.Live += reply.GetLive()
		progress.set(n.Records + n.Live)
		if q.token = reply.GetNextPageToken(); len(q.token) == 0 {
			return n, nil
		}
	}
}

func (c *erasure) page(ctx context.Context, admin dedupv1.AdminServiceClient, e erasing, q eraseRequest) (eraseReply, error) {
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	reply, err := e.call(ctx, admin, q)
	return reply, overWire(c.Addr, err)
}

// tell prints what came of it; what was left out makes it a partial success.
func (c *erasure) tell(s streams, e erasing, n eraseCount) error {
	if c.Output == outputJSON {
		if err := json.NewEncoder(s.out).Encode(n); err != nil {
			return err
		}
	} else {
		line := n.String() + " " + e.done
		if n.DryRun {
			line = n.String() + " would be " + e.done + "; " + alsoCounted
		}
		if _, err := fmt.Fprintln(s.out, line); err != nil {
			return err
		}
	}
	if n.Live > 0 {
		left := "left out, since an effect may still be on its way: " + counted(n.Live, "record") + "; run it again once the leases have ended"
		if n.Records+n.DeadLetters == 0 {
			return errors.New(left)
		}
		return &partialError{message: left}
	}
	return nil
}
