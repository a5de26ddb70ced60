package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"conclave/cmd/conclave/internal/cli"
	"conclave/cmd/conclave/internal/userconfig"
	"conclave/pkg/audit"
	"conclave/pkg/bus"
	"conclave/pkg/file"
	"conclave/subjects"
)

// keyExport is a data folder of other processes and the roles that they run.
type keyExport struct {
	Folder string   `json:"folder"`
	Roles  []string `json:"roles"`
	hashes bool     // one of them writes audit records, which needs the key of params_hash
}

// parseKeyExport parses "folder=actor,actor". An actor is one of this build, a tool, or another lasting role such as
// user. It rejects unknown names, and the roles of the provisioners.
func parseKeyExport(a *cli.App, text string) (keyExport, error) {
	folder, names, ok := strings.Cut(text, "=")
	if !ok || !filepath.IsAbs(folder) || names == "" {
		return keyExport{}, cli.Usage("--export %q: write an absolute folder and its actors, like "+
			"/services/broker=broker", text)
	}
	out := keyExport{Folder: filepath.Clean(folder)}
	lasting, _ := subjects.Table().Roles()
	for n := range strings.SplitSeq(names, ",") {
		roles := []string{n, n + "_in"} // an actor that consumes a stream pulls in an account of its own
		switch {
		case n == "tools":
			roles = nil
			for _, tool := range userconfig.ToolNames(userconfig.LoadNames(a)) {
				roles = append(roles, subjects.ToolRole(tool))
			}
		case slices.Contains(userconfig.ToolNames(userconfig.LoadNames(a)), n):
			roles = []string{subjects.ToolRole(n)}
		}
		roles = slices.DeleteFunc(roles, func(r string) bool { return !slices.Contains(lasting, r) })
		if len(roles) == 0 {
			return keyExport{}, cli.Usage("--export %q: unknown actor %q%s", text, n, cli.Nearest(n, runnableActors(a)))
		}
		out.Roles = append(out.Roles, roles...)
		out.hashes = out.hashes || slices.Contains(subjects.AuditWriters, n)
	}
	return out, nil
}

// exportKeys creates missing keys, and copies to each folder the keys of its roles and no others. Unlike createKeys it
// may run beside a server, whose keys it does not change, and writes no files of a stand-alone server.
func exportKeys(a *cli.App, texts []string) error {
	exports := []keyExport{}
	for _, text := range texts {
		e, err := parseKeyExport(a, text)
		if err != nil {
			return err
		}
		exports = append(exports, e)
	}
	if err := a.Home.CreateFolders(); err != nil {
		return err
	}
	lasting, _ := subjects.Table().Roles()
	if _, err := a.Home.Keys().Ensure(lasting); err != nil {
		return err
	}
	if _, err := audit.LoadHasher(a.Home.HashKey()); err != nil { // creates its key
		return err
	}
	for _, e := range exports {
		if err := copyKeys(a.Home, e); err != nil {
			return err
		}
		if !a.JSON {
			a.Say("%s has the keys of %s.", e.Folder, strings.Join(e.Roles, ", "))
		}
	}
	if a.JSON {
		return a.PrintJSON(exports)
	}
	return nil
}

// copyKeys makes the keys of a folder exactly those of its roles, with the key of params_hash for a writer of audit
// records: an actor that was moved to another folder leaves no key behind.
func copyKeys(from bus.Home, e keyExport) error {
	to := bus.Home{Data: e.Folder}
	if err := os.MkdirAll(to.Keys().Dir, 0o700); err != nil {
		return fmt.Errorf("exporting keys: %w", err)
	}
	keep := map[string]string{} // by file name, the file that it is a copy of
	for _, r := range e.Roles {
		keep[filepath.Base(to.Keys().Path(r))] = from.Keys().Path(r)
	}
	if e.hashes {
		keep[filepath.Base(to.HashKey())] = from.HashKey()
	}
	entries, err := os.ReadDir(to.Keys().Dir)
	if err != nil {
		return fmt.Errorf("exporting keys: %w", err)
	}
	for _, f := range entries {
		if keep[f.Name()] == "" {
			if err := os.RemoveAll(filepath.Join(to.Keys().Dir, f.Name())); err != nil {
				return fmt.Errorf("exporting keys: %w", err)
			}
		}
	}
	for name, source := range keep {
		if err := copyKey(source, filepath.Join(to.Keys().Dir, name)); err != nil {
			return fmt.Errorf("exporting keys: %w", err)
		}
	}
	return nil
}

// copyKey copies a key file, mode 0600, which appears complete or not at all. An equal file is left alone.
func copyKey(from, to string) error {
	key, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	defer clear(key)
	old, err := os.ReadFile(to)
	if err == nil && bytes.Equal(old, key) {
		return os.Chmod(to, 0o600)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return file.Replace(to, key)
}
