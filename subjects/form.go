package subjects

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"
)

// UserForm is a question of a running tool to the user: a text and fields of primitive types. All of it is untrusted
// content of the tool, except From.
type UserForm struct {
	ID      string      `json:"id,omitempty"`   // chosen by the tool; the answer carries it
	From    string      `json:"from,omitempty"` // the principal that asks, set by the broker
	Message string      `json:"message"`
	Fields  []FormField `json:"fields,omitempty"` // none = the user only agrees or declines
}

// FormField is a value that a form asks for.
type FormField struct {
	Name        string   `json:"name"`
	Title       string   `json:"title,omitempty"`
	Description string   `json:"description,omitempty"`
	Type        string   `json:"type"` // string, number, integer or boolean
	Choices     []string `json:"choices,omitempty"`
	Required    bool     `json:"required,omitempty"`
	Min         *float64 `json:"min,omitempty"` // of a number; of a string, its length in characters
	Max         *float64 `json:"max,omitempty"`
}

// FormAnswer is the answer to a form, for the tool that asks and nobody else.
type FormAnswer struct {
	ID     string          `json:"id,omitempty"` // of the form
	Action string          `json:"action"`
	Values json.RawMessage `json:"values,omitempty"` // an object of primitive values by field, with [FormAccept] only
}

// Actions of a [FormAnswer].
const (
	FormAccept  = "accept"
	FormDecline = "decline" // by the user, by a rule, or without an answer in time
	FormCancel  = "cancel"  // nobody waits for the call any more: the tool ends it
)

// Limits of a form, in bytes and counts, and of the values of its answer.
const (
	MaxFormMessage = 1000
	MaxFormFields  = 10
	maxFormName    = 64
	maxFormText    = 300
	maxFormChoices = 30
	MaxFormValues  = 8 << 10
)

// Check reports the first rule that a form breaks.
func (f UserForm) Check() error {
	switch {
	case len(f.ID) > maxFormName:
		return fmt.Errorf("the id of a question has at most %d bytes", maxFormName)
	case f.Message == "":
		return errors.New("a question needs a text")
	case len(f.Message) > MaxFormMessage:
		return fmt.Errorf("the text of a question has at most %d bytes", MaxFormMessage)
	case len(f.Fields) > MaxFormFields:
		return fmt.Errorf("a question has at most %d fields", MaxFormFields)
	}
	seen := map[string]bool{}
	for _, field := range f.Fields {
		if seen[field.Name] {
			return errors.New("two fields have the same name")
		}
		seen[field.Name] = true
		if err := field.check(); err != nil {
			return err
		}
	}
	return nil
}

func (f FormField) check() error {
	for _, c := range f.Name {
		if c <= ' ' || c == '=' || c == ';' || c > '~' {
			return errors.New("the name of a field has visible ASCII characters, and no = and ;")
		}
	}
	switch {
	case f.Name == "" || len(f.Name) > maxFormName:
		return fmt.Errorf("the name of a field has 1 to %d characters", maxFormName)
	case len(f.Title) > maxFormText || len(f.Description) > maxFormText:
		return fmt.Errorf("title and description of a field have at most %d bytes", maxFormText)
	case !slices.Contains([]string{"string", "number", "integer", "boolean"}, f.Type):
		return errors.New("a field is a string, a number, an integer or a boolean")
	case len(f.Choices) > maxFormChoices || len(f.Choices) > 0 && f.Type != "string":
		return fmt.Errorf("a string has at most %d choices, other fields have none", maxFormChoices)
	case slices.ContainsFunc(f.Choices, func(c string) bool { return c == "" || len(c) > maxFormText }):
		return fmt.Errorf("a choice has 1 to %d bytes", maxFormText)
	}
	return nil
}

// CheckValues reports the first value that does not fit the form. values is one JSON object; empty stands for {}.
func (f UserForm) CheckValues(values json.RawMessage) error {
	if len(values) > MaxFormValues {
		return fmt.Errorf("the values have at most %d bytes", MaxFormValues)
	}
	given := map[string]any{}
	if len(values) > 0 {
		d := json.NewDecoder(bytes.NewReader(values))
		d.UseNumber()
		if err := d.Decode(&given); err != nil || d.More() || given == nil {
			return errors.New("the values are not one JSON object")
		}
	}
	for _, field := range f.Fields {
		v, ok := given[field.Name]
		delete(given, field.Name)
		if !ok && field.Required {
			return fmt.Errorf("%s is required", field.Name)
		}
		if !ok {
			continue
		}
		if err := field.checkValue(v); err != nil {
			return err
		}
	}
	for name := range given {
		return fmt.Errorf("the form has no field %q", name)
	}
	return nil
}

func (f FormField) checkValue(v any) error {
	size, ok := 0.0, true
	switch v := v.(type) {
	case string:
		ok, size = f.Type == "string", float64(utf8.RuneCountInString(v))
		if len(f.Choices) > 0 && !slices.Contains(f.Choices, v) {
			return fmt.Errorf("%s is not one of the choices", f.Name)
		}
	case json.Number:
		var err error
		size, err = v.Float64()
		ok = err == nil && (f.Type == "number" || f.Type == "integer" && size == float64(int64(size)))
	case bool:
		if f.Type == "boolean" {
			return nil
		}
		ok = false
	default:
		ok = false
	}
	switch {
	case !ok:
		return fmt.Errorf("%s is not of the type %s", f.Name, f.Type)
	case f.Min != nil && size < *f.Min || f.Max != nil && size > *f.Max:
		return fmt.Errorf("%s is outside of its limits", f.Name)
	}
	return nil
}
