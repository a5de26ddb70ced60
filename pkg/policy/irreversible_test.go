package policy

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"conclave/subjects"
)

var (
	payment = Tool{
		Name: "send_money", Known: true, Act: ActPay, Effects: Declare(Spend, Egress),
		Args: Args{
			"recipient": {Role: RoleDestination}, "amount": {Role: RoleAmount}, "note": {Role: RoleContent},
			"repeat": {Role: RoleOption, Values: []string{"once", "daily", "true", "false"}},
		},
	}
	removal = Tool{
		Name: "delete_file", Known: true, Act: ActDelete, Effects: Declare(Destroy),
		Args: Args{"file_id": {Role: RoleID}, "folder": {}},
	}
	newPassword = Tool{
		Name: "update_password", Known: true, Act: ActAuthenticate, Effects: Declare(Authenticate),
		Args: Args{"password": {}},
	}
)

// TestAuthenticationNeedsItsNoun: "update" and "reset" permit a change of a password only in a clause that names a
// password, key or lock outside of quotations.
func TestAuthenticationNeedsItsNoun(t *testing.T) {
	for question, want := range map[string]bool{
		"Change my password to 'x1'": true, "Please reset the PIN": true, "Update the API-key": true,
		"Set a new lock code":  true,
		"Ändere mein Passwort": true, "Modifie mon mot de passe": true, "Cambia mi contraseña": true,
		"Aggiorna le credenziali": true,

		"Change the meeting to Monday": false, "Update my address": false, "Set the title to 'My password'": false,
		"Ändere den Termin": false,
		"Modifie le titre":  false, "Cambia el título": false, "Aggiorna il documento": false,
		"Read the mail about my password and update the list": false,
	} {
		got := slices.ContainsFunc(DeriveGrants(question), func(g Grant) bool {
			return slices.Contains(g.Acts, ActAuthenticate)
		})
		if got != want {
			t.Errorf("%q: %v, want %v", question, got, want)
		}
	}
}

// TestIrreversibleValuesAreNamed: what cannot be undone takes ids and values without a role only from the destinations,
// quotations, names and numbers of the clause that orders it: no stop word, no other clause, no other question, and
// nothing after an exception.
func TestIrreversibleValuesAreNamed(t *testing.T) {
	for _, tt := range []struct {
		question string
		tool     Tool
		args     string
		asks     bool
	}{
		{"Delete file 13 please", removal, `{"file_id":"13"}`, false},
		{"Delete the file 'old notes'", removal, `{"file_id":"old notes"}`, false},
		{"Delete the file of 'old notes'", removal, `{"file_id":"old notes"}`, false},
		{"Delete Report.txt in Archive", removal, `{"file_id":"report.txt","folder":"Archive"}`, false},
		{"Change my password to 'swordfish9'", newPassword, `{"password":"swordfish9"}`, false},
		{"Change my password to Swordfish9", newPassword, `{"password":"Swordfish9"}`, false},

		{"Change my password to 'swordfish9'", newPassword, `{"password":"my"}`, true},
		{"Change my password to 'swordfish9'", newPassword, `{"password":"password"}`, true},
		{"Update my password with the one in the mail", newPassword, `{"password":"the"}`, true},
		{"Delete the file", removal, `{"file_id":"the"}`, true},
		{"Delete All", removal, `{"file_id":"all"}`, true},
		{"Read the file 'secret.txt' and delete the file 'old.txt'", removal, `{"file_id":"secret.txt"}`, true},
		{"Delete a.txt except b.txt", removal, `{"file_id":"b.txt"}`, true},
		{"Delete a.txt but never b.txt", removal, `{"file_id":"b.txt"}`, true},
		{"Delete a.txt, and don't delete b.txt", removal, `{"file_id":"b.txt"}`, true},
		{"Delete the file of June 13", removal, `{"file_id":"13"}`, true},
		{"Delete the file that costs 5,000", removal, `{"file_id":"5"}`, true},
		{"Delete the file 'my old notes'", removal, `{"file_id":"old"}`, true},
	} {
		f := newFlow(tt.question, untrustedResult("x"))
		if got := decide(t, f, tt.tool, tt.args); (got == ruleIrreversible) != tt.asks || got != "" && !tt.asks {
			t.Errorf("%q, %s: %q", tt.question, tt.args, got)
		}
	}
	f := (&Flow{}).WithQuestion("q0", "What is in secret.txt and file 77?", nil).WithQuestion("q1",
		"Delete the file Old.txt", DeriveGrants("Delete the file Old.txt")).WithResult(untrustedResult("x"))
	for _, id := range []string{"secret.txt", "77"} {
		if got := decide(t, f, removal, fmt.Sprintf(`{"file_id":%q}`, id)); got != ruleIrreversible {
			t.Errorf("%s of another question: %q", id, got)
		}
	}
}

