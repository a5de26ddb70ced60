package broker

import (
	"cmp"
	"context"
	"slices"

	"conclave/actors/broker/internal/stage"
	"conclave/pkg/policy"
	"conclave/subjects"
)

// newJudgement returns how the rules judged a call, for the broker's copy of it. After a denial every layer judges by
// itself, so that other rules can be tried on the call later. It is nil for a call that no layer judged.
func (b *Broker) newJudgement(ctx context.Context, judged *stage.Judged) *subjects.Judgement {
	if judged == nil {
		return nil
	}
	rules, c, d := judged.Rules(), judged.Facts(), judged.Decision()
	j := &subjects.Judgement{
		Type: c.Type, Override: c.Override.Level, Disabled: c.Override.Disable, Granted: c.Override.Grant,
		Identical: c.Usage.Identical, Calls: c.Usage.Calls,
		Undoable: c.IsUndoable(),
	}
	for _, a := range c.Lineage {
		j.Lineage = append(j.Lineage, subjects.LineageAgent{
			Name: a.Name, Type: a.Type, Narrowed: a.Narrowed,
			Tools: slices.Clone(a.Tools),
		})
	}
	if _, ours := b.table.build[c.Tool.Name]; !ours {
		j.ToolFacts = c.Tool.FactsHash()
	}
	if no := denyRespondentB(c); no != nil {
		j.Denied = no.Layer + "." + no.Rule
	}
	if no := d.Denial(); no != nil {
		if !slices.ContainsFunc(rules.Chain, func(l policy.Layer) bool { return l != nil && l.Name() == no.Layer }) {
			j.Denied = cmp.Or(j.Denied, no.Layer+"."+no.Rule)
		}
		j.Layers, j.Monitored = rules.Chain.JudgeEach(ctx, c)
		return j
	}
	j.Layers = d.Verdict().Layers
	for i := range j.Layers {
		j.Layers[i].Reason = ""
	}
	for _, m := range d.Monitored() {
		j.Monitored = append(j.Monitored, m.Layer+"."+m.Rule)
	}
	return j
}
