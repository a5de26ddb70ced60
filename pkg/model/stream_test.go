package model_test

import (
	"errors"
	"iter"
	"reflect"
	"testing"

	"conclave/pkg/model"
)

func newReply(err error, chunks ...model.Chunk) iter.Seq2[model.Chunk, error] {
	return func(yield func(model.Chunk, error) bool) {
		for _, c := range chunks {
			if !yield(c, nil) {
				return
			}
		}
		if err != nil {
			yield(model.Chunk{}, err)
		}
	}
}

func TestCollect(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	a, b := model.Call{Name: "a"}, model.Call{Name: "b"}
	done := model.Chunk{Done: true, Final: model.Final{Model: "m", OutputTokens: 3}}
	for _, c := range []struct {
		name   string
		err    error
		chunks []model.Chunk
		want   model.Message
		fails  error
	}{
		{
			"one chunk", nil,
			[]model.Chunk{{Content: "hi", Thinking: "hm", Calls: []model.Call{a}, Done: true, Final: done.Final}},
			model.Message{Content: "hi", Thinking: "hm", Calls: []model.Call{a}},
			nil,
		},
		{
			"several chunks", nil,
			[]model.Chunk{{Thinking: "h"}, {Thinking: "m"}, {Content: "h"}, {Content: "i"}, done},
			model.Message{Content: "hi", Thinking: "hm"},
			nil,
		},
		{"calls in the middle and at the end", nil, []model.Chunk{
			{Calls: []model.Call{a}},
			{Content: "x"},
			{Calls: []model.Call{b}, Done: true, Final: done.Final},
		}, model.Message{
			Content: "x",
			Calls:   []model.Call{a, b},
		}, nil},
		{
			"chunks after done are ignored", nil,
			[]model.Chunk{{Content: "x"}, done, {Content: "y"}},
			model.Message{Content: "x"},
			nil,
		},
		{
			"error keeps the received text", broken,
			[]model.Chunk{{Content: "x"}, {Content: "y"}},
			model.Message{Content: "xy"},
			broken,
		},
		{"no last chunk", nil, []model.Chunk{{Content: "x"}}, model.Message{Content: "x"}, model.ErrCut},
		{"no chunks", nil, nil, model.Message{}, model.ErrCut},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			m, final, err := model.Collect(newReply(c.err, c.chunks...))
			c.want.Role = model.Assistant
			if !reflect.DeepEqual(m, c.want) {
				t.Errorf("got %+v, want %+v", m, c.want)
			}
			if !errors.Is(err, c.fails) {
				t.Errorf("error %v, want %v", err, c.fails)
			}
			if c.fails == nil && final != done.Final {
				t.Errorf("final %+v", final)
			}
		})
	}
}
