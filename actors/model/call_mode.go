package model

import (
	"strconv"
	"strings"

	"conclave/pkg/model"
	"conclave/subjects"
)

// CallAuto is the value of [Options.Calls] that leaves the choice to [target.callMode].
const CallAuto = "auto"

// callModes are the values of [Options.Calls].
var callModes = []string{CallAuto, subjects.CallNative, subjects.CallConstrained}

// smallModel is the number of parameters below which a model calls tools under a JSON schema. Measured: a model of 1.5
// billion chooses right about four times in five under a schema and almost never with native calls; models of 7 billion
// and more call natively.
const smallModel = 4e9

// callMode is how the model calls tools: as its options say, or else under a JSON schema when it is small or has failed
// the self-test of native calls. "" = it cannot chat, or does not support tool calls: then they are written as text.
func (t target) callMode() string {
	switch {
	case t.info.Embedding:
		return ""
	case t.isDemo:
		return subjects.CallNative
	case t.opts.Calls != "" && t.opts.Calls != CallAuto:
		return t.opts.Calls
	case isSmall(t.info), t.callTest != nil && !t.callTest.hasPassed():
		return subjects.CallConstrained
	case t.info.Tools:
		return subjects.CallNative
	}
	return ""
}

// isSmall reports whether the server says that the model has fewer parameters than [smallModel]. An unknown size is not
// small.
func isSmall(i model.Info) bool {
	n := countParameters(i.Parameters)
	return n > 0 && n < smallModel
}

// countParameters reads a number of parameters such as "1.8B" or "270M"; 0 = it cannot be read.
func countParameters(s string) float64 {
	s = strings.ToUpper(strings.TrimSpace(s))
	unit := 1.0
	for suffix, factor := range map[string]float64{"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12} {
		if rest, ok := strings.CutSuffix(s, suffix); ok {
			s, unit = rest, factor
			break
		}
	}
	n, err := strconv.ParseFloat(s, 64)
	if err != nil || !(n > 0) {
		return 0
	}
	return n * unit
}
