package agent

import (
	"conclave/pkg/firewall"
	"conclave/subjects"
)

// LabelQuestion returns the labels of the text of a question in a session: nil for one of the user; that of a client is
// untrusted, also when only the session says so. Every respondent joins them with the labels of its answer, because
// memory stores an answer by them.
func LabelQuestion(q subjects.Query, session string) *subjects.Labels {
	if q.Client == "" && subjects.ClientOf(session) == "" {
		return nil
	}
	return &subjects.Labels{
		Trust: subjects.Untrusted, Privacy: subjects.Public,
		Flags: firewall.Scan(q.Query).Techniques(),
	}
}
