package model

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"time"

	"conclave/pkg/file"
	"conclave/pkg/model"
)

// speed is how fast a model reads and writes on this machine, measured from its replies. The zero value is not
// measured.
type speed struct {
	Prompt        float64 `json:"prompt"` // tokens per second, for the part of a prompt that is not cached
	Output        float64 `json:"output"` // tokens per second
	BytesPerToken float64 `json:"bytes_per_token"`
}

const (
	// defaultBytesPerToken holds until the first reply of a model.
	defaultBytesPerToken = 3.5
	// minSampleTokens is the least number of tokens that say something about the speed.
	minSampleTokens = 8
	// minReadTokens is the least number of prompt tokens that say something about the speed of reading: with fewer the
	// time is that of other work, or of a prefix that the server had to read again.
	minReadTokens = 64
	// cachedFactor is how many times faster than before a prompt can be read. A faster one was in the server's cache.
	cachedFactor = 8
	// A slower sample counts more than a faster one: a fast one may be a prompt that the server had in its cache.
	slowerWeight, fasterWeight = 0.5, 0.2
	maxMeasured                = 500 // models
	maxPrompts                 = 16  // models whose last prompt is known: a server keeps the caches of loaded ones
	writeInterval              = 10 * time.Second
)

// measured is what is known of a model from its use on this machine.
type measured struct {
	speed
	Calls *callTest `json:"calls,omitempty"` // nil = not tested
}

func (v measured) isValid() bool {
	return v.speed.isValid() && (v.Calls == nil || v.Calls.isValid())
}

// meter keeps what is measured of each model, in a file. Speeds are measured from the calls that are made anyway. It
// also remembers the last prompt of a model: a server keeps that in its cache, and reads only what follows the common
// prefix. Ollama reports the tokens of the whole prompt and the time of what it read: the second question of a session
// would otherwise be measured at 17,500 tokens a second on a machine that reads 28, and a model that slow would be
// ended before its first token, because the limit of that grows with the expected time.
type meter struct {
	file string // "" = not kept

	mu      sync.Mutex
	models  map[string]measured
	last    map[string][]byte // prompt of the last request, by model
	written time.Time
	changed bool
}

// newMeter returns a meter with the measurements in file. A file that cannot be read or decoded counts as empty: they
// are made again.
func newMeter(file string) *meter {
	m := &meter{file: file, models: map[string]measured{}, last: map[string][]byte{}}
	if data, err := os.ReadFile(file); file != "" && err == nil {
		var kept map[string]measured
		if json.Unmarshal(data, &kept) == nil && len(kept) <= maxMeasured {
			for name, v := range kept {
				if checkName(name) == nil && v.isValid() {
					m.models[name] = v
				}
			}
		}
	}
	return m
}

func (s speed) isValid() bool {
	valid := func(v, most float64) bool { return v >= 0 && v <= most }
	return valid(s.Prompt, 1e7) && valid(s.Output, 1e7) &&
		(s.BytesPerToken == 0 || s.BytesPerToken >= minBytesPerToken && s.BytesPerToken <= maxBytesPerToken)
}

// Bounds of the measured bytes of a token: what is beyond is no text, and would make every estimate useless.
const minBytesPerToken, maxBytesPerToken = 1, 16

// of returns what is measured of a model.
func (m *meter) of(name string) measured {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.models[trimLatest(name)]
}

// update changes what is measured of a model. A change that is not valid, or that is about one more model than
// maxMeasured, is discarded.
func (m *meter) update(name string, change func(*measured)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	name = trimLatest(name)
	before, known := m.models[name]
	v := before
	change(&v)
	if v == before || !v.isValid() || !known && len(m.models) >= maxMeasured {
		return
	}
	m.models[name], m.changed = v, true
}

// measurement is a call in progress.
type measurement struct {
	meter  *meter
	name   string
	size   int     // bytes of the prompt
	unread float64 // part of it that the server has to read, by what is known here
}

