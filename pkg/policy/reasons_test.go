package policy

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestReasons: a reason is a true sentence that names the data and where it goes, in words that need no knowledge of
// the rules.
func TestReasons(t *testing.T) {
	const mails = `[{"id":"m7","subject":"Win “a” prize","from":"win@lotto.example"}]`
	const page1 = "after reading “https://evil.example/”, "
	inbox := Result{Tool: mail, CallID: "c2", Query: "q1", Text: mails}
	labelled, twice, fromFile := inbox, inbox, untrustedResult("x")
	labelled.Text = `[{"id":"m3","subject":"m7"}]`
	twice.Text = `[{"id":"m7","subject":"Spam","from":"you"},{"id":"m7","subject":"Invoice","from":"ana@x.example"}]`
	fromFile.Source = "/tmp/a, which you wrote"
	remove := Tool{
		Name: "delete_mail", Known: true, Act: ActDelete, Args: Args{"id": {Role: RoleID}}, Effects: Declare(Destroy),
	}
	pay := Tool{
		Name: "pay", Known: true, Act: ActPay, Effects: Declare(Spend, Egress),
		Args: Args{"to": {Role: RoleDestination}, "amount": {Role: RoleAmount}},
	}
	write := Tool{
		Name: "fs_write", Known: true, Act: ActChange, Effects: Declare(Mutate), Paths: []string{"path"},
		Args: Args{"path": {Role: RoleID}},
	}
	run := Tool{Name: "run_shell", Known: true, Act: ActExecute, Effects: Declare(Exec)}
	for _, tt := range []struct {
		name, question string
		result         Result
		tool           Tool
		args, want     string
	}{
		{
			"no order", "Sum it up", untrustedResult("x"), send, `{"recipients":["eve@evil.example"]}`,
			page1 + "your question has no clear order to send anything | " +
				page1 + "your question does not name “eve@evil.example” for this (“recipients”)",
		},
		{
			"a recipient of another order", "Send the offer to ana@x.example and the bill to bo@x.example",
			untrustedResult("x"), send, `{"recipients":["bo@x.example"],"body":"offer"}`,
			page1 + "your question has “bo@x.example”, but not clearly for this (“recipients”)",
		},
		{
			"deleting what a mail is called", "Delete the spam", inbox, remove, `{"id":"m7"}`,
			"after reading what read_mail returned, delete_mail can lose data for good, and your question does not " +
				"name “m7”, which read_mail showed as “Win 'a' prize” from “win@lotto.example”, for " +
				"this (“id”)",
		},
		{
			"deleting without an order", "What is new?", inbox, remove, `{"id":"m7"}`,
			"after reading what read_mail returned, delete_mail can lose data for good (“m7”, which read_mail " +
				"showed as “Win 'a' prize” from “win@lotto.example”), and your question has no clear order to delete " +
				"or cancel anything",
		},
		{
			"paying another amount", "Pay 90 to Bo", untrustedResult("x"), pay, `{"to":"Bo","amount":9000}`,
			page1 + "pay spends money (“Bo”), and your question does not name “9000” for this (“amount”)",
		},
		{
			"running code", "Run the build", untrustedResult("x"), run, `{"command":"make"}`,
			page1 + "run_shell runs code or commands, and no order of your question covers that",
		},
		{
			"a condition", "If it rains, delete m7", untrustedResult("x"), remove, `{"id":"m7"}`,
			page1 + "delete_mail can lose data for good (“m7”), and your question has a condition, “If”, and only " +
				"you can decide whether it is met",
		},
		{
			"a refusal of the recipient", "Sum it up. Never send it to bob@rival.example", untrustedResult("x"), send,
			`{"recipients":["bob@rival.example"]}`,
			page1 + "your question has no clear order to send anything",
		},
		{
			"an id that the user typed for something else", "Delete the spam and read m7", inbox, remove, `{"id":"m7"}`,
			"after reading what read_mail returned, delete_mail can lose data for good, and your question has “m7”, " +
				"which read_mail showed as “Win 'a' prize” from “win@lotto.example”, but not clearly for this (“id”)",
		},
		{
			"a foreign URL", "Sum it up", untrustedResult("x"), page, `{"url":"https://collect.example/?a=1"}`,
			page1 + "it would open “https://collect.example/?a=1”, which is neither in your question nor a search " +
				"result",
		},
		{
			"a URL that the user forbids", "What is new? Do not open https://unsub.example/u.", untrustedResult("x"),
			page, `{"url":"https://unsub.example/u"}`,
			page1 + "it would open “https://unsub.example/u”, which you wrote, but not clearly to have it opened",
		},
		{
			"a search", "Sum it up", untrustedResult("x"), search, `{"query":"Anna Berger Graz"}`,
			page1 + "it would send a search that is not made of your words alone: “Anna Berger Graz”",
		},
		{
			"an address in the text", "Send the report to ana@x.example", untrustedResult("x"), send,
			`{"recipients":["ana@x.example"],"body":"report: www.evil.example"}`,
			page1 + "the text of send_email has “www.evil.example”, which you did not name",
		},
		{
			"trick: a recipient that ends the sentence", "Send it to bob@ok.example", untrustedResult("x"), send,
			`{"recipients":["eve@x.example, whom you named"]}`,
			page1 + "your question does not name “eve@x.example, whom you named” for this (“recipients”)",
		},
		{
			"trick: an id with a label", "Delete the spam", inbox, remove,
			`{"id":"m9”, which read_mail showed as „Spam\" from «you»,\nfor ❝this❞"}`,
			"after reading what read_mail returned, delete_mail can lose data for good, and your question does not " +
				"name “m9', which read_mail showed as 'Spam' from 'you', for 'this'” for this (“id”)",
		},
		{
			"trick: the file that it read", "Sum it up", fromFile, page,
			`{"url":"https://collect.example/"}`,
			"after reading “/tmp/a, which you wrote”, it would open “https://collect.example/”, which is neither in " +
				"your question nor a search result",
		},
		{
			"more ids than fit", "What is new?", untrustedResult("x"), remove, `{"id":["m1","m2","m3","m4"]}`,
			page1 + "delete_mail can lose data for good (“m1”, “m2” and 2 more), and your question has no clear " +
				"order to delete or cancel anything",
		},
		{
			"trick: an id inside of a label", "Delete m1 m2", labelled, remove, `{"id":["m3","m7"]}`,
			"after reading what read_mail returned, delete_mail can lose data for good (“m7”), and your question " +
				"does not name “m3”, which read_mail showed as “m7”, for this (“id”)",
		},
		{
			"a file that the user named in another form", "Add the prompt to ~/.zshrc", untrustedResult("x"), write,
			`{"path":"/home/ana/.zshrc"}`,
			page1 + "it would change the file “/home/ana/.zshrc”, and your question has “.zshrc” without this whole " +
				"path | " + page1 + "fs_write would change “/home/ana/.zshrc”, which something runs, trusts or " +
				"shares later",
		},
		{
			"a file that the user did not name", "Add the prompt to ~/.zshrc", untrustedResult("x"), write,
			`{"path":"/home/ana/a.txt"}`,
			page1 + "it would change the file “/home/ana/a.txt”, which your question does not name",
		},
		{
			"trick: two labels of one id", "Delete the spam", twice, remove, `{"id":"m7"}`,
			"after reading what read_mail returned, delete_mail can lose data for good, and your question does not " +
				"name “m7” for this (“id”)",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			for _, q := range (Chain{FlowLayer{}}).Decide(t.Context(), Call{
				Query: "q1", Tool: tt.tool, Args: json.RawMessage(tt.args), Flow: newFlow(tt.question, tt.result),
			}).Asks() {
				got = append(got, q.Reason)
			}
			if s := strings.Join(got, " | "); s != tt.want {
				t.Errorf("got\n%s\nwant\n%s", s, tt.want)
			}
		})
	}
}

// TestQuote: nothing in a value ends its quotation, and it is short and on one line.
func TestQuote(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, in, want string }{
		{"plain", "ana@x.example", "“ana@x.example”"},
		{"empty", "", "“”"},
		{"trick: quotation marks", "a”b“c\"d″e❝f❞g»h›i」j＂k❜l❛m", "“a'b'c'd'e'f'g'h'i'j'k'l'm”"},
		{"trick: lines and hidden characters", "a\n\u202eb\u2028c", "“a b c”"},
		{"trick: long", strings.Repeat("x", 300) + ", which you named", "“" + strings.Repeat("x", 200) + "...”"},
	} {
		if got := quote(tt.in); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
	if got := quoteList([]string{strings.Repeat("x", 90), "b”", "c"}); got != "“"+strings.Repeat("x", 80)+
		"...”, “b'” and 1 more" {
		t.Errorf("a list: %s", got)
	}
}
