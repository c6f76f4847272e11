package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"
)

// versionCmd prints what this binary is.
type versionCmd struct {
	Output outputFormat `short:"o" enum:"table,json" default:"table" help:"How to print: table or json."`
}

// buildInfo is what the Go linker recorded.
type buildInfo struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Modified bool   `json:"modified,omitempty"`
	Time     string `json:"time,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// build reads the binary's own build information; a build from a working tree
// calls itself "devel".
func build() buildInfo {
	b := buildInfo{Version: "devel", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	if v := info.Main.Version; v != "(devel)" {
		b.Version = cmp.Or(v, b.Version)
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Revision = s.Value
		case "vcs.modified":
			b.Modified = s.Value == "true"
		case "vcs.time":
			b.Time = s.Value
		}
	}
	return b
}

// Run prints it.
func (c *versionCmd) Run(s streams) error {
	b := build()
	if c.Output == outputJSON {
		return json.NewEncoder(s.out).Encode(b)
	}
	revision := cmp.Or(b.Revision, "unknown revision")
	if b.Modified {
		revision += ", modified"
	}
	_, err := fmt.Fprintf(s.out, "dedupd %s (%s, %s, %s)\n", b.Version, revision, b.Go, b.Platform)
	return err
}
