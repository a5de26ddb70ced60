package subjects

import (
	"reflect"
	"slices"
	"strings"
)

// payload is the type of the messages of a subject that the user can watch.
type payload struct {
	subject string
	body    reflect.Type
}

func payloadOf[T any](t Topic[T]) payload { return payload{t.LiveSubject(), reflect.TypeFor[T]()} }

// watchedPayloads lists the payloads of the events and live tokens that the user's accounts can watch. Subjects of one
// type stand together.
func watchedPayloads() []payload {
	return []payload{
		payloadOf(QueryReceived), payloadOf(QueryCommittee), payloadOf(QueryTask), payloadOf(QueryCancel),
		payloadOf(QueryGrantsEvent), payloadOf(ResponseDelta), payloadOf(ResponseThinking),
		payloadOf(ResponseGeneration), payloadOf(AnswerDialog), payloadOf(AgentStateEvent),
		payloadOf(ToolRequestEvent), payloadOf(ToolOutputEvent), payloadOf(ToolResultEvent),
		payloadOf(ApprovalRequestEvent), payloadOf(ApprovalDecisionEvent), payloadOf(CritiqueResult),
		payloadOf(PairwiseResult), payloadOf(UserFeedback), payloadOf(RewardEvent), payloadOf(MemoryStored),
		payloadOf(MemoryAnnotated), payloadOf(MemoryRecalled), payloadOf(DeliberationEvent),
		payloadOf(TaskProgressEvent), payloadOf(AgentReturnEvent), payloadOf(DeadLetterEvent),
		payloadOf(AuditLogHeadEvent), payloadOf(AuditCapacityEvent),
	}
}

// fields returns the names of the fields of the payload as JSON has them.
func (p payload) fields() (names []string) {
	for _, f := range reflect.VisibleFields(p.body) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name != "" && name != "-" {
			names = append(names, "`"+name+"`")
		}
	}
	return names
}

// writePayloads writes the fields of the payloads for docs/bus.md, those of one type together.
func writePayloads(b *strings.Builder) {
	b.WriteString("\n## Payloads\n\nThe fields of the events, live tokens and live output that you can watch. A " +
		"field without a value\nmay be left out. The comments of the types in `subjects/` say what each means.\n\n")
	all := watchedPayloads()
	for len(all) > 0 {
		n := slices.IndexFunc(all, func(p payload) bool { return p.body != all[0].body })
		if n < 0 {
			n = len(all)
		}
		var names []string
		for _, p := range all[:n] {
			names = append(names, "`"+p.subject+"`")
		}
		b.WriteString(wrapItem(strings.Join(names, ", ") + ": " + strings.Join(all[0].fields(), ", ")))
		all = all[n:]
	}
}

// maxDocWidth is the most columns of a line of prose in docs/bus.md.
const maxDocWidth = 100

// wrapItem returns a text as an item of a list, on lines of at most [maxDocWidth] columns.
func wrapItem(text string) string {
	lines := []string{"-"}
	for word := range strings.FieldsSeq(text) {
		last := &lines[len(lines)-1]
		if len(*last)+1+len(word) > maxDocWidth {
			lines = append(lines, "  "+word)
			continue
		}
		*last += " " + word
	}
	return strings.Join(lines, "\n") + "\n"
}
