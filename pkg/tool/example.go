// Package tool writes a working example of a tool that users add: a program of their own that connects with a plain
// NATS client. The folder conclavetool has the helper of the Go example, which is copied with it.
package tool

import (
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"conclave/pkg/tool/conclavetool"
)

//go:embed examples/python/tool.py examples/shell/tool.sh examples/go/main.go conclavetool/conclavetool.go
var files embed.FS

// Settings are the content of conclave.json, by which an example connects. The key stays in the key folder.
type Settings = conclavetool.Config

// Languages are the languages of examples.
var Languages = []string{"python", "go", "shell"}

// StartCommand is how an example is started in its folder.
var StartCommand = map[string]string{"python": "python3 -m venv .venv && .venv/bin/pip install nats-py nkeys && " +
	".venv/bin/python tool.py", "go": "go mod tidy && go run .", "shell": "bash tool.sh"}

// Needs is what the user must install before an example starts, in a sentence. A language without an entry has it in
// [StartCommand] or needs nothing but itself.
var Needs = map[string]string{"shell": "it needs the commands nats (https://github.com/nats-io/natscli/releases) and " +
	"jq (package jq of your system)"}

// exampleName is the name of the tool in the example files.
const exampleName = "word_count"

// goModule is the go.mod of the Go example.
const goModule = "module example.org/%s\n\ngo 1.24\n\nrequire github.com/nats-io/nats.go v1.55.0\n"

// CheckFolder rejects a folder that holds files already, so that no example replaces them.
func CheckFolder(dir string) error {
	entries, err := os.ReadDir(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case len(entries) > 0:
		return fmt.Errorf("%s is not empty; name another folder", dir)
	}
	return nil
}

// settingsFile is the name of the file of [Settings].
const settingsFile = "conclave.json"

// CheckSettings rejects a folder that has settings already.
func CheckSettings(dir string) error {
	path := filepath.Join(dir, settingsFile)
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return errors.Join(err, fmt.Errorf("%s exists; name another folder", path))
	}
	return nil
}

// WriteExample writes the example of a tool in a language of [Languages] to a folder that [CheckFolder] accepts. With
// the language "" it writes the settings alone, to a folder that [CheckSettings] accepts.
func WriteExample(dir, lang, name string, s Settings) error {
	settings, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	out := map[string]string{settingsFile: string(settings) + "\n"}
	switch lang {
	case "":
	case "python":
		out["tool.py"], err = readExample("examples/python/tool.py", name)
	case "shell":
		out["tool.sh"], err = readExample("examples/shell/tool.sh", name)
	case "go":
		var helper []byte
		helper, err = files.ReadFile("conclavetool/conclavetool.go")
		if err == nil {
			out["main.go"], err = readExample("examples/go/main.go", name)
		}
		out["main.go"] = strings.ReplaceAll(out["main.go"], `"conclave/pkg/tool/conclavetool"`, `"example.org/`+name+
			`/conclavetool"`)
		out["conclavetool/conclavetool.go"], out["go.mod"] = string(helper), fmt.Sprintf(goModule, name)
	default:
		err = fmt.Errorf("no example in %q; choose %s", lang, strings.Join(Languages, " or "))
	}
	if err != nil {
		return err
	}
	for file, text := range out {
		path := filepath.Join(dir, filepath.FromSlash(file))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// readExample returns a file of an example for the tool name.
func readExample(file, name string) (string, error) {
	data, err := files.ReadFile(file)
	return strings.ReplaceAll(string(data), exampleName, name), err
}
