package policy

import (
	"context"
	"slices"

	"conclave/subjects"
)

// monitorRules watches rules of a layer instead of enforcing them: what they would have refused or asked passes and is told
// in the decision. It is how a new rule is tried. Only rules that are told apart by name can be watched: a layer that
// breaks or says nothing refuses as ever.
func monitorRules(l Layer, rules ...string) Layer {
	if len(rules) == 0 || isNilLayer(l) {
		return l
	}
	return monitoredLayer{l, slices.Clone(rules)}
}

type monitoredLayer struct {
	Layer
	rules []string
}

// Judge implements [Layer].
func (s monitoredLayer) Judge(ctx context.Context, c Call) Verdict {
	var left []Verdict
	var watched []subjects.Denial
	for _, v := range s.Layer.Judge(ctx, c).split() {
		if v.kind != verdictPass && v.rule != "" && slices.Contains(s.rules, v.rule) {
			watched = append(watched, subjects.Denial{Layer: s.Name(), Rule: v.rule, Reason: v.reason})
			continue
		}
		left = append(left, v)
	}
	v := combineVerdicts(left...)
	v.monitored = watched
	return v
}
