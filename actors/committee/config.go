package committee

import (
	"embed"
	"fmt"
	"slices"
	"strings"
	"time"

	"conclave/pkg/agent"
	"conclave/pkg/loop"
	"conclave/pkg/strict"
	"conclave/pkg/text"
	"conclave/subjects"
)

// settingsFile is the file of [Config], for messages that name a setting.
const settingsFile = "personas.yaml"

// Config is the committee's section of the configuration. Its defaults are in the shipped personas.yaml.
type Config struct {
	Active   []string `yaml:"active"`   // who deliberates when the question names nobody; empty = nobody
	Closing  string   `yaml:"closing"`  // the persona that gives the answer
	Rounds   int      `yaml:"rounds"`   // contributions of each persona
	Parallel bool     `yaml:"parallel"` // the personas of a round deliberate at the same time
	History  int      `yaml:"history"`  // earlier turns of the session that each persona is given

	Steps    int           `yaml:"steps"`    // model calls of a contribution that may ask for tools
	Wall     time.Duration `yaml:"wall"`     // timeout of one contribution
	Thinking bool          `yaml:"thinking"` // request thinking, where the model supports it

	GradePersonas bool     `yaml:"grade_personas"` // have the critic grade the contributions of personas with a rubric
	Personas      Personas `yaml:"personas"`

	// What follows are no settings, see [Defaults].

	Predict     int           `yaml:"-"` // output tokens of a contribution
	Answer      int           `yaml:"-"` // output tokens of the answer
	ToolTimeout time.Duration `yaml:"-"` // of one tool call, which waits for nobody: personas have tools of memory only
	Turns       int           `yaml:"-"` // turns kept of a session
	Stream      bool          `yaml:"-"` // publish the answer as it is generated, where the model supports it
	CallTimeout time.Duration `yaml:"-"` // between two tokens of a model call
	FirstToken  time.Duration `yaml:"-"` // before the first token, at least
	Result      strict.Size   `yaml:"-"` // most bytes of one tool result sent to the model
}

// Defaults are the values that are no settings. A contribution is short, so that the last persona can read those of all
// others. Package config replaces the values after ToolTimeout by those of the generator: they depend on the machine
// and the user, and not on who answers.
func Defaults() Config {
	return Config{
		Predict: 1024, Answer: 4096, ToolTimeout: time.Minute, Turns: 50, Stream: true,
		CallTimeout: 120 * time.Second, FirstToken: 5 * time.Minute, Result: 16 << 10,
	}
}

// Persona is a member of the committee.
type Persona struct {
	Name       string `yaml:"name"`
	Prompt     string `yaml:"prompt"`      // "" = that of PromptFile, or else the shipped one of that name
	PromptFile string `yaml:"prompt_file"` // absolute path; package config reads it
	Model      string `yaml:"model"`       // "" = the assistant's
	Rubric     string `yaml:"rubric"`      // for the critic; "" = its contributions are not graded
}

// Personas are the configured personas.
type Personas []Persona

// String lists the names.
func (p Personas) String() string { return strings.Join(p.names(), ", ") }

func (p Personas) names() (out []string) {
	for _, one := range p {
		out = append(out, one.Name)
	}
	return out
}

// find returns the persona of a name, whatever its case and its article.
func (p Personas) find(name string) (Persona, bool) {
	token := subjects.PersonaToken(name)
	i := slices.IndexFunc(p, func(one Persona) bool { return token != "" && subjects.PersonaToken(one.Name) == token })
	if i < 0 {
		return Persona{}, false
	}
	return p[i], true
}

// shippedPrompts are the prompts of the shipped personas, by token.
//
//go:embed personas/*.md
var shippedPrompts embed.FS

