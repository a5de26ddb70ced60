package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// build is what this program was made of.
type build struct {
	Version    string `json:"version"`
	Revision   string `json:"revision,omitempty"`
	Time       string `json:"time,omitempty"`
	Modified   bool   `json:"modified,omitempty"`
	Go         string `json:"go"`
	Platform   string `json:"platform"`
	NATSServer string `json:"nats_server"`
	NATSClient string `json:"nats_client"`
}

func readBuild() build {
	b := build{Version: "(devel)", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	b.Version = or(info.Main.Version, b.Version)
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Revision = s.Value
		case "vcs.time":
			b.Time = s.Value
		case "vcs.modified":
			b.Modified = s.Value == "true"
		}
	}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		switch m.Path {
		case "github.com/nats-io/nats-server/v2":
			b.NATSServer = m.Version
		case "github.com/nats-io/nats.go":
			b.NATSClient = m.Version
		}
	}
	return b
}

// versionCommand says what this program is.
func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Example: "  conclave version --json",
		Args:    noArgs,
		RunE: func(*cobra.Command, []string) error {
			b := readBuild()
			if a.json {
				return a.document(b)
			}
			from := ""
			if b.Revision != "" {
				from = " " + short(b.Revision) + " " + b.Time
			}
			if b.Modified {
				from += " (modified)"
			}
			_, err := fmt.Fprintf(a.stdout, "conclave %s%s\n%s %s, nats-server %s, nats.go %s\n", b.Version, from, b.Go, b.Platform, b.NATSServer, b.NATSClient)
			return err
		},
	}
}
