package policy_test

import (
	"testing"

	"conclave/pkg/policy"
	"conclave/subjects"
)

func TestLineageLayer(t *testing.T) {
	for _, tt := range []struct {
		name   string
		caller subjects.Caller
		denied bool
	}{
		{"an account itself", subjects.Caller{Account: "generator"}, false},
		{"a path that is there and empty", subjects.Caller{Account: "generator", Path: []string{}}, false},
		{"a child nobody spawned", subjects.Caller{Account: "generator", Path: []string{"researcher-1"}}, true},
		{"trick: a child with the name of its account", subjects.Caller{Account: "generator", Path: []string{"generator"}}, true},
		{"trick: a child without a name", subjects.Caller{Account: "generator", Path: []string{""}}, true},
	} {
		c := goodCall()
		c.Caller = tt.caller
		d := policy.Chain{policy.LineageLayer{}}.Decide(t.Context(), c)
		if d.Allowed() == tt.denied {
			t.Errorf("%s: allowed %v, %+v", tt.name, d.Allowed(), d.Denial())
		}
	}
}
