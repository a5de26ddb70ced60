package broker

import (
	"testing"

	"conclave/pkg/policy"
	"conclave/subjects"
)

// A preview that sends its arguments to another machine runs before the decision only in a session without untrusted
// and private content.
func TestPreviewSendsNothingPrivate(t *testing.T) {
	t.Parallel()
	install := policy.Tool{
		Name: "package_install", Known: true, Preview: true,
		Effects: policy.Declare(policy.Exec, policy.Egress),
	}
	write := policy.Tool{Name: "fs_write", Known: true, Preview: true, Effects: policy.Declare(policy.Mutate)}
	write.Zone = "tools"
	elsewhere := write
	elsewhere.Zone = "tools_laptop"
	fetch := policy.Tool{Name: "web_fetch", Known: true, Preview: true, Effects: policy.Declare(policy.Fetch)}
	b := &Broker{table: newTable([]Known{{Tool: write}}, nil)}
	public := subjects.Labels{Trust: subjects.Trusted, Privacy: subjects.Public}
	for _, tt := range []struct {
		name   string
		tool   policy.Tool
		labels *subjects.Labels
		want   bool
	}{
		{"nothing untrusted or private", install, &public, true},
		{"untrusted content", install, &subjects.Labels{Trust: subjects.Untrusted, Privacy: subjects.Public}, false},
		{"private content", install, &subjects.Labels{Trust: subjects.Trusted, Privacy: subjects.Private}, false},
		{"labels that nobody set", install, &subjects.Labels{}, false},
		{"an unknown session", install, nil, false},
		{"a tool that sends nothing", write, nil, true},
		{"a tool that reads a page, and nothing private", fetch, &public, true},
		{"trick: a tool that reads a page at an address of the session", fetch, nil, false},
		{"trick: the tool of another machine", elsewhere, nil, false},
		{"trick: an unknown tool", policy.Tool{Name: "package_install", Preview: true}, nil, false},
	} {
		if got := b.mayPreview(tt.tool, tt.labels); got != tt.want {
			t.Errorf("%s: %t", tt.name, got)
		}
	}
}
