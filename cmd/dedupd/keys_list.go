package main

import (
	"context"

	"google.golang.org/grpc"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
)

// maxPage is the protocol's largest page.
const maxPage = 1000

// keysListCmd lists records.
type keysListCmd struct {
	Namespace string   `help:"Only this namespace."`
	Operation string   `help:"Only this operation."`
	State     []string `enum:"reserved,released,unknown,completed,expired" placeholder:"STATE,..." help:"Only these states: reserved, released, unknown, completed, expired."`
	Limit     int      `default:"100" help:"Stop after this many records; 0 lists all."`
	remote    `embed:""`
	display   `embed:""`
}

// Validate is called by the parser.
func (c *keysListCmd) Validate() error {
	if c.Limit < 0 {
		return usagef("--limit is %d; it takes 0 for all, or a number of records", c.Limit)
	}
	return nil
}

// Run lists them.
func (c *keysListCmd) Run(ctx context.Context, s streams) error {
	conn, err := c.connect()
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // nothing is in flight
	request := &dedupv1.ListRecordsRequest{Namespace: c.Namespace, Operation: c.Operation, PageSize: maxPage}
	for _, name := range c.State {
		request.States = append(request.States, stateOf(name))
	}
	if c.Limit > 0 {
		request.PageSize = int32(min(c.Limit, maxPage))
	}
	rows := c.rows(s.out)
	left := c.Limit
	walk := listing{remote: c.remote, request: request}
	err = walk.each(ctx, conn, func(info *dedupv1.RecordInfo) (bool, error) {
		left--
		return left != 0, rows.add(info)
	})
	if err != nil {
		return err
	}
	return rows.end(c.Limit > 0 && left == 0)
}

// listing reads records page after page.
type listing struct {
	remote  remote
	request *dedupv1.ListRecordsRequest
}

// each hands every record to do until it says no, and returns its error.
func (l listing) each(ctx context.Context, conn grpc.ClientConnInterface, do func(*dedupv1.RecordInfo) (bool, error)) error {
	admin := dedupv1.NewAdminServiceClient(conn)
	for {
		page, err := l.page(ctx, admin)
		if err != nil {
			return err
		}
		for _, info := range page.GetRecords() {
			if more, err := do(info); err != nil || !more {
				return err
			}
		}
		if len(page.GetNextPageToken()) == 0 {
			return nil
		}
		l.request.PageToken = page.GetNextPageToken()
	}
}

func (l listing) page(ctx context.Context, admin dedupv1.AdminServiceClient) (*dedupv1.ListRecordsResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, l.remote.Timeout)
	defer cancel()
	page, err := admin.ListRecords(ctx, l.request)
	return page, overWire(l.remote.Addr, err)
}
