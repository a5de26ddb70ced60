package critic

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"conclave/pkg/strict"
	"conclave/pkg/text"
)

// Config is the critic's section of the configuration. Its defaults are in the shipped critic.yaml.
type Config struct {
	Enabled bool `yaml:"enabled"`
	RetryAt int  `yaml:"retry_at"` // scores up to this one offer a retry; 0 = never

	// The limits are no settings, see [Defaults].
	CallTimeout time.Duration `yaml:"-"` // of one judgement, including the wait in the model queue
	Predict     int           `yaml:"-"` // tokens of one judgement
	PairWait    time.Duration `yaml:"-"` // most time between the two answers of a pair; 0 = answers are not compared
	MaxAge      time.Duration `yaml:"-"` // older answers are not judged

	// Rubrics replace shipped ones by name; an empty one does not.
	Rubrics map[string]string `yaml:"rubrics"`
}

// Defaults are the limits of the critic. They are no settings, because what fits them does not depend on the user: a
// judgement waits in the queue behind every answer and needs few tokens; a grade that comes after a day, or a second
// answer that comes after minutes, is of no use any more.
func Defaults() Config {
	return Config{
		CallTimeout: 10 * time.Minute, Predict: 1024, PairWait: 5 * time.Minute, MaxAge: 24 * time.Hour,
	}
}

const maxRubric = 8 << 10

// Validate reports everything wrong with c.
func (c Config) Validate() error { return c.Problems().Err() }

// Problems returns everything wrong with c, by the fields of critic.yaml: retry_at out of range, unknown names of
// rubrics and invalid rubrics. An empty rubric is valid.
func (c Config) Problems() (out strict.Problems) {
	out.CheckInt("retry_at", c.RetryAt, 0, 4)
	for _, name := range strict.SortedKeys(c.Rubrics) {
		path := "rubrics." + name
		if !slices.Contains(rubricNames, name) {
			out.Add("rubrics", "there is no rubric %q; the rubrics are %s", text.Clip(name, 40),
				strings.Join(rubricNames, ", "))
			continue
		}
		if why := CheckRubric(c.Rubrics[name]); why != "" && c.Rubrics[name] != "" {
			out.Add(path, "%s", why)
		}
	}
	return out
}

// CheckRubric returns why a text is not a valid rubric, "" when it is. It rejects more than maxRubric bytes, the marks
// of the judge's request, an empty first line, and a rubric without a line for each score from 1 to 5 in order.
func CheckRubric(rubric string) string {
	switch upper := strings.ToUpper(rubric); {
	case len(rubric) > maxRubric:
		return fmt.Sprintf("%d bytes, at most %d", len(rubric), maxRubric)
	case strings.Contains(rubric, "###"), strings.Contains(upper, "[RESULT]"):
		return `"###" and "[RESULT]" have a meaning in the judge's request and may not stand in a rubric`
	case criterion(rubric) == "":
		return "the first line must say what is looked for"
	}
	at := 0
	for score := 1; score <= 5; score++ {
		line := fmt.Sprintf("\nScore %d:", score)
		i := strings.Index(rubric[at:], line)
		if i < 0 {
			return fmt.Sprintf("there must be a line for each score, in order: %q is missing", line[1:])
		}
		at += i + len(line)
	}
	return ""
}
