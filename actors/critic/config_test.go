package critic

import (
	"strings"
	"testing"

	"conclave/subjects"
)

func TestConfig(t *testing.T) {
	t.Parallel()
	rubric := "[Is it kind?]\nScore 1: a\nScore 2: b\nScore 3: c\nScore 4: d\nScore 5: e\n"
	own := func(name, text string) func(*Config) {
		return func(c *Config) { c.Rubrics = map[string]string{name: text} }
	}
	for _, c := range []struct {
		name   string
		change func(*Config)
		wrong  string // the field, "" = nothing
	}{
		{"as shipped", func(*Config) {}, ""},
		{"never a retry", func(c *Config) { c.RetryAt = 0 }, ""},
		{"a rubric", own(subjects.RubricPlain, rubric), ""},
		{"a rubric as shipped", own(subjects.RubricTask, ""), ""},
		{"a retry of every answer", func(c *Config) { c.RetryAt = 5 }, "retry_at"},
		{"a rubric of another name", own("kind", rubric), "rubrics"},
		{
			"a rubric without a score", own(subjects.RubricPlain, strings.Replace(rubric, "Score 3", "Grade 3", 1)),
			"rubrics.plain",
		},
		{"a rubric in another order", own(subjects.RubricPlain, "[x]\nScore 2: b\nScore 1: a\nScore 3: c\nScore 4: "+
			"d\nScore 5: e"), "rubrics.plain"},
		{"a rubric with a heading", own(subjects.RubricPlain, rubric+"###Feedback: x"), "rubrics.plain"},
		{"a rubric with an end", own(subjects.RubricPlain, rubric+"[result] 5"), "rubrics.plain"},
		{"a rubric without a criterion", own(subjects.RubricPlain, "[]\n"+rubric), "rubrics.plain"},
		{"a rubric too long", own(subjects.RubricPlain, rubric+strings.Repeat("x", maxRubric)), "rubrics.plain"},
	} {
		cfg := defaultConfig()
		c.change(&cfg)
		p := cfg.Problems()
		switch {
		case c.wrong == "" && (len(p) > 0 || cfg.Validate() != nil):
			t.Errorf("%s: %v", c.name, p)
		case c.wrong != "" && (len(p) != 1 || p[0].Path != c.wrong || cfg.Validate() == nil):
			t.Errorf("%s: %v, want one of %s", c.name, p, c.wrong)
		}
	}
}
