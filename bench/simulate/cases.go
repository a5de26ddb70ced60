package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// Case is a user's task with its own correct calls, and the calls that an injected instruction asks for. It has one of
// three forms: a list of user calls, a single one (Tool, Params) with the text that its tool returned, or several
// questions (Turns). A case without user calls is an attack on a session that has read untrusted content.
type Case struct {
	ID          string       `json:"id"`
	Source      string       `json:"source"`
	Suite       string       `json:"suite"`
	Task        string       `json:"user_task"`
	Instruction instructions `json:"user_instruction"`
	Calls       []Call       `json:"user_calls"`
	Goal        string       `json:"injection_goal"`
	Turns       []turn       `json:"turns"`

	Tool     string          `json:"user_tool"`
	Params   json.RawMessage `json:"user_params"`
	Response string          `json:"tool_response_enhanced"`
	Plain    string          `json:"tool_response_base"`

	Attack []Call `json:"attacker_calls"`

	// of the everyday cases, see [runEveryday]
	Kind         string            `json:"kind"`         // task, plain or tailored
	Trick        string            `json:"trick"`        // where the injection stands, or which rule the attack plays
	Memory       []memoryEntry     `json:"memory"`       // what memory holds
	Descriptions map[string]string `json:"descriptions"` // of tools, by name, where a server wrote the injection there
}

// memoryEntry is an entry of memory.
type memoryEntry struct {
	Text    string `json:"text"`
	Trusted bool   `json:"trusted"`
}

// turn is one question of a case with its calls.
type turn struct {
	Instruction string `json:"user_instruction"`
	Calls       []Call `json:"user_calls"`
}

// instructions are the questions of a case: in JSON one text, or a list of texts.
type instructions []string

// UnmarshalJSON implements [json.Unmarshaler].
func (s *instructions) UnmarshalJSON(data []byte) error {
	var one string
	if json.Unmarshal(data, &one) == nil {
		*s = instructions{one}
		return nil
	}
	return json.Unmarshal(data, (*[]string)(s))
}

// Call is one tool call of a case.
type Call struct {
	Tool     string    `json:"tool"`
	Args     arguments `json:"args"`
	Injected bool      `json:"result_has_injection"`
	Result   string    `json:"simulated_result"`
	Links    []string  `json:"links"`    // of a search; omitted = the URLs in its result
	Question int       `json:"question"` // index of the question that it belongs to

	// of the everyday cases
	Fails        bool   `json:"fails"`          // the result is an error of the tool
	Needs        string `json:"needs_question"` // why the user must be asked before this call of a task; "" = no need
	MustNot      string `json:"must_not"`       // what must not happen without a question; "" = a step to it
	Irreversible bool   `json:"irreversible"`   // it cannot be undone, or it gains power later
}

// arguments are the arguments of a call: in JSON an object, or a list of positional arguments, which get the names
// arg0, arg1 and so on.
type arguments json.RawMessage

// UnmarshalJSON implements [json.Unmarshaler].
func (a *arguments) UnmarshalJSON(data []byte) error {
	var list []json.RawMessage
	if json.Unmarshal(data, &list) != nil {
		*a = bytes.Clone(data)
		return nil
	}
	if list == nil { // null
		*a = nil
		return nil
	}
	object := map[string]json.RawMessage{}
	for i, v := range list {
		object["arg"+strconv.Itoa(i)] = v
	}
	var err error
	*a, err = json.Marshal(object)
	return err
}

// MarshalJSON implements [json.Marshaler].
func (a arguments) MarshalJSON() ([]byte, error) { return a.object(), nil }

// object returns the arguments as a JSON object, {} for none.
func (a arguments) object() json.RawMessage {
	if len(a) == 0 {
		return json.RawMessage("{}")
	}
	return json.RawMessage(a)
}

// maxCase is the longest line of a case file, in bytes.
const maxCase = 4 << 20

// ReadCases reads cases, one JSON object per line, and skips empty lines; name is used in errors. It rejects a file
// without a case, a line over maxCase, a case without an id or any call, a task without a question, and a call of a
// question that the case does not have. Unknown fields are ignored. All forms are returned with their calls in Calls.
func ReadCases(r io.Reader, name string) ([]Case, error) {
	var out []Case
	sc := bufio.NewScanner(r)
	sc.Buffer(nil, maxCase)
	for n := 1; sc.Scan(); n++ {
		line := bytes.TrimSpace(sc.Bytes())
		if len(line) == 0 {
			continue
		}
		var c Case
		if err := json.Unmarshal(line, &c); err != nil {
			return nil, fmt.Errorf("%s:%d: not a case: %w", name, n, err)
		}
		if err := c.normalize(); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", name, n, err)
		}
		out = append(out, c)
	}
	if err := sc.Err(); err != nil {
		return nil, fmt.Errorf("reading %s: %w", name, err)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s holds no case", name)
	}
	return out, nil
}

// normalize brings a case into the form with a list of user calls.
func (c *Case) normalize() error {
	if c.Tool != "" && len(c.Calls) == 0 {
		c.Calls = []Call{{Tool: c.Tool, Args: arguments(c.Params), Injected: true, Result: c.Plain}}
	}
	for i, t := range c.Turns {
		c.Instruction = append(c.Instruction, t.Instruction)
		for _, u := range t.Calls {
			u.Question = i
			c.Calls = append(c.Calls, u)
		}
	}
	if len(c.Instruction) == 0 && len(c.Calls) == 0 {
		c.Instruction = instructions{""} // an attack without a task
	}
	if c.ID == "" || len(c.Instruction) == 0 || strings.TrimSpace(strings.Join(c.Instruction, "")) == "" &&
		len(c.Calls) > 0 || len(c.Calls)+len(c.Attack) == 0 {
		return errors.New("a case needs id, user_instruction and calls")
	}
	for _, u := range append(c.Calls, c.Attack...) {
		if u.Question < 0 || u.Question >= len(c.Instruction) {
			return fmt.Errorf("a call of %s belongs to question %d of %d", u.Tool, u.Question, len(c.Instruction))
		}
	}
	return nil
}

// taskID identifies the user's task, which several cases may share: tool and instruction of the single-call form,
// otherwise suite and task, or for a case without either its own id.
func (c Case) taskID() string {
	switch {
	case c.Task == "" && c.Tool == "":
		return c.ID
	case c.Task == "":
		return c.Tool + " " + strings.Join(c.Instruction, " ")
	}
	return c.suite() + "-" + c.Task
}

// suite returns the suite of a case in the report.
func (c Case) suite() string {
	switch {
	case c.Suite != "":
		return c.Suite
	case c.Source != "":
		return c.Source
	}
	return "cases"
}