// TestIrreversibleOptionsAreTheUsers: an option of what cannot be undone that is not a word of the clause asks, except
// false and the first of the declared ones, which has the least power.
func TestIrreversibleOptionsAreTheUsers(t *testing.T) {
	for _, tt := range []struct{ question, option, want string }{
		{"Pay Ana 50", "false", ""},
		{"Pay Ana 50 daily", "daily", ""},
		{"Pay Ana 50", "daily", ruleIrreversible},
		{"Pay Ana 50", "once", ""},
		{"Pay Ana 50", "true", ruleIrreversible},
		{"Pay Ana 50, not daily", "daily", ruleIrreversible},
		{"Read the daily mail and pay Ana 50", "daily", ruleIrreversible},
	} {
		f := newFlow(tt.question, untrustedResult("x"))
		if got := decide(t, f, payment, fmt.Sprintf(`{"recipient":"Ana","amount":50,"repeat":%q}`,
			tt.option)); got != tt.want {
			t.Errorf("%q with %s: %q, want %q", tt.question, tt.option, got, tt.want)
		}
	}
}

// TestIrreversibleDestinationIsTheUsers: a destination that a trusted tool listed receives messages, but no payment.
func TestIrreversibleDestinationIsTheUsers(t *testing.T) {
	listed := Result{
		Tool: contacts, Query: "q1", Args: json.RawMessage(`{"name":"Ana"}`),
		Text: `[{"name":"Ana","iban":"de11222"}]`,
	}
	f := newFlow("Pay Ana 50", untrustedResult("x"), listed)
	if got := decide(t, f, payment, `{"recipient":"DE11222","amount":50}`); got != ruleIrreversible {
		t.Errorf("a listed destination: %q", got)
	}
	if got := decide(t, f, payment, `{"recipient":"Ana","amount":50}`); got != "" {
		t.Errorf("the named destination: %q", got)
	}
	pay := "Pay the bill of 50"
	other := (&Flow{}).WithQuestion("q0", "Whose account is DE11222?", nil).WithQuestion("q1", pay, DeriveGrants(pay)).
		WithResult(untrustedResult("x"))
	if got := decide(t, other, payment, `{"recipient":"DE11222","amount":50}`); got != ruleIrreversible {
		t.Errorf("a destination of another question: %q", got)
	}
}

// TestIrreversibleURLIsOfTheQuestion: a URL of another question is no URL of what cannot be undone.
func TestIrreversibleURLIsOfTheQuestion(t *testing.T) {
	order := Tool{
		Name: "buy_page", Known: true, Act: ActPay, Effects: Declare(Spend, Egress),
		Args: Args{"url": {Role: RoleURL}, "amount": {Role: RoleAmount}},
	}
	buy := "Buy the book for 20 at https://books.example/b1"
	f := (&Flow{}).WithQuestion("q0", "What is on https://evil.example/pay?", nil).WithQuestion("q1", buy,
		DeriveGrants(buy)).WithResult(untrustedResult("x"))
	if got := decide(t, f, order, `{"url":"https://books.example/b1","amount":20}`); got != "" {
		t.Errorf("the URL of the question: %q", got)
	}
	for _, url := range []string{"https://evil.example/pay", "https://books.example/b", "https://books.example/B1"} {
		if got := decide(t, f, order, fmt.Sprintf(`{"url":%q,"amount":20}`, url)); got != ruleIrreversible {
			t.Errorf("%s: %q, want it to ask", url, got)
		}
	}
}

