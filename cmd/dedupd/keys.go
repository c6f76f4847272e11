package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
)

// keysCmd groups the operator's verbs. Each talks to a running server.
type keysCmd struct {
	Get     keysGetCmd     `cmd:"" help:"Show one record. Exits with 3 when there is none."`
	List    keysListCmd    `cmd:"" help:"List records, in the order of their ids."`
	Watch   keysWatchCmd   `cmd:"" help:"Print one record whenever it changes, until it is completed."`
	Resolve keysResolveCmd `cmd:"" help:"Settle a record whose outcome is unknown, by your verdict."`
	Redact  keysRedactCmd  `cmd:"" help:"Erase what records tell of a person; repeats are still recognized."`
	Forget  keysForgetCmd  `cmd:"" help:"Delete records; a repeat is new from then on."`
}

// remote is where the server is and how long to wait for it.
type remote struct {
	Addr    string        `default:"127.0.0.1:7480" help:"gRPC address of the server."`
	Timeout time.Duration `default:"10s" help:"How long to wait for each answer."`

	clientTLS `embed:"" prefix:"addr-"`
}

// connect returns a connection that nothing has been sent on yet.
func (r remote) connect() (*grpc.ClientConn, error) {
	if err := checkAddress("addr", r.Addr); err != nil {
		return nil, usagef("%v", err)
	}
	if r.Timeout <= 0 {
		return nil, usagef("--timeout is %s; it takes more than zero", r.Timeout)
	}
	creds, err := r.credentials()
	if err != nil {
		return nil, err
	}
	conn, err := grpc.NewClient(r.Addr, grpc.WithTransportCredentials(creds), reconnect(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)))
	if err != nil {
		return nil, usagef("--addr is %q; it takes host:port", r.Addr)
	}
	return conn, nil
}

// maxMessage is the protocol's limit for one gRPC message.
const maxMessage = 8 << 20

// selector names one record, by its parts or by its id.
type selector struct {
	Key       string `arg:"" optional:"" help:"The key."`
	KeyHex    string `name:"key-hex" placeholder:"HEX" help:"The key in hex, for keys that cannot be typed."`
	Namespace string `placeholder:"NAME" help:"Namespace of the record."`
	Operation string `placeholder:"NAME" help:"Operation of the record, usually a full gRPC method name."`
	Caller    string `help:"Caller that the key belongs to."`
	ID        string `name:"id" placeholder:"HEX" help:"Record id instead of the parts: all 64 hex digits, or the first 12 or more, as errors and logs show them. A shortened id is searched for in the listing."`
}

// shortID is how many hex digits of an id are enough to search for.
const shortID = 12

// Validate is called by the parser.
func (s *selector) Validate() error {
	byKey := s.Key != "" || s.KeyHex != ""
	switch {
	case s.ID == "" && !byKey:
		return errors.New("name the record by its key, or by --id")
	case s.ID != "" && byKey:
		return errors.New("name the record by its key or by --id, not by both")
	case s.ID == "" && (s.Operation == "" || s.Namespace == ""):
		if digits, err := hex.DecodeString(s.Key); err == nil && len(s.Key) >= shortID && len(digits) <= 32 {
			return fmt.Errorf("a key needs its --namespace and --operation; if this is a record's id: --id %s", s.Key)
		}
		return errors.New("a key needs its --namespace and --operation")
	case s.Key != "" && s.KeyHex != "":
		return errors.New("give the key as text or by --key-hex, not both")
	}
	if s.ID != "" {
		_, err := hex.DecodeString(s.ID + strings.Repeat("0", len(s.ID)%2))
		if err != nil || len(s.ID) < shortID || len(s.ID) > 64 {
			return errors.New("--id takes 12 to 64 hex digits")
		}
	}
	if _, err := hex.DecodeString(s.KeyHex); err != nil {
		return errors.New("--key-hex takes hex digits, two for each byte")
	}
	return nil
}

// identity is the record's parts; Validate has read them.
func (s *selector) identity() *dedupv1.Identity {
	key := []byte(s.Key)
	if s.KeyHex != "" {
		key, _ = hex.DecodeString(s.KeyHex)
	}
	return &dedupv1.Identity{Namespace: s.Namespace, Operation: s.Operation, Caller: []byte(s.Caller), Key: key}
}

// find looks the record up; errNoRecord when there is none.
func (s *selector) find(ctx context.Context, r remote, conn grpc.ClientConnInterface) (*dedupv1.RecordInfo, error) {
	request := &dedupv1.LookupRequest{}
	if s.ID == "" {
		request.Record = &dedupv1.LookupRequest_Identity{Identity: s.identity()}
	} else {
		id, err := s.fullID(ctx, r, conn)
		if err != nil {
			return nil, err
		}
		request.Record = &dedupv1.LookupRequest_RecordId{RecordId: id}
	}
	ctx, cancel := context.WithTimeout(ctx, r.Timeout)
	defer cancel()
	reply, err := dedupv1.NewDedupServiceClient(conn).Lookup(ctx, request)
	if err != nil {
		return nil, overWire(r.Addr, err)
	}
	if info := reply.GetRecord(); info.GetState() != dedupv1.State_STATE_ABSENT {
		return info, nil
	}
	return nil, s.missing()
}

// missing says that the record is not there.
func (s *selector) missing() error {
	if s.ID != "" {
		return errNoID
	}
	return errNoRecord
}

// fullID completes a shortened id from the listing. Two records that share it
// are an error: a guess could settle the wrong one.
func (s *selector) fullID(ctx context.Context, r remote, conn grpc.ClientConnInterface) ([]byte, error) {
	prefix := strings.ToLower(s.ID)
	if len(prefix) == 64 {
		return hex.DecodeString(prefix)
	}
	var found []byte
	walk := listing{remote: r, request: &dedupv1.ListRecordsRequest{PageSize: maxPage}}
	err := walk.each(ctx, conn, func(info *dedupv1.RecordInfo) (bool, error) {
		id := hex.EncodeToString(info.GetRecordId())
		if !strings.HasPrefix(id, prefix) {
			return id < prefix, nil // ids ascend
		}
		if found != nil {
			return false, usagef("--id %s fits more than one record; give more digits", s.ID)
		}
		found = info.GetRecordId()
		return true, nil
	})
	if err == nil && found == nil {
		err = errNoID
	}
	return found, err
}

// keysGetCmd shows one record.
type keysGetCmd struct {
	selector `embed:""`
	remote   `embed:""`
	display  `embed:""`
}

// Run shows it.
func (c *keysGetCmd) Run(ctx context.Context, s streams) error {
	conn, err := c.connect()
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // nothing is in flight
	info, err := c.find(ctx, c.remote, conn)
	if err != nil {
		return err
	}
	return c.one(s.out, info)
}
