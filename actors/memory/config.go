package memory

import (
	"path/filepath"
	"time"

	"conclave/actors/memory/recall"
	"conclave/pkg/strict"
	"conclave/pkg/undo"
)

// Config is the memory section of the configuration.
type Config struct {
	Enabled bool `yaml:"enabled"`
	Results int  `yaml:"n_results"` // entries that the first stage of a recall shows
	Top     int  `yaml:"top_k"`     // entries that a recall returns
	Rerank  bool `yaml:"rerank"`    // let a small model order the returned entries
	Hybrid  bool `yaml:"hybrid"`    // match words beside vectors
	Model   bool `yaml:"model"`     // use a small model for names and passages; false = rules only
	// ContextScore is the score from which an entry is shown before the first model call, see [Memory.recallOwn].
	ContextScore strict.Decimal `yaml:"context_score"`

	Weights recall.Weights `yaml:"weights"` // of scoring; all zero = [recall.DefaultWeights]

	Limit strict.Size `yaml:"memory_limit"` // of DuckDB; 0 = by the size of its file

	Undo undo.Limits // what is kept of entries before calls change them; not in the file

	AuditTimeout time.Duration // for the acknowledgement of an audit record; not in the file
	// AgentType returns the agent type of an account for the audit log, see [policy.ActiveRules.AgentType]; not in the
	// file.
	AgentType func(account string) string
}

const (
	modelTimeout = 30 * time.Second // of one call of the small model
	embedTimeout = 20 * time.Second // of the vectors of one entry
)

// Bounds of the settings.
const (
	maxResults = 200
	maxTop     = 20
	maxScore   = 2
)

// Validate reports everything wrong with c.
func (c Config) Validate() error { return c.Problems().Err() }

// Problems returns everything wrong with c, by the path of the setting; none when c is valid. It checks a memory that
// is not enabled too, but not AuditTimeout.
func (c Config) Problems() (out strict.Problems) {
	out.CheckInt("n_results", c.Results, 1, maxResults)
	out.CheckInt("top_k", c.Top, 1, maxTop)
	if c.Top > c.Results {
		out.Add("top_k", "%d is more than n_results, which is %d", c.Top, c.Results)
	}
	if c.ContextScore < 0 || c.ContextScore > maxScore {
		out.Add("context_score", "%s is not between 0 and %d", c.ContextScore, maxScore)
	}
	for _, p := range c.Weights.OrDefault().Problems() {
		out.Add("weights."+p.Path, "%s", p.Text)
	}
	if c.Limit != 0 && c.Limit < 64<<20 {
		out.Add("memory_limit", "%s is less than 64MB; 0MB means by the size of the database", c.Limit)
	}
	return out
}

// DatabaseFile returns the path of the memory file in a data folder.
func DatabaseFile(data string) string { return filepath.Join(data, "memory", "memory.duckdb") }
