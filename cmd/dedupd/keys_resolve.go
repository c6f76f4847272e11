package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"

	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
)

// keysResolveCmd settles an UNKNOWN record. No part of a verdict is read from the
// environment: one that was left there would settle a record that nobody judged.
type keysResolveCmd struct {
	selector `embed:""`

	Completed   bool   `env:"-" help:"Verdict: the effect happened."`
	Released    bool   `env:"-" help:"Verdict: the effect did not happen and can no longer happen. Needs --basis."`
	OutcomeFile string `env:"-" type:"existingfile" placeholder:"FILE" help:"With --completed: what the first caller saw, a dedup.v1.Outcome in protobuf's JSON, like {\"response\": {\"typeUrl\": \"type.googleapis.com/shop.v1.Receipt\", \"value\": \"<base64 of the message>\"}}; without it repeats are told that the answer was not kept."`
	Basis       string `env:"-" enum:",bounded,fenced,inbox" default:"" placeholder:"WHY" help:"With --released, why nothing started earlier can still land. bounded: no effect lands after its lease; fenced: the resource refuses older fences, and yours was registered; inbox: key and effect commit together."`
	Note        string `env:"-" required:"" help:"Why, for the audit log: 1 to 1024 bytes; never a key or a request."`
	Version     string `env:"DEDUPD_RECORD_VERSION" placeholder:"HEX" help:"Version of the record that you judged, from 'keys get'; default: that of the record shown now."`
	Yes         bool   `env:"-" help:"Do not ask. For scripts."`

	remote  `embed:""`
	display `embed:""`
}

// maxNote is the protocol's limit for a note, in bytes.
const maxNote = 1024

// Validate is called by the parser.
func (c *keysResolveCmd) Validate() error {
	if err := c.selector.Validate(); err != nil {
		return err
	}
	switch {
	case !c.Completed && !c.Released:
		return errors.New("give a verdict: --completed if the effect happened, --released if it did not and no longer can")
	case c.Completed && c.Released:
		return errors.New("--completed and --released exclude each other")
	case c.Released && c.Basis == "":
		return errors.New("--released needs --basis: why nothing that was started earlier can still land")
	case c.Completed && c.Basis != "":
		return errors.New("--basis belongs to --released")
	case c.Released && c.OutcomeFile != "":
		return errors.New("--outcome-file belongs to --completed")
	case strings.TrimSpace(c.Note) == "" || len(c.Note) > maxNote:
		return fmt.Errorf("--note is %d bytes; 1 to %d are allowed, and not only white space", len(c.Note), maxNote)
	}
	if v, err := hex.DecodeString(c.Version); err != nil || len(v) != 0 && len(v) != 8 {
		return errors.New("--version takes 16 hex digits")
	}
	return nil
}

// Run shows the record, asks, and settles it.
func (c *keysResolveCmd) Run(ctx context.Context, s streams) error {
	request := &dedupv1.ResolveRequest{Note: c.Note}
	if err := c.judge(request); err != nil {
		return err
	}
	if err := askable(s, c.Yes); err != nil {
		return err
	}
	conn, err := c.connect()
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // nothing is in flight
	info, err := c.find(ctx, c.remote, conn)
	if err != nil {
		return err
	}
	if err := settleable(info); err != nil && c.Version == "" {
		return err
	}
	if !c.Yes {
		if err := c.confirm(ctx, s, info); err != nil {
			return err
		}
	}
	request.Record = &dedupv1.ResolveRequest_RecordId{RecordId: info.GetRecordId()}
	request.Version = info.GetVersion()
	if c.Version != "" {
		request.Version, _ = hex.DecodeString(c.Version) // Validate has read it
	}
	settled, err := c.settle(ctx, conn, request)
	if err != nil {
		return err
	}
	return c.one(s.out, settled)
}

