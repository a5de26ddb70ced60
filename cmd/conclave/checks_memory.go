package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"conclave/config"
	"conclave/pkg/actor"
	"conclave/subjects"
)

// memory says how much is remembered, which way a recall takes, and what waits for vectors.
func (x *examination) memory(ctx context.Context) {
	out, done, err := x.asUser(quickly)
	if err != nil {
		x.fail("memory", "see the log of conclave up", "%v", err)
		return
	}
	defer done()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	r, err := actor.Ask(ctx, out, subjects.MemoryAdminService, subjects.MemoryAdminRequest{Op: "status"})
	var f *subjects.Fault
	switch {
	case errors.As(err, &f) && !x.remembers():
		x.ok("memory", "switched off in memory.yaml: nothing is remembered")
		return
	case errors.As(err, &f):
		x.fail("memory", "mend what it says, then start conclave up again; what is said meanwhile is kept and remembered then", "%s", oneLine(f.Text))
		return
	case err != nil || r.Status == nil:
		x.fail("memory", "see the log of conclave up", "it does not say how it is: %v", err)
		return
	}
	s, n := r.Status, 0
	for _, k := range s.Entries {
		n += k
	}
	x.ok("memory", "%s and %s in %s; search: %s; the index has %s", howMany(n), count(s.Relations, "relation"), size(s.Bytes), s.Search, size(s.Resident))
	if s.Unembedded > 0 {
		x.warn("vectors", "conclave model list says whether the model for embeddings is there", "%s without vectors, found by words alone", howMany(s.Unembedded))
	}
	if c := s.States[subjects.MemoryCandidate]; c > 0 {
		x.warn("candidates", "conclave memory list --state candidate shows them, conclave memory accept or reject decides", "%s proposed by agents", howMany(c))
	}
}

// remembers reports whether memory is wanted. Settings that cannot be read are told of elsewhere.
func (x *examination) remembers() bool {
	cfg, err := config.Load(x.home.Config)
	return err != nil || cfg.Memory.Enabled
}

// howMany counts entries, in words.
func howMany(n int) string {
	if n == 1 {
		return "1 entry"
	}
	return fmt.Sprintf("%d entries", n)
}
