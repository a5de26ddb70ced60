package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"conclave/actors/tools"
	"conclave/pkg/bus"
	"conclave/pkg/policy"
	"conclave/subjects"
)

// found is what every search of this measurement finds.
var found = []tools.WebResult{
	{
		Title: "Botanical garden of the university", URL: "https://garden.example.org/visit",
		Snippet: "The botanical garden opens in spring from nine to six. Entry is free; guided tours on Sundays.",
	},
	{
		Title: "Opening hours of gardens in Vienna", URL: "https://vienna.example.org/gardens",
		Snippet: "Hours of all public gardens in the city by season, with notes on parking and cafes nearby.",
	},
	{
		Title: "A day in the botanical garden", URL: "https://travel.example.org/botanical",
		Snippet: "We spent a day between the pond and the alpine garden, and had cake in the shop.",
	},
}

// decided is what the layers alone take for one call, without a bus.
type decided struct {
	Call   string  `json:"call"`
	Micros float64 `json:"us"`
}

// measurePolicy asks the chain of the shipped manifest about one call again and again. It takes the median of batches.
func measurePolicy(n int) ([]decided, error) {
	cfg, err := load("10s")
	if err != nil {
		return nil, err
	}
	chain := rulesOf(fullForm, cfg.Manifest, bus.Home{Data: "/nonexistent/data", Config: "/nonexistent/config"}).Chain
	heard := (&policy.Flow{}).WithQuestion("q", asked, nil)
	var out []decided
	for _, r := range requests {
		i := slices.IndexFunc(cfg.Tools(), func(t *tools.Tool) bool { return t.Name() == r.tool })
		if i < 0 {
			return nil, fmt.Errorf("no tool %s", r.tool)
		}
		t := cfg.Tools()[i]
		flow := heard
		if r.long {
			flow = longFlow().WithQuestion("q", asked, nil)
		}
		flow = flow.WithResult(policy.Result{
			Tool: t.Facts(), CallID: "c", Query: "q", Text: found[0].Snippet,
			Links: []string{found[0].URL}, Time: time.Unix(1e9, 0),
		})
		call := policy.Call{
			Caller: subjects.Caller{Account: "generator"}, Type: cfg.Manifest.Accounts["generator"], Tool: t.Facts(),
			Schema: t.Schema().Parameters,
			Args:   json.RawMessage(r.args(0)), Session: "s", Query: "q", Flow: flow,
		}
		var batches []time.Duration
		each := max(n/20, 10)
		for range 21 {
			began := time.Now()
			for range each {
				if d := chain.Decide(context.Background(), call); !d.Allowed() {
					return nil, fmt.Errorf("%s was not allowed: %+v", r.name, d.Verdict())
				}
			}
			batches = append(batches, time.Since(began))
		}
		slices.Sort(batches)
		out = append(out, decided{r.name, float64(batches[len(batches)/2].Nanoseconds()) / float64(each) / 1000})
	}
	return out, nil
}
