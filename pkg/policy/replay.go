package policy

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"

	"conclave/subjects"
)

// RuleNotRecorded is the rule of a layer that needs what the record of a call does not hold. A denial by it says that
// the call cannot be judged.
const RuleNotRecorded = "not_recorded"

// JudgeEach returns the verdicts of all layers, each by itself, without reasons, and the violated monitor-only rules as
// layer.rule. It decides nothing: it is for the record of a denied call, of which [Chain.Decide] judges no layer after
// the denial. A layer that fails has no verdict.
func (ch Chain) JudgeEach(ctx context.Context, c Call) (layers []subjects.LayerVerdict, monitored []string) {
	for _, l := range ch {
		name, v, failure := runLayer(ctx, l, c.clone())
		if failure != nil {
			continue
		}
		for _, m := range v.monitored {
			monitored = append(monitored, m.Layer+"."+m.Rule)
		}
		for _, one := range v.split() {
			rule := one.rule
			if one.kind != verdictPass {
				rule = cmp.Or(rule, name)
			}
			layers = append(layers, subjects.LayerVerdict{Layer: name, Verdict: verdictWords[one.kind], Rule: rule})
		}
	}
	return layers, monitored
}

var verdictWords = map[verdictKind]string{verdictDeny: "deny", verdictPass: "pass", verdictAsk: "ask"}

// FactsHash identifies the facts of a tool by which the flow layer judges it and its results. "" = they cannot be
// encoded.
func (t Tool) FactsHash() string {
	data, err := json.Marshal([]any{
		t.Known, t.Effects.String(), t.Act, t.Args, t.About, t.IDs, t.People, t.Graded,
		t.Empty,
	})
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:8])
}

// ReplayChain returns the chain that judges a recorded call by the rules of m. The layers that the manifest does not
// configure and that need what no record holds (the tool's schema, the flow of the session, the budgets of spawned
// agents) give their recorded verdicts; monitor_only of m applies to them. sameFlow says whether the recorded verdict
// of the flow layer holds under m: its tools' facts are unchanged. A layer without what it needs denies by
// [RuleNotRecorded].
func (m Manifest) ReplayChain(env Env, tool Tool, j subjects.Judgement, sameFlow bool) Chain {
	chain := m.Chain(env)
	for i, l := range chain {
		switch name := l.Name(); name {
		case (ArgumentsLayer{}).Name():
			chain[i] = newRecordedLayer(name, j)
		case (OverrideLayer{}).Name():
			isClient := func(v subjects.LayerVerdict) bool { return v.Layer == name && v.Rule == ruleClientMemory }
			if slices.ContainsFunc(j.Layers, isClient) { // the rights of a client are not part of a manifest
				chain[i] = newRecordedLayer(name, j)
			}
		case (FlowLayer{}).Name():
			if sameFlow && !(j.Undoable && m.AskReversible) {
				chain[i] = monitorRules(newRecordedLayer(name, j), m.Monitored[name]...)
			} else {
				chain[i] = recordedLayer{name: name}
			}
		case (LimitsLayer{}).Name():
			budgets := newRecordedLayer(name, j).verdicts
			budgets = slices.DeleteFunc(budgets, func(v Verdict) bool { return v.rule != ruleBudget })
			chain[i] = monitorRules(budgetLayer{
				LimitsLayer{Identical: m.Limits.Identical, Calls: m.Limits.Calls},
				budgets,
			}, m.Monitored[name]...)
		case (riskLayer{}).Name():
			chain[i] = monitorRules(riskLayer{
				High: m.HighRisk, Always: m.AlwaysAsk, undoable: j.Undoable && !m.AskReversible,
			}, m.Monitored[name]...)
		case (EgressLayer{}).Name():
			if j.Redacted && (tool.Has(Fetch) || tool.Args.With(RoleURL) != "") {
				chain[i] = recordedLayer{name: name}
			}
		case (pathsLayer{}).Name():
			if j.Redacted && len(tool.Paths) > 0 {
				chain[i] = recordedLayer{name: name}
			}
		}
	}
	return chain
}

// recordedLayer returns recorded verdicts of a layer. Without any it denies by [RuleNotRecorded].
type recordedLayer struct {
	name     string
	verdicts []Verdict
}

// newRecordedLayer reads the verdicts of a layer from a record. The rules that were monitor-only count as violated:
// those of the flow layer ask when they are enforced, those of the limits layer deny.
func newRecordedLayer(name string, j subjects.Judgement) recordedLayer {
	l := recordedLayer{name: name}
	const reason = "as recorded"
	for _, v := range j.Layers {
		if v.Layer != name {
			continue
		}
		switch v.Verdict {
		case "pass":
			l.verdicts = append(l.verdicts, Pass())
		case "ask":
			l.verdicts = append(l.verdicts, Ask(v.Rule, reason))
		default:
			l.verdicts = append(l.verdicts, Deny(v.Rule, reason))
		}
	}
	for _, rule := range j.Monitored {
		layer, rule, _ := strings.Cut(rule, ".")
		switch {
		case layer != name || len(l.verdicts) == 0:
		case name == (LimitsLayer{}).Name():
			l.verdicts = append(l.verdicts, Deny(rule, reason))
		default:
			l.verdicts = append(l.verdicts, Ask(rule, reason))
		}
	}
	return l
}

// Name implements [Layer].
func (l recordedLayer) Name() string { return l.name }

// Judge implements [Layer].
func (l recordedLayer) Judge(context.Context, Call) Verdict {
	if len(l.verdicts) == 0 {
		return Deny(RuleNotRecorded, "the record does not hold what layer "+l.name+" needs")
	}
	return combineVerdicts(l.verdicts...)
}

// budgetLayer is the limits layer with recorded denials by budgets, which no record holds.
type budgetLayer struct {
	LimitsLayer
	budgets []Verdict
}

// Judge implements [Layer].
func (l budgetLayer) Judge(ctx context.Context, c Call) Verdict {
	return combineVerdicts(append(slices.Clone(l.budgets), l.LimitsLayer.Judge(ctx, c))...)
}
