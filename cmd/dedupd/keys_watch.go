package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
)

// keysWatchCmd prints a record whenever it changes.
type keysWatchCmd struct {
	selector `embed:""`
	Follow   bool          `help:"Go on after the record is completed or gone, until Ctrl-C."`
	Interval time.Duration `default:"1s" help:"Time between two looks while nobody runs it: 100ms to 1m. While somebody does, the end of the run is told at once."`
	remote   `embed:""`
	display  `embed:""`
}

// Validate is called by the parser.
func (c *keysWatchCmd) Validate() error {
	if c.Interval < 100*time.Millisecond || c.Interval > time.Minute {
		return fmt.Errorf("--interval is %s; it takes 100ms to 1m", c.Interval)
	}
	return c.selector.Validate()
}

// Run watches until the record is settled. A record that is not there yet is
// waited for.
func (c *keysWatchCmd) Run(ctx context.Context, s streams) error {
	conn, err := c.connect()
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // nothing is in flight
	lookup := &dedupv1.LookupRequest{}
	if c.ID == "" {
		lookup.Record = &dedupv1.LookupRequest_Identity{Identity: c.identity()}
	} else {
		id, err := c.fullID(ctx, c.remote, conn)
		if err != nil {
			return err
		}
		lookup.Record = &dedupv1.LookupRequest_RecordId{RecordId: id}
	}
	client := dedupv1.NewDedupServiceClient(conn)
	tick := time.NewTicker(c.Interval)
	defer tick.Stop()
	wait := patience{addr: c.Addr, w: s.err}
	var last *dedupv1.RecordInfo
	for {
		info, err := c.look(ctx, client, lookup)
		switch {
		case errors.Is(err, context.Canceled):
			return nil // Ctrl-C is how a watch ends
		case wait.outlasts(err):
		case err != nil:
			return err
		default:
			held := lookup.GetWait() != nil && !changed(last, info) // and is now let go, as by a server that stops
			if err := c.tell(s, last, info); err != nil {
				return err
			}
			last, lookup.Wait = info, nil
			if over(info) && !c.Follow {
				return nil
			}
			if info.GetState() == dedupv1.State_STATE_RESERVED {
				lookup.Wait = durationpb.New(min(c.Timeout/2, 30*time.Second)) // held until the run has ended
				if !held {
					continue
				}
			}
		}
		select {
		case <-ctx.Done():
			return nil //nolint:nilerr // Ctrl-C is how a watch ends
		case <-tick.C:
		}
	}
}

func (c *keysWatchCmd) look(ctx context.Context, client dedupv1.DedupServiceClient, lookup *dedupv1.LookupRequest) (*dedupv1.RecordInfo, error) {
	bounded, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	reply, err := client.Lookup(bounded, lookup)
	if err != nil && ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return reply.GetRecord(), overWire(c.Addr, err)
}

// tell prints one line, if there is something new.
func (c *keysWatchCmd) tell(s streams, last, info *dedupv1.RecordInfo) error {
	if last != nil && !changed(last, info) {
		return nil
	}
	if c.Output == outputJSON {
		return c.json(s.out, info)
	}
	line := fmt.Sprintf("%s  %s  %-9s  grants %d", time.Now().UTC().Format(time.TimeOnly), shortOf(info), stateName(info.GetState()), info.GetGrants())
	if info.GetState() == dedupv1.State_STATE_RESERVED {
		line += "  lease left " + rough(info.GetLeaseLeft())
	}
	if pins := info.GetPins(); pins > 0 {
		line += fmt.Sprintf("  open dead letters %d", pins)
	}
	if note := info.GetNote(); note != "" {
		line += "  note " + printable([]byte(note))
	}
	_, err := fmt.Fprintln(s.out, line+remarks(info))
	return err
}

// changed reports whether there is something new to tell. An extended lease is
// not.
func changed(a, b *dedupv1.RecordInfo) bool {
	return a.GetState() != b.GetState() || a.GetFence() != b.GetFence() || a.GetGrants() != b.GetGrants() ||
		a.GetMode() != b.GetMode() || a.GetPins() != b.GetPins() || a.GetNote() != b.GetNote() ||
		!bytes.Equal(a.GetRecordId(), b.GetRecordId()) || a.GetRedacted() != b.GetRedacted()
}

// over reports whether the record has come to its end.
func over(info *dedupv1.RecordInfo) bool {
	return info.GetState() == dedupv1.State_STATE_COMPLETED || info.GetState() == dedupv1.State_STATE_EXPIRED
}