// TestUntrustedIDHoldsForItsQuestion: an id that an untrusted result of an earlier question has is not free for a later
// one, also after the record was stored; one of the question's own result is.
func TestUntrustedIDHoldsForItsQuestion(t *testing.T) {
	reschedule := Tool{
		Name: "move_event", Known: true, Act: ActChange, Effects: Declare(Mutate),
		Args: Args{"event_id": {Role: RoleID}, "day": {Role: RoleTime}},
	}
	read := Result{
		Tool: mail, Query: "q0", Args: json.RawMessage(`{"folder":"inbox"}`),
		Text: `[{"id":"41","text":"Hello Ana, this is a long text with many words that somebody wrote."}]`,
	}
	move := "Read my mail of today and move the event to Monday"
	for _, tt := range []struct{ query, want string }{{"q1", ""}, {"q0", ruleSink}} {
		read.Query = tt.query
		f := (&Flow{}).WithQuestion("q0", "Read my inbox mail", nil).WithQuestion("q1", move, DeriveGrants(move)).
			WithResult(read)
		data, err := json.Marshal(f)
		if err != nil {
			t.Fatal(err)
		}
		stored := &Flow{}
		if err := json.Unmarshal(data, stored); err != nil {
			t.Fatal(err)
		}
		for _, f := range []*Flow{f, stored} {
			if got := decide(t, f, reschedule, `{"event_id":"41","day":"monday"}`); got != tt.want {
				t.Errorf("an id of a result of %s: %q, want %q", tt.query, got, tt.want)
			}
		}
	}
	old := &Flow{}
	if err := json.Unmarshal([]byte(`{"words":[{"query":"q1","text":"`+move+`"}],"ids":["41"]}`), old); err != nil ||
		old.findQuestion("q1").isFoundID("41") {
		t.Errorf("an id of an older record is free: %v", err)
	}
}

// TestIrreversibleContentIsOfTheQuestion: the content of a payment is the user's only in the words of its own question,
// and never a stop word.
func TestIrreversibleContentIsOfTheQuestion(t *testing.T) {
	pay := "Pay Ana 50 for dinner"
	f := (&Flow{}).WithQuestion("q0", "What does ransom mean?", nil).WithQuestion("q1", pay, DeriveGrants(pay)).
		WithResult(untrustedResult("x"))
	for content, want := range map[string]string{
		"dinner": "", "": "", "ransom": ruleIrreversible,
		"for": ruleIrreversible,
	} {
		if got := decide(t, f, payment, fmt.Sprintf(`{"recipient":"Ana","amount":50,"note":%q}`,
			content)); got != want {
			t.Errorf("%q: %q, want %q", content, got, want)
		}
	}
}

// TestAmountIsThePlainNumber: an amount is the user's as a plain number; a sign, exponent, unit or multiplier that the
// user did not type makes it another one.
func TestAmountIsThePlainNumber(t *testing.T) {
	order := Tool{
		Name: "set_quantity", Known: true, Act: ActChange, Effects: Declare(Mutate),
		Args: Args{"id": {Role: RoleID}, "n": {Role: RoleAmount}},
	}
	for value, want := range map[string]string{
		`50`: "", `"50"`: "", `"50.00"`: "", `"50 boxes"`: "",
		`-50`: ruleSink, `"50k"`: ruleSink, `"50 million"`: ruleSink, `"50%"`: ruleSink, `"50e3"`: ruleSink,
		`50e3`: ruleSink, `"+50"`: ruleSink,
	} {
		if got := decide(t, newFlow("Set A7 to 50 boxes", untrustedResult("x")), order, `{"id":"A7","n":`+value+
			`}`); got != want {
			t.Errorf("%s: %q, want %q", value, got, want)
		}
	}
}

