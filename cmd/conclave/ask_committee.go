package main

import (
	"strings"

	"github.com/spf13/pflag"

	"conclave/cmd/conclave/internal/cli"
	"conclave/subjects"
)

// activePersonas is the value of --committee without names.
const activePersonas = "active"

// defineCommittee defines the flags of the committee.
func (o *askFlags) defineCommittee(f *pflag.FlagSet) {
	f.StringVar(&o.committee, "committee", "", "ask the committee; `names` of personas, separated by commas "+
		"(default: the active ones)")
	f.Lookup("committee").NoOptDefVal = activePersonas
	f.IntVar(&o.question.Rounds, "rounds", 0, "how often each persona speaks (default: as configured)")
	f.BoolVar(&o.question.Parallel, "parallel", false, "the personas of a round speak at the same time")
}

// checkCommittee checks the flags of the committee and the hint, and puts them into the question.
func (o *askFlags) checkCommittee() error {
	q := &o.question
	switch {
	case o.committee == "" && (q.Rounds != 0 || q.Parallel):
		return cli.Usage("--rounds and --parallel are for the committee: add --committee")
	case o.committee != "" && o.retry:
		return cli.Usage("--retry asks the assistant again: leave out --committee, or ask the committee the question " +
			"itself")
	case o.committee != "":
		q.Respondent = subjects.Committee
	}
	if o.committee != activePersonas {
		for name := range strings.SplitSeq(o.committee, ",") {
			if name = strings.TrimSpace(name); name != "" {
				q.Personas = append(q.Personas, name)
			}
		}
	}
	if err := (subjects.Query{Hint: q.Hint, Personas: q.Personas, Rounds: q.Rounds}).CheckOptions(); err != nil {
		return cli.Usage("%v", err)
	}
	return nil
}
