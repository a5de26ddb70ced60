package main

import (
	"runtime/debug"
	"strings"

	"conclave/cmd/conclave/internal/cli"
)

// sbom is a software bill of materials in the form of CycloneDX 1.6, as far as it is used here.
type sbom struct {
	Format   string `json:"bomFormat"`
	Spec     string `json:"specVersion"`
	Version  int    `json:"version"`
	Metadata struct {
		Component sbomComponent `json:"component"`
	} `json:"metadata"`
	Components []sbomComponent `json:"components"`
}

// sbomComponent is the program, or one part of it.
type sbomComponent struct {
	Type       string         `json:"type"`
	Name       string         `json:"name"`
	Version    string         `json:"version"`
	PackageURL string         `json:"purl"`
	Properties []sbomProperty `json:"properties,omitempty"`
}

type sbomProperty struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// printSBOM prints what this binary was built from: the modules that the Go toolchain recorded in it with their
// checksums, the standard library, and the script of the page that is not ours.
func printSBOM(a *cli.App) error {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return cli.Fail(cli.ExitFailed, "this binary has no build information", "build it with Go modules")
	}
	return a.PrintJSON(newSBOM(readBuild(), info.Deps))
}

func newSBOM(b build, modules []*debug.Module) sbom {
	doc := sbom{Format: "CycloneDX", Spec: "1.6", Version: 1}
	doc.Metadata.Component = describeModule("application", "conclave", b.Version)
	doc.Metadata.Component.Properties = []sbomProperty{
		{"conclave:platform", b.Platform},
		{"conclave:revision", b.Revision},
	}
	doc.Components = append(doc.Components, describeModule("library", "std", strings.TrimPrefix(b.Go, "go")),
		// actors/gateway/page/js
		sbomComponent{Type: "library", Name: "lit-html", Version: "3.3.3", PackageURL: "pkg:npm/lit-html@3.3.3"})
	for _, m := range modules {
		if m.Replace != nil {
			m = m.Replace
		}
		c := describeModule("library", m.Path, m.Version)
		if m.Sum != "" {
			c.Properties = []sbomProperty{{"go:sum", m.Sum}}
		}
		doc.Components = append(doc.Components, c)
	}
	return doc
}

func describeModule(kind, path, version string) sbomComponent {
	return sbomComponent{Type: kind, Name: path, Version: version, PackageURL: "pkg:golang/" + path + "@" + version}
}