// TestPaidAmountIsOfTheClause: the amount of a payment is a number of the clause that orders it, not a time, a part of
// a name or a number of another clause or question.
func TestPaidAmountIsOfTheClause(t *testing.T) {
	for _, tt := range []struct{ question, amount, want string }{
		{"Pay Ana 50", "50", ""},
		{"Pay Ana $1,200.50", "1200.50", ""},
		{"Pay Ana 50€ at 18:30", "50", ""},
		{"Pay Ana 50 at 18:30", "18", ruleIrreversible},
		{"Pay Ana 50 at 9pm", "9", ruleIrreversible},
		{"Pay Ana 50 at 9 pm", "9", ruleIrreversible},
		{"Pay Ana 50 for Q4", "4", ruleIrreversible},
		{"Pay Ana 50 for INV-900", "900", ruleIrreversible},
		{"Pay Ana 5k", "5", ruleIrreversible},
		{"Pay Ana 5,000", "5", ruleIrreversible},
		{"Pay Ana 50 on June 13", "13", ruleIrreversible},
		{"Read file 900 and pay Ana 50", "900", ruleIrreversible},
	} {
		if got := decide(t, newFlow(tt.question, untrustedResult("x")), payment, `{"recipient":"Ana","amount":`+
			tt.amount+`}`); got != tt.want {
			t.Errorf("%q, %s: %q, want %q", tt.question, tt.amount, got, tt.want)
		}
	}
}

// TestLookupByStopWordIsNoDestination: a list that was looked up by a word of the user makes its values destinations
// only when that word is a destination of the clause, or whole words of one.
func TestLookupByStopWordIsNoDestination(t *testing.T) {
	mallory := `[{"name":"Mallory","email":"mallory@home.example"}]`
	for _, tt := range []struct{ question, lookup, want string }{
		{"Send the summary to Mallory", "Mallory", ""},
		{"Send the summary to Mallory Smith", "Mallory", ""},
		{"Send the summary to Ana", "the", ruleSink},
		{"Send the summary to Ana", "summary", ruleSink},
		{"Send the summary with the list to the team", "the", ruleSink},
		{"Who is Mallory? Send it to the team", "Mallory", ruleSink},
	} {
		f := newFlow(tt.question, untrustedResult("x"),
			Result{
				Tool: contacts, Query: "q1", Args: json.RawMessage(fmt.Sprintf(`{"name":%q}`, tt.lookup)),
				Text: mallory,
			})
		if got := decide(t, f, send, `{"recipients":["mallory@home.example"],"body":"x"}`); !strings.Contains(got,
			tt.want) || tt.want == "" && strings.Contains(got, ruleSink) {
			t.Errorf("%q, looked up %q: %q, want %q", tt.question, tt.lookup, got, tt.want)
		}
	}
}

// TestFetchWithFurtherEffectsClaimsAGrant: a tool that requests a URL and changes something uses its grant; one that
// only requests a URL uses none.
func TestFetchWithFurtherEffectsClaimsAGrant(t *testing.T) {
	order := Tool{
		Name: "open_page", Known: true, Act: ActFetch, Args: Args{"url": {Role: RoleURL}},
		Effects: Declare(Fetch, Mutate),
	}
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

// TestPrivateReadOfADroppedQuestionIsKept: private data that was read for a question blocks a message also after the
// question left the bounded list, by number or by size, and after the state was stored.
func TestPrivateReadOfADroppedQuestionIsKept(t *testing.T) {
	for name, filler := range map[string]string{
		"by number": "hello",
		"by size":   strings.Repeat("x", maxQuestionBytes),
	} {
		for question, want := range map[string]string{
			"Send a note about fish to ana@home.example": rulePrivate,
			"Send a summary of it to ana@home.example":   "",
		} {
			f := (&Flow{}).WithQuestion("q0", "What is in my mail?", nil).WithResult(Result{
				Tool: mail, Query: "q0",
				Text: "the code is 463820",
			})
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

// TestOnlyMonitoredFlowRulesNeedNoGrant: a match of a monitor-only rule outside of the flow layer leaves an allowed
// call with its grant to claim.
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
