package digest

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"testing"
)

// TestRank: one mark for each text, or none for any.
func TestRank(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, reply string
		err         error // of the model
		want        []float64
	}{
		{name: "marks", reply: `{"marks":[{"n":1,"mark":3},{"n":2,"mark":9}]}`, want: []float64{3, 9}},
		{name: "in another order", reply: `{"marks":[{"n":2,"mark":9},{"n":1,"mark":3}]}`, want: []float64{3, 9}},
		{name: "the model fails", err: errors.New("gone")},
		{name: "trick: one is missing", reply: `{"marks":[{"n":1,"mark":3}]}`},
		{name: "trick: one twice", reply: `{"marks":[{"n":1,"mark":3},{"n":1,"mark":9}]}`},
		{name: "trick: a text that is not there", reply: `{"marks":[{"n":1,"mark":3},{"n":3,"mark":9}]}`},
		{name: "trick: more than ten", reply: `{"marks":[{"n":1,"mark":3},{"n":2,"mark":99}]}`},
		{name: "trick: below nothing", reply: `{"marks":[{"n":1,"mark":-3},{"n":2,"mark":9}]}`},
		{name: "trick: no mark", reply: `{"marks":[{"n":1},{"n":2,"mark":9}]}`},
		{name: "trick: words", reply: `the second one is better`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d := New(Options{Ask: func(context.Context, string, string, json.RawMessage) (string, error) {
				return tt.reply, tt.err
			}})
			got, err := d.Rank(t.Context(), "which?", []string{"this", "that"})
			if (err == nil) != (tt.want != nil) || !slices.Equal(got, tt.want) {
				t.Errorf("%v, %v", got, err)
			}
		})
	}
	if _, err := New(Options{}).Rank(t.Context(), "which?", []string{"this"}); err == nil {
		t.Error("ranked without a model")
	}
}
