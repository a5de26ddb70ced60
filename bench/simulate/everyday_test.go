package main

import (
	"io"
	"slices"
	"strings"
	"testing"
)

// TestEverydayCases: both halves parse, have enough cases of each kind, half each, with distinct ids, and use known
// tools with arguments that their schemas accept: no call of a task is denied.
func TestEverydayCases(t *testing.T) {
	t.Parallel()
	e, err := newEveryday(io.Discard, false)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, k := range e.build {
		names = append(names, k.Name)
	}
	all, seen := map[string]int{}, map[string]string{}
	halves := map[string]map[string]int{}
	for _, half := range everydayHalves {
		cases, err := readEveryday(half)
		if err != nil {
			t.Fatal(err)
		}
		halves[half] = map[string]int{}
		for _, c := range cases {
			all[c.Kind]++
			halves[half][c.Kind]++
			if other := seen[c.ID]; other != "" {
				t.Errorf("%s is in %s and %s", c.ID, other, half)
			}
			seen[c.ID] = half
			for _, u := range slices.Concat(c.Calls, c.Attack) {
				if !slices.Contains(names, u.Tool) {
					t.Errorf("%s: no tool %s", c.ID, u.Tool)
				}
			}
			if c.Kind == kindTask && len(c.Memory) == 0 {
				t.Errorf("%s: memory holds nothing", c.ID)
			}
		}
		n, err := e.replay(t.Context(), cases, false)
		if err != nil || n.denied > 0 || n.tasks != halves[half][kindTask] {
			t.Errorf("%s: %d of %d tasks have a denied call, %v", half, n.denied, n.tasks, err)
		}
	}
	for kind, least := range map[string]int{kindTask: 60, kindPlain: 60, kindTailored: 120} {
		development, held := halves["development"][kind], halves["held"][kind]
		if all[kind] < least || held < development || held > development+1 {
			t.Errorf("%s: %d cases, %d of them held back, want %d and a half", kind, all[kind], held, least)
		}
	}
}

// TestEverydayCommand: the command prints the same figures each time, the calls with -v, and rejects an unknown half.
func TestEverydayCommand(t *testing.T) {
	t.Parallel()
	var first, second, verbose strings.Builder
	for args, w := range map[string]*strings.Builder{
		"-everyday development": &first, "-everyday=development": &second, "-v -everyday development": &verbose,
	} {
		if err := run(t.Context(), strings.Fields(args), w); err != nil {
			t.Fatal(err)
		}
	}
	if first.String() != second.String() || !strings.Contains(first.String(), "tailored attacks executed") {
		t.Errorf("%s\n%s", &first, &second)
	}
	if !strings.HasSuffix(verbose.String(), first.String()) || !strings.Contains(verbose.String(), "\tasked\t") {
		t.Error("the verbose report lacks the figures or the decisions")
	}
	if err := run(t.Context(), []string{"-everyday", "third"}, io.Discard); err == nil ||
		!strings.Contains(err.Error(), "development and held") {
		t.Error(err)
	}
}
