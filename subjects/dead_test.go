package subjects

import "testing"

func TestIsFinalFailure(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, account, subject string
		want                   bool
	}{
		{"the router rejects the question", "router", "query.received", true},
		{"the generator rejects its turn", "generator", "turn.3.s1", true},
		{"the generator exhausted its attempts", "router", "core.EVENT.MAX_DELIVERIES.TURNS.generator-3", true},
		{"the router exhausted its attempts", "router", "core.EVENT.MAX_DELIVERIES.QUERIES.router", true},

		{"respondent B exhausted its attempts", "router", "core.EVENT.MAX_DELIVERIES.TURNS.respondent_b-3", false},
		{"a name with the same prefix", "router", "core.EVENT.MAX_DELIVERIES.TURNS.generator_b-3", false},
		{"the critic exhausted its attempts", "router", "core.EVENT.MAX_DELIVERIES.EVENTS.critic", false},
		{"the generator's name on another stream", "router", "core.EVENT.MAX_DELIVERIES.EVENTS.generator-3", false},
		{"another kind of question", "router", "core.EVENT.MAX_DELIVERIES.QUERIES.committee", false},
		{"no advisory", "router", "core.EVENT.MAX_DELIVERIES.TURNS", false},
		{"too many tokens", "router", "core.EVENT.MAX_DELIVERIES.TURNS.generator-3.x", false},
		{"respondent B rejects its turn", "respondent_b", "turn.3.s1", false},
		{"the critic rejects an answer", "critic", "from.generator.response.generation", false},
		{"trick: an agent about a question", "committee", "query.received", false},
		{"trick: the committee about a turn of the assistant", "committee", "turn.3.s1", false},
		{"trick: the generator about a turn of the committee", "generator", "turn.committee.s1", false},
		{"the committee rejects its turn", "committee", "turn.committee.s1", true},
		{"the orchestrator exhausted its attempts", "router", "core.EVENT.MAX_DELIVERIES.TURNS.orchestrator", true},
		{"trick: the gateway about a question", "gateway", "query.received", false},
		{"a malformed cancellation", "generator", "query.cancel.q1", false},
		{"trick: the generator about an advisory", "generator", "core.EVENT.MAX_DELIVERIES.TURNS.generator-3", false},
		{"an empty letter", "router", "", false},
		{"no account", "", "query.received", false},
	} {
		if got := IsFinalFailure(tt.account, DeadLetter{Subject: tt.subject}); got != tt.want {
			t.Errorf("%s: %s about %s: %t", tt.name, tt.account, tt.subject, got)
		}
	}
}

func TestStoredSubjectsAndConversationKeys(t *testing.T) {
	t.Parallel()
	if got := ResponseGeneration.StoredBy(Generator); got != "from.generator.response.generation" {
		t.Error(got)
	}
	if got := DeadLetterEvent.StoredBy(Router); got != "from.router.dead.*" {
		t.Error(got)
	}
	if got := DeadLetterEvent.LiveSubject(); got != "dead.*" {
		t.Error(got)
	}
	for key, want := range map[string]string{
		ConversationKey("s1"): "s1", "conv.": "", "conv": "", "turn.s1": "", "conv.a.b": "", "conv.a b": "",
		"convs.a": "", "": "",
	} {
		if got, ok := SessionOf(key); got != want || ok != (want != "") {
			t.Errorf("%s: %q, %t", key, got, ok)
		}
	}
}
