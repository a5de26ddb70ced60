package subjects_test

import (
	"fmt"

	"conclave/subjects"
)

func ExampleTopic_With() {
	topic, err := subjects.ResponseDelta.With("q-1")
	fmt.Println(topic.Name, err)
	_, err = subjects.ResponseDelta.With("q.1") // would be two tokens
	fmt.Println(err)
	// Output:
	// response.delta.q-1 <nil>
	// subject response.delta.*: not a valid subject token: "q.1"
}

func ExampleParseToolRequest() {
	caller, tool, err := subjects.ParseToolRequest("agent.orchestrator.tool.request.web_search.coder-2")
	fmt.Println(caller.ID(), tool, err)
	_, _, err = subjects.ParseToolRequest("agent.orchestrator.tool.request.web_search.a.b.c.d.e")
	fmt.Println(err)
	// Output:
	// orchestrator.coder-2 web_search <nil>
	// not a valid subject token: path deeper than 4
}

func ExampleMatch() {
	tokens, ok := subjects.Match("from.*.tool.result.*", "from.broker.tool.result.web_search")
	fmt.Println(tokens, ok)
	// Output: [broker web_search] true
}

func ExampleUserText() {
	fmt.Println(subjects.UserText("Who won?\n\n" + subjects.RetryInstruction + " The critic said: wrong year."))
	// Output: Who won?
}
