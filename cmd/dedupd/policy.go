package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/dedupd/dedupd/interceptors"
)

// policyCmd groups what can be asked about policies.
type policyCmd struct {
	Explain policyExplainCmd `cmd:"" help:"Print what each method of a service gets from the interceptors by its proto file: mode, key source, retried codes, attempts, waits. Flags methods that seem to create something and have no protection."`
}

// policyExplainCmd explains the methods of one file or one running service.
type policyExplainCmd struct {
	File    string   `arg:"" optional:"" help:"A file descriptor set with its imports (buf build -o FILE, or protoc --include_imports --descriptor_set_out=FILE)."`
	Service []string `placeholder:"NAME,..." help:"Only these services, by full name."`
	Output  string   `short:"o" enum:"table,json" default:"table" help:"How to print: table, or json (one method per line)."`
	remote  `embed:""`
	Live    bool `help:"Ask the service at --addr by gRPC reflection instead of reading a file."`
}

// Validate is called by the parser.
func (c *policyExplainCmd) Validate() error {
	if (c.File == "") != c.Live {
		return usagef("name a file descriptor set, or ask a running service with --live --addr")
	}
	return nil
}

// Run prints the policies.
func (c *policyExplainCmd) Run(ctx context.Context, s streams) error {
	set, only, err := c.read(ctx)
	if err != nil {
		return err
	}
	files, err := protodesc.NewFiles(set)
	if err != nil {
		return fmt.Errorf("the file descriptor set is not whole, build it with its imports: %w", err)
	}
	all, err := describeAll(set, files, append(only, c.Service...))
	if err != nil {
		return err
	}
	if c.Output == string(outputJSON) {
		for _, d := range all {
			line, err := json.Marshal(d)
			if err != nil {
				return err
			}
			if _, err := fmt.Fprintln(s.out, string(line)); err != nil {
				return err
			}
		}
		return nil
	}
	_, err = fmt.Fprintln(s.out, policyTable(all))
	return err
}

// read returns the files, and the services that a running server has; none
// means all.
func (c *policyExplainCmd) read(ctx context.Context) (*descriptorpb.FileDescriptorSet, []string, error) {
	if c.Live {
		ctx, cancel := context.WithTimeout(ctx, c.Timeout)
		defer cancel()
		conn, err := c.connect()
		if err != nil {
			return nil, nil, err
		}
		defer func() { _ = conn.Close() }() // nothing is in flight
		set, services, err := reflected(ctx, conn, c.Addr)
		if len(c.Service) > 0 {
			services = nil // the flag chooses
		}
		return set, services, err
	}
	set, err := readDescriptors(c.File)
	return set, nil, err
}

// readDescriptors reads a file descriptor set.
func readDescriptors(path string) (*descriptorpb.FileDescriptorSet, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the file descriptor set: %w", err)
	}
	set := &descriptorpb.FileDescriptorSet{}
	if err := proto.Unmarshal(data, set); err != nil || len(set.GetFile()) == 0 {
		return nil, fmt.Errorf("%s is no file descriptor set; build one with buf build -o FILE", path)
	}
	return set, nil
}

// describeAll describes the methods of the named services, in the order of the
// files; no names means all.
func describeAll(set *descriptorpb.FileDescriptorSet, files interface {
	FindFileByPath(path string) (protoreflect.FileDescriptor, error)
}, only []string,
) ([]interceptors.Description, error) {
	var all []interceptors.Description
	seen := map[string]bool{}
	for _, f := range set.GetFile() {
		file, err := files.FindFileByPath(f.GetName())
		if err != nil {
			return nil, err
		}
		for i := range file.Services().Len() {
			service := file.Services().Get(i)
			name := string(service.FullName())
			if len(only) > 0 && !slices.Contains(only, name) {
				continue
			}
			seen[name] = true
			for j := range service.Methods().Len() {
				d, err := interceptors.Describe(service.Methods().Get(j))
				if err != nil {
					return nil, fmt.Errorf("the policy is broken: %w", err)
				}
				all = append(all, d)
			}
		}
	}
	for _, name := range only {
		if !seen[name] {
			return nil, fmt.Errorf("there is no service %s; name it in full, as in the proto file: package.Service", name)
		}
	}
	return all, nil
}

// policyTable is what a person reads.
func policyTable(all []interceptors.Description) string {
	t := newTable()
	t.AppendHeader(table.Row{"method", "mode", "key", "attempts", "unknown outcome", ""})
	var retried []string
	waits := ""
	flagged := 0
	for _, d := range all {
		attempts := strconv.Itoa(d.Attempts)
		if d.Keyless > 0 && d.Keyless < d.Attempts {
			attempts += ", " + strconv.Itoa(d.Keyless) + " without a key"
		}
		note := d.Warning
		if note != "" {
			flagged++
			note = "! " + note
		} else if d.FailOpen {
			note = "unprotected while dedupd is away"
		}
		if d.Attempts > 1 {
			retried, waits = d.Retried, d.Waits
		}
		t.AppendRow(table.Row{d.Method, d.Mode, d.Key, attempts, d.Unknown, note})
	}
	out := t.Render()
	if waits != "" {
		out += "\n\nRetried: " + strings.Join(retried, ", ") + ".\n" + strings.ToUpper(waits[:1]) + waits[1:] + "."
	}
	if flagged > 0 {
		out += fmt.Sprintf("\n\n! %d of %d methods seem to create something and have no protection.", flagged, len(all))
	}
	return out
}
