package config_test

import (
	"path/filepath"
	"testing"

	"conclave/config"
)

// TestRenamedFieldNamesItsSuccessor: a config folder of the previous version is rejected, and each error says the new
// name.
func TestRenamedFieldNamesItsSuccessor(t *testing.T) {
	for _, tt := range []struct{ file, text, want string }{
		{"models.yaml", "stand_in: auto\n", ":1: stand_in: unknown field: stand_in was renamed to demo_model"},
		{"system.yaml", "gateway:\n  trail: 2s\n", ":2: gateway.trail: unknown field: trail was renamed to grade_wait"},
		{"web_search.yaml", "results: 3\n", ":1: results: unknown field: results was renamed to max_results"},
		{
			"system.yaml", "actor: {restarts: {period: 90s}}\n",
			":1: actor.restarts: unknown field: restarts is no longer a setting; delete it",
		},
		{
			"memory.yaml", "cache:\n  near: 90\n",
			":1: cache: unknown field: cache is no longer a setting; delete it",
		},
		{
			"generator.yaml", "respondent_b: {max_age: 5m}\n",
			":1: respondent_b.max_age: unknown field: max_age is no longer a setting; delete it",
		},
		{
			"orchestrator.yaml", "call_timeout: 5m\n", ":1: call_timeout: unknown field: call_timeout is no longer a " +
				"setting here; delete it: that of generator.yaml holds",
		},
		{
			"generator.yaml", "max_tool_iterations: 5\n",
			":1: max_tool_iterations: unknown field: max_tool_iterations was renamed to steps",
		},
		{
			"generator.yaml", "num_ctx: 32000\n",
			":1: num_ctx: unknown field: num_ctx is window below defaults in models.yaml",
		},
		{
			"web_search.yaml", "searxng_url: http://localhost:8888\n",
			":1: searxng_url: unknown field: searxng_url is url below searxng",
		},
		{
			"system.yaml", "bus_pub_address: tcp://127.0.0.1:5555\n",
			":1: bus_pub_address: unknown field: bus_pub_address is listen, one address for all",
		},
		{
			"manifest.yaml", "agent_types: {}\n", ":1: agent_types: unknown field: agent_types was renamed to " +
				"types; in it, allowed_tools to tools and allowed_paths to paths",
		},
		{"manifest.yaml", "shadow: []\n", ":1: shadow: unknown field: shadow was renamed to monitor_only"},
		{"system.yaml", "trail: 2s\n", ":1: trail: unknown field; known here: listen, allow_remote, sync, audit_max, " +
			"event_max, replicas, audit_head, backup, log_level, log_max, telemetry, machines, actor, broker, gateway"},
	} {
		dir := folder(t, map[string]string{tt.file: tt.text})
		_, err := config.Load(dir)
		if want := filepath.Join(dir, tt.file) + tt.want; err == nil || err.Error() != want {
			t.Errorf("error %v, want %s", err, want)
		}
	}
	dir := folder(t, map[string]string{"models.yaml": "stand_in: auto\ndemo: 1\n"})
	_, err := config.Load(dir)
	errs, ok := err.(interface{ Unwrap() []error })
	if !ok || len(errs.Unwrap()) != 2 {
		t.Errorf("two unknown fields give %v", err)
	}
}
