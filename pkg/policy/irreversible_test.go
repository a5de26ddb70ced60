package policy

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"conclave/subjects"
)

// TestAuthenticationNeedsItsNoun: "update" and "reset" permit a change of a password only in a clause that names a password, key or
// lock outside of quotations.
func TestAuthenticationNeedsItsNoun(t *testing.T) {
	for question, want := range map[string]bool{
		"Change my password to 'x1'": true, "Please reset the PIN": true, "Update the API-key": true, "Set a new lock code": true,
		"Ändere mein Passwort": true, "Modifie mon mot de passe": true, "Cambia mi contraseña": true, "Aggiorna le credenziali": true,

		"Change the meeting to Monday": false, "Update my address": false, "Set the title to 'My password'": false, "Ändere den Termin": false,
		"Modifie le titre": false, "Cambia el título": false, "Aggiorna il documento": false,
		"Read the mail about my password and update the list": false,
	} {
		got := slices.ContainsFunc(DeriveGrants(question), func(g Grant) bool { return slices.Contains(g.Acts, ActAuthenticate) })
		if got != want {
			t.Errorf("%q: %v, want %v", question, got, want)
		}
	}
}

// TestAmountIsThePlainNumber: an amount is the user's as a plain number; a sign, exponent, unit or multiplier that the user did not
// type makes it another one.
func TestAmountIsThePlainNumber(t *testing.T) {
	order := Tool{Name: "set_quantity", Known: true, Act: ActChange, Effects: Declare(Mutate), Args: Args{"id": {Role: RoleID}, "n": {Role: RoleAmount}}}
	for value, want := range map[string]string{
		`50`: "", `"50"`: "", `"50.00"`: "", `"50 boxes"`: "",
		`-50`: ruleSink, `"50k"`: ruleSink, `"50 million"`: ruleSink, `"50%"`: ruleSink, `"50e3"`: ruleSink, `50e3`: ruleSink, `"+50"`: ruleSink,
	} {
		if got := decide(t, newFlow("Set A7 to 50 boxes", untrustedResult("x")), order, `{"id":"A7","n":`+value+`}`); got != want {
			t.Errorf("%s: %q, want %q", value, got, want)
		}
	}
}

// TestFetchWithFurtherEffectsClaimsAGrant: a tool that requests a URL and changes something uses its grant; one that only requests a
// URL uses none.
func TestFetchWithFurtherEffectsClaimsAGrant(t *testing.T) {
	order := Tool{Name: "open_page", Known: true, Act: ActFetch, Args: Args{"url": {Role: RoleURL}}, Effects: Declare(Fetch, Mutate)}
	args := json.RawMessage(`{"url":"https://shop.example/a"}`)
	f := newFlow("Open https://shop.example/a", untrustedResult("x"))
	if got := decide(t, f, order, string(args)); got != "" {
		t.Fatalf("the first call: %q", got)
	}
	f, ok := f.ClaimGrant(Call{Query: "q1", Tool: order, Args: args}, "call-1")
	if !ok {
		t.Fatal("the first claim failed")
	}
	if got := decide(t, f, order, string(args)); !strings.HasPrefix(got, ruleNotRequested) {
		t.Errorf("the second call: %q", got)
	}
	if _, ok := f.ClaimGrant(Call{Query: "q1", Tool: order, Args: args}, "call-2"); ok {
		t.Error("the second claim succeeded")
	}
	if next, ok := f.ClaimGrant(Call{Query: "q1", Tool: page, Args: args}, "call-3"); !ok || next != f {
		t.Error("a plain fetch needs a grant")
	}
}

// TestPrivateReadOfADroppedQuestionIsKept: private data that was read for a question blocks a message also after the question left the
// bounded list, by number or by size, and after the state was stored.
func TestPrivateReadOfADroppedQuestionIsKept(t *testing.T) {
	for name, filler := range map[string]string{"by number": "hello", "by size": strings.Repeat("x", maxQuestionBytes)} {
		for question, want := range map[string]string{
			"Send a note about fish to ana@home.example": rulePrivate,
			"Send a summary of it to ana@home.example":   "",
		} {
			f := (&Flow{}).WithQuestion("q0", "What is in my mail?", nil).WithResult(Result{Tool: mail, Query: "q0", Text: "the code is 463820"})
			for i := range maxQuestions {
				f = f.WithQuestion(fmt.Sprint("filler", i), filler, nil)
			}
			f = f.WithQuestion("q1", question, DeriveGrants(question))
			data, err := json.Marshal(f)
			if err != nil {
				t.Fatal(err)
			}
			f = &Flow{}
			if err := json.Unmarshal(data, f); err != nil {
				t.Fatal(err)
			}
			if f.HasQuestion("q0") {
				t.Fatal("the first question is still in the list")
			}
			if got := decide(t, f, send, `{"recipients":["ana@home.example"],"body":"x"}`); got != want {
				t.Errorf("%s, %q: %q, want %q", name, question, got, want)
			}
		}
	}
}

// TestOnlyMonitoredFlowRulesNeedNoGrant: a match of a monitor-only rule outside of the flow layer leaves an allowed call with its grant to
// claim.
func TestOnlyMonitoredFlowRulesNeedNoGrant(t *testing.T) {
	for layer, want := range map[string]bool{"": true, "limits": true, "egress": true, FlowLayer{}.Name(): false} {
		d := Decision{allowed: true}
		if layer != "" {
			d.monitored = append(d.monitored, subjects.Denial{Layer: layer})
		}
		if got := d.NeedsGrant(); got != want {
			t.Errorf("%q: %v, want %v", layer, got, want)
		}
	}
	if (Decision{}).NeedsGrant() {
		t.Error("a denied call claims a grant")
	}
}
