package config_test

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"conclave/config"
)

// TestOfficialClients runs clients that others wrote, unchanged, against the whole system with the demo model. They come from
// package registries: CONCLAVE_CLIENTS is a folder with their node_modules, see the step clients of .ci/run.
func TestOfficialClients(t *testing.T) {
	folder := os.Getenv("CONCLAVE_CLIENTS")
	if folder == "" {
		t.Skip("official clients are tested with .ci/run clients, which installs them")
	}
	address := make(chan string, 1)
	c := settings(t, "system.gateway.listen", "127.0.0.1:0").WithWiring(config.Wiring{OnListen: func(addr string) { address <- addr }})
	c.Models.Ollama.URL = "http://127.0.0.1:1" // nothing answers there, so the demo model does
	home := newHome(t)
	up(t, c, home, config.Actors...)
	base := "http://" + <-address
	token, err := os.ReadFile(home.HTTPToken())
	if err != nil {
		t.Fatal(err)
	}

	t.Run("openai", func(t *testing.T) {
		var seen struct {
			Models                     []string
			Answer, Streamed, Thinking string
			Usage, StreamUsage         int
			Finish, Helper, Plain      string
			SameSession                bool
			Embedding                  []int
			UnknownModel, WrongKey     string
		}
		runClient(t, folder, "openai.mjs", base, string(bytes.TrimSpace(token)), &seen)
		switch {
		case !slices.Equal(seen.Models, []string{"assistant", "committee", "orchestrator"}):
			t.Errorf("models %v", seen.Models)
		case !strings.Contains(seen.Answer, "Asia/Tokyo") || seen.Usage == 0:
			t.Errorf("answer %q, usage %d", seen.Answer, seen.Usage)
		case !strings.Contains(seen.Streamed, "Europe/Lisbon") || seen.Finish != "stop" || seen.StreamUsage == 0 || !seen.SameSession:
			t.Errorf("stream %+v", seen)
		case seen.Helper != "stop" || seen.Plain != "stop" || len(seen.Embedding) != 2 || seen.Embedding[0] == 0:
			t.Errorf("%+v", seen)
		case seen.UnknownModel != "model_not_found" || seen.WrongKey != "invalid_api_key":
			t.Errorf("errors: %q %q", seen.UnknownModel, seen.WrongKey)
		}
	})
}

// runClient runs a script of testdata/clients with Node beside the node_modules of folder, and decodes the JSON that it prints.
func runClient(t *testing.T, folder, script, base, key string, into any) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "clients", script))
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp(folder, "run-") // modules are found from the script's folder upwards
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, script)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "node", path)
	cmd.Env = append(os.Environ(), "BASE_URL="+base, "API_KEY="+key)
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v\n%s", script, err, problems.String())
	}
	if err := json.Unmarshal(out.Bytes(), into); err != nil {
		t.Fatalf("%s printed %q: %v", script, out.String(), err)
	}
}