// settleable says why no verdict on the record can be accepted, so that nobody is
// asked for one. With --version the server is asked all the same: a repeat finds
// its own verdict there.
func settleable(info *dedupv1.RecordInfo) error {
	state := info.GetState()
	running := info.GetLeaseLeft().AsDuration() > 0
	switch {
	case state == dedupv1.State_STATE_UNKNOWN && !running:
		return nil
	case state == dedupv1.State_STATE_UNKNOWN, state == dedupv1.State_STATE_RESERVED:
		return fmt.Errorf("the record is %s and its effect may still be on its way; nothing was written: try again in %s",
			stateName(state), rough(info.GetLeaseLeft()))
	}
	by := ""
	if info.GetByOperator() {
		by = " (by operator)"
	}
	return fmt.Errorf("the record is %s%s, and only one whose outcome is unknown can be settled; nothing was written", stateName(state), by)
}

func (c *keysResolveCmd) settle(ctx context.Context, conn grpc.ClientConnInterface, request *dedupv1.ResolveRequest) (*dedupv1.RecordInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	reply, err := dedupv1.NewAdminServiceClient(conn).Resolve(ctx, request)
	return reply.GetRecord(), overWire(c.Addr, err)
}

// judge puts the verdict into request.
func (c *keysResolveCmd) judge(request *dedupv1.ResolveRequest) error {
	if c.Released {
		basis := dedupv1.Basis(dedupv1.Basis_value["BASIS_"+strings.ToUpper(c.Basis)])
		request.Verdict = &dedupv1.ResolveRequest_Released{Released: &dedupv1.ResolveReleased{Basis: basis}}
		return nil
	}
	completed := &dedupv1.ResolveCompleted{}
	if c.OutcomeFile != "" {
		text, err := os.ReadFile(c.OutcomeFile)
		if err != nil {
			return err
		}
		completed.Outcome = &dedupv1.Outcome{}
		if err := protojson.Unmarshal(text, completed.Outcome); err != nil {
			return usagef("--outcome-file %s does not hold a dedup.v1.Outcome in protobuf's JSON: %v", c.OutcomeFile, err)
		}
		if fault := unusable(completed.Outcome); fault != "" {
			return usagef("--outcome-file %s %s; nothing was written: the verdict could never be undone", c.OutcomeFile, fault)
		}
	}
	request.Verdict = &dedupv1.ResolveRequest_Completed{Completed: completed}
	return nil
}

// unusable says why no repeat could be answered with o; empty if each can.
func unusable(o *dedupv1.Outcome) string {
	var st statuspb.Status
	if proto.Unmarshal(o.GetStatus(), &st) != nil {
		return "has a status that is not a serialised google.rpc.Status"
	}
	if st.GetCode() != int32(codes.OK) {
		return ""
	}
	if o.GetResult() == nil {
		return "has neither a response nor the status of a failure, so no repeat could be answered with it"
	}
	url := o.GetResponse().GetTypeUrl()
	name := protoreflect.FullName(url[strings.LastIndexByte(url, '/')+1:])
	if o.GetResponse() != nil && !name.IsValid() {
		return "has a response without a typeUrl like type.googleapis.com/shop.v1.Receipt, so no repeat could be answered with it"
	}
	return ""
}

// confirm shows what is about to be settled and reads the answer.
func (c *keysResolveCmd) confirm(ctx context.Context, s streams, info *dedupv1.RecordInfo) error {
	asking := display{Output: outputTable, ShowKeys: c.ShowKeys}
	if err := asking.one(s.err, info); err != nil {
		return err
	}
	return confirm(ctx, s, "\n"+c.consequence())
}

// consequence says what the verdict will do.
func (c *keysResolveCmd) consequence() string {
	switch {
	case c.Released:
		return "This record becomes RELEASED: the next call with its key runs the handler again. If the effect did happen, it will happen a second time."
	case c.OutcomeFile != "":
		return "This record becomes COMPLETED: every repeat gets the outcome in " + c.OutcomeFile + ", and the handler does not run again under this key."
	}
	return "This record becomes COMPLETED without an outcome: every repeat is told OUTCOME_NOT_STORED, and the handler does not run again under this key."
}