// ShippedPrompt returns the shipped prompt of a persona; "" = there is none of that name.
func ShippedPrompt(persona string) string {
	data, err := shippedPrompts.ReadFile("personas/" + subjects.PersonaToken(persona) + ".md")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

// WithPrompts returns c with the prompt of each persona set: its own, that of its file as read returns it, or the
// shipped one. It fails when a file cannot be read or is empty.
func (c Config) WithPrompts(read func(file string) (string, error)) (Config, error) {
	c.Personas = slices.Clone(c.Personas)
	for i := range c.Personas {
		p := &c.Personas[i]
		switch {
		case p.Prompt != "":
		case p.PromptFile != "":
			var err error
			if p.Prompt, err = read(p.PromptFile); err != nil {
				return c, fmt.Errorf("reading the prompt of %s: %w", p.Name, err)
			}
		default:
			p.Prompt = ShippedPrompt(p.Name)
		}
	}
	return c, nil
}

// Bounds of the settings.
const (
	maxPersonaName = 60
	maxPrompt      = 16 << 10
	maxModel       = 200
)

// Validate is [Config.Problems] as an error, nil when there are none.
func (c Config) Validate() error { return c.Problems().Err() }

// Problems lists everything invalid in c, by the fields of personas.yaml. A configuration without personas is valid:
// the committee then answers with a fault. The text of a rubric is checked by package config.
func (c Config) Problems() (out strict.Problems) {
	out.CheckInt("rounds", c.Rounds, 1, subjects.MaxRounds)
	out.CheckInt("history", c.History, 0, 50)
	limits := c.loopLimits(true)
	limits.StepTokens = c.Predict
	agent.CheckLimits(&out, limits, c.ToolTimeout, 20)
	out = append(out, c.Personas.problems()...)
	if _, ok := c.Personas.find(c.Closing); !ok && len(c.Personas) > 0 {
		out.Add("closing", "%q is not one of the personas %s", text.Clip(c.Closing, 40), c.Personas)
	}
	if len(c.Active) > subjects.MaxPersonas {
		out.Add("active", "%d personas, at most %d", len(c.Active), subjects.MaxPersonas)
	}
	for i, a := range c.Active {
		if _, ok := c.Personas.find(a); !ok {
			out.Add(fmt.Sprintf("active[%d]", i), "%q is not one of the personas %s", text.Clip(a, 40), c.Personas)
		}
	}
	return out
}

// problems lists everything invalid in the personas.
func (p Personas) problems() (out strict.Problems) {
	seen := map[string]string{}
	for i, one := range p {
		at, token := fmt.Sprintf("personas[%d]", i), subjects.PersonaToken(one.Name)
		switch {
		case token == "":
			out.Add(at+".name", "%q needs at least one of the letters a to z", text.Clip(one.Name, 40))
			continue
		case one.Name != text.OneLine(one.Name, maxPersonaName):
			out.Add(at+".name", "at most %d characters on one line", maxPersonaName)
		case seen[token] != "":
			out.Add(at+".name", "%q is the same name as %q", one.Name, seen[token])
		}
		seen[token] = one.Name
		switch {
		case one.Prompt != "" && one.PromptFile != "":
			out.Add(at+".prompt", "prompt and prompt_file exclude each other")
		case len(one.Prompt) > maxPrompt:
			out.Add(at+".prompt", "%d bytes, at most %d", len(one.Prompt), maxPrompt)
		case one.Prompt == "" && one.PromptFile == "" && ShippedPrompt(one.Name) == "":
			out.Add(at, "%s has no prompt: write prompt or prompt_file", one.Name)
		}
		if one.Model != text.OneLine(one.Model, maxModel) {
			out.Add(at+".model", "%q is not the name of a model", text.OneLine(one.Model, 40))
		}
	}
	return out
}

// selectPersonas returns who deliberates: the named personas, or else the active ones, each once and without the
// closing one. It fails with CodeUnknownPersona for a name that is not configured, and with CodeNoPersonas when nobody
// is left.
func (c Config) selectPersonas(names []string) (out []Persona, closing Persona, err error) {
	closing, _ = c.Personas.find(c.Closing)
	if len(names) == 0 {
		names = c.Active
	}
	for _, n := range names {
		p, ok := c.Personas.find(n)
		if !ok {
			return nil, closing, subjects.Faultf(subjects.CodeUnknownPersona, "there is no persona %q; the "+
				"configured ones are: %s", text.OneLine(n, maxPersonaName), c.Personas)
		}
		if p.Name != closing.Name && !slices.ContainsFunc(out, func(o Persona) bool { return o.Name == p.Name }) {
			out = append(out, p)
		}
	}
	if len(out) == 0 {
		return nil, closing, subjects.Faultf(subjects.CodeNoPersonas, "no persona deliberates: name some with the "+
			"question, or list them under active in %s", settingsFile)
	}
	return out, closing, nil
}

// loopLimits are the limits of one contribution, or of the answer.
func (c Config) loopLimits(closing bool) loop.Limits {
	answer := c.Predict
	if closing {
		answer = c.Answer
	}
	return loop.Limits{
		Steps: c.Steps, TurnTimeout: c.Wall, CallTimeout: c.CallTimeout, FirstToken: c.FirstToken,
		StepTokens: answer, AnswerTokens: answer, ResultBytes: int(c.Result), ReplyBytes: maxReply,
	}
}

// maxReply bounds one reply in bytes.
const maxReply = 64 << 10
