package memory

import (
	"path/filepath"
	"time"

	"conclave/pkg/strict"
)

// Config is the section of memory in the configuration.
type Config struct {
	Enabled bool  `yaml:"enabled"`
	Results int   `yaml:"n_results"` // names that go on to the second stage
	Top     int   `yaml:"top_k"`     // entries at the end
	Rerank  bool  `yaml:"rerank"`
	Hybrid  bool  `yaml:"hybrid"`
	Model   bool  `yaml:"model"` // ask a small model for names, segments and comparisons; false = plain code only
	Cache   Cache `yaml:"cache"`

	ModelTimeout time.Duration `yaml:"model_timeout"`
	EmbedTimeout time.Duration `yaml:"embed_timeout"`

	Threads int         `yaml:"threads"`      // of a search; 0 = all
	Limit   strict.Size `yaml:"memory_limit"` // of DuckDB
	VSS     string      `yaml:"vss"`          // file of DuckDB's extension; "" = not used

	AuditTimeout time.Duration // how long an act waits for its audit record; not in the file
}

// Cache is how long what was recalled is good for.
type Cache struct {
	Entries  int           `yaml:"entries"` // 0 = no cache
	Near     int           `yaml:"near"`    // percent
	Engram   time.Duration `yaml:"engram"`
	Fact     time.Duration `yaml:"fact"`
	Document time.Duration `yaml:"document"`
}

// Bounds of the settings.
const (
	maxResults     = 200
	maxTop         = 20
	maxCallTimeout = 5 * time.Minute
)

// Validate reports everything wrong with c.
func (c Config) Validate() error { return c.Problems().Err() }

// Problems is everything wrong with c.
func (c Config) Problems() (out strict.Problems) {
	between := func(path string, v, least, most int) {
		if v < least || v > most {
			out.Add(path, "%d is not between %d and %d", v, least, most)
		}
	}
	within := func(path string, v, least, most time.Duration) {
		if v < least || v > most {
			out.Add(path, "%s is not between %s and %s", strict.FormatDuration(v), strict.FormatDuration(least), strict.FormatDuration(most))
		}
	}
	between("n_results", c.Results, 1, maxResults)
	between("top_k", c.Top, 1, maxTop)
	if c.Top > c.Results {
		out.Add("top_k", "%d is more than n_results, which is %d", c.Top, c.Results)
	}
	between("threads", c.Threads, 0, 256)
	within("model_timeout", c.ModelTimeout, time.Millisecond, maxCallTimeout)
	within("embed_timeout", c.EmbedTimeout, time.Millisecond, maxCallTimeout)
	between("cache.entries", c.Cache.Entries, 0, 1024)
	between("cache.near", c.Cache.Near, 50, 100)
	week := 7 * 24 * time.Hour
	within("cache.engram", c.Cache.Engram, 0, week)
	within("cache.fact", c.Cache.Fact, 0, week)
	within("cache.document", c.Cache.Document, 0, week)
	if c.Limit < 64<<20 {
		out.Add("memory_limit", "%s is less than 64MB", c.Limit)
	}
	if c.VSS != "" && !filepath.IsAbs(c.VSS) {
		out.Add("vss", "must be an absolute path to a file of this machine")
	}
	return out
}

// DatabaseFile is where the memory of an installation with this data folder is.
func DatabaseFile(data string) string { return filepath.Join(data, "memory", "memory.duckdb") }
