package client_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"conclave/pkg/client"
	"conclave/subjects"
)

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// Ask a question and print the answer as it is generated.
func Example() {
	nc, err := nats.Connect("nats://127.0.0.1:4222") // with the user's key: see bus.Dial
	if err != nil {
		return
	}
	defer nc.Close()
	c, err := client.New(nc)
	if err != nil {
		return
	}
	ctx := context.Background()
	q, err := c.Ask(ctx, client.Question{Text: "What time is it in Lima?", Timeout: time.Minute})
	if err != nil {
		return
	}
	defer q.Close()
	for u := range q.Updates() {
		switch u := u.(type) {
		case client.Delta:
			fmt.Print(u.Text)
		case client.ToolCall:
			fmt.Println("calls", u.Tool)
		case client.ApprovalAsked:
			_, _ = c.DecideApproval(ctx, u.ID, subjects.ApprovalDecision{Approve: false})
		case client.Answer:
			fmt.Println("\nanswered by", u.Model)
		case client.Failure:
			fmt.Println("no answer:", u.Text)
		}
	}
}