// begin notes the prompt of a request and returns what the server has to read now. The caller may call finish when the
// reply is complete.
func (m *meter) begin(name string, r model.Request) (*measurement, model.Reading) {
	name = trimLatest(name)
	prompt := renderPrompt(r)
	m.mu.Lock()
	defer m.mu.Unlock()
	s, common := m.models[name].speed, commonPrefix(m.last[name], prompt)
	if len(m.last) >= maxPrompts {
		clear(m.last)
	}
	m.last[name] = prompt
	c := &measurement{
		meter: m, name: name, size: len(prompt),
		unread: 1 - float64(common)/float64(max(1, len(prompt))),
	}
	if hasImages(r) {
		c.size = 0 // not measured: the server counts the tokens of images, which are not in the prompt's text
	}
	reading := model.Reading{Tokens: int(c.unread * s.tokens(len(prompt))), Whole: !r.Stream}
	if s.Prompt > 0 {
		seconds := float64(reading.Tokens) / s.Prompt
		if !r.Stream && s.Output > 0 { // nothing comes before the reply is complete
			seconds += float64(r.Options.Predict) / s.Output
		}
		reading.Expected = toDuration(seconds)
	}
	return c, reading
}

// tokens estimates the tokens of a prompt.
func (s speed) tokens(size int) float64 {
	if s.BytesPerToken > 0 {
		return float64(size) / s.BytesPerToken
	}
	return float64(size) / defaultBytesPerToken
}

// toDuration converts seconds, at most an hour: an estimate beyond that says nothing.
func toDuration(seconds float64) time.Duration {
	return time.Duration(min(seconds, 3600) * float64(time.Second))
}

// finish adds the measurement of a complete reply. Values that the server does not report are left as they are.
func (c *measurement) finish(f model.Final) {
	c.meter.update(c.name, func(m *measured) { c.addSample(&m.speed, f) })
}

// addSample adds the values of a complete reply to a speed. A token of the prompt has at least a byte.
func (c *measurement) addSample(s *speed, f model.Final) {
	if tokens := float64(min(f.PromptTokens, c.size)); tokens >= minSampleTokens {
		s.BytesPerToken = updateAverage(s.BytesPerToken, min(max(float64(c.size)/tokens, minBytesPerToken),
			maxBytesPerToken))
		if read := c.unread * tokens; read >= minReadTokens && f.PromptTime > 0 {
			if v := read / f.PromptTime.Seconds(); s.Prompt == 0 || v < cachedFactor*s.Prompt {
				s.Prompt = updateAverage(s.Prompt, v)
			}
		}
	}
	if f.OutputTokens >= minSampleTokens && f.OutputTime > 0 {
		s.Output = updateAverage(s.Output, float64(f.OutputTokens)/f.OutputTime.Seconds())
	}
}

// updateAverage moves an average towards a sample; 0 = there is no average yet.
func updateAverage(average, sample float64) float64 {
	switch {
	case average == 0:
		return sample
	case sample < average:
		return average + slowerWeight*(sample-average)
	}
	return average + fasterWeight*(sample-average)
}

// write stores the measurements in the file, by way of a temporary one. Without force it does so at most once in
// writeInterval. It does nothing when nothing has changed.
func (m *meter) write(now time.Time, force bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.file == "" || !m.changed || !force && now.Sub(m.written) < writeInterval {
		return nil
	}
	m.written, m.changed = now, false
	if err := file.ReplaceJSON(m.file, m.models); err != nil {
		return fmt.Errorf("writing what was measured of models: %w", err)
	}
	return nil
}

// renderPrompt returns the texts of a request in the order in which templates show them to the model: tools, then the
// messages. It is for sizes and common prefixes only.
func renderPrompt(r model.Request) []byte {
	var b bytes.Buffer
	for _, t := range r.Tools {
		b.WriteString(t.Name)
		b.WriteString(t.Description)
		b.Write(t.Parameters)
	}
	for _, m := range r.Messages {
		b.WriteString(m.Role)
		b.WriteString(m.Thinking)
		b.WriteString(m.Content)
		for _, c := range m.Calls {
			b.WriteString(c.Name)
			b.Write(c.Arguments)
		}
	}
	return b.Bytes()
}

// commonPrefix returns how many bytes a and b have in common at their beginning.
func commonPrefix(a, b []byte) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}
