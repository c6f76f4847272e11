package consumer

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors"
)

// Message is one delivery of a message, as its broker's adapter hands it on.
type Message struct {
	// ID names the message, the same on each of its deliveries and, best, on every
	// copy that its publisher sends. It is the key unless Config.Key makes one:
	// 1-255 bytes without white space at its ends.
	ID string
	// Body is the payload. It is not changed.
	Body []byte
	// Type names what is in Body, such as a protobuf type or a media type; it may be
	// empty. It goes with a dead letter.
	Type string
	// Headers are what else the broker delivered. They are handed to the functions
	// of Config, and take no part in key or fingerprint by themselves.
	Headers map[string][]string
	// Deliveries is the broker's count of deliveries, from 1; 0 where it has none.
	// Only the wait while dedupd is away depends on it.
	Deliveries uint64
	// KeepAlive tells the broker that the message is still being worked on, every
	// KeepAliveEvery, from the begin of Handle to its end, so that it is not
	// delivered again meanwhile. Nil, or zero: the broker does not need it. An error
	// is logged; a delivery that comes of it is harmless.
	KeepAlive      func(ctx context.Context) error
	KeepAliveEvery time.Duration
}

// Item returns the part of a message that carries many, such as one recipient of
// a mail job, as a message of its own for HandleBatch. Its id is made of m's and
// part, which names it within m: the same on each delivery, and never its place
// in a list that may change.
func (m Message) Item(part string, body []byte) Message {
	id, err := interceptors.Key(m.ID, part)
	if err != nil {
		id = "" // parked like every message without a key
	}
	return Message{ID: id, Body: body, Type: m.Type, Headers: m.Headers, Deliveries: m.Deliveries}
}

// names is what a message is known by at dedupd.
type names struct {
	key, caller string
	fingerprint *dedupv1.Fingerprint
}

func (c *Consumer) namesOf(m Message) (n names, err error) {
	n.key = m.ID
	if c.cfg.Key != nil {
		if n.key, err = c.cfg.Key(m); err != nil {
			return names{}, err
		}
	}
	if n.key == "" {
		return names{}, errNoKey
	}
	if c.cfg.Caller != nil {
		if n.caller, err = c.cfg.Caller(m); err != nil {
			return names{}, err
		}
	}
	var request proto.Message = wrapperspb.Bytes(m.Body)
	if c.cfg.Request != nil {
		if request, err = c.cfg.Request(m); err != nil {
			return names{}, err
		}
	}
	n.fingerprint, err = interceptors.Fingerprint(c.cfg.Operation, request)
	return n, err
}

func (c *Consumer) identity(n names) *dedupv1.Identity {
	return &dedupv1.Identity{Namespace: c.cfg.Namespace, Operation: c.cfg.Operation, Caller: []byte(n.caller), Key: []byte(n.key)}
}

// nameless is what a message is parked under that has no key of its own, or whose
// key is another message's: that one's letter must stay as it is. Copies of it meet
// in one record.
func nameless(m Message) names {
	h := sha256.New()
	h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(m.ID))))
	h.Write([]byte(m.ID))
	h.Write(m.Body)
	return names{key: "sha256:" + hex.EncodeToString(h.Sum(nil))}
}
