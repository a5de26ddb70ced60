package policy

import (
	"context"
	"slices"

	"conclave/subjects"
)

// monitorRules returns l with the given rules monitor-only: their denials and approval requests are reported in
// [Decision.Monitored] and not enforced. It serves to try a new rule. All other rules, a panic and a verdict without a
// rule stay enforced.
func monitorRules(l Layer, rules ...string) Layer {
	if len(rules) == 0 || isNilLayer(l) {
		return l
	}
	return monitoredLayer{l, slices.Clone(rules)}
}

// monitoredLayer is a layer with monitor-only rules.
type monitoredLayer struct {
	Layer
	rules []string
}

// Judge denies and asks as the wrapped layer does, without the violations of monitor-only rules, which the verdict
// carries in monitored. When no other violation is left it passes.
func (s monitoredLayer) Judge(ctx context.Context, c Call) Verdict {
	var enforced []Verdict
	var monitored []subjects.Denial
	for _, v := range s.Layer.Judge(ctx, c).split() {
		if v.kind != verdictPass && v.rule != "" && slices.Contains(s.rules, v.rule) {
			monitored = append(monitored, subjects.Denial{Layer: s.Name(), Rule: v.rule, Reason: v.reason})
			continue
		}
		enforced = append(enforced, v)
	}
	v := combineVerdicts(enforced...)
	v.monitored = monitored
	return v
}
