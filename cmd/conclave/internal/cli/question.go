package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/nats-io/nats.go/jetstream"

	"conclave/cmd/conclave/internal/term"
	"conclave/pkg/attachment"
	"conclave/pkg/client"
	"conclave/pkg/document"
	"conclave/subjects"
)

// AttachFile attaches a file to a question: an image, or anything else as text.
func AttachFile(ctx context.Context, path string, to *client.Question) error {
	data, err := document.Load(path, document.MaxBytes)
	var f attachment.File
	if err == nil {
		f, err = attachment.Decode(ctx, subjects.AttachmentFile, filepath.Base(path), data)
	}
	if err != nil {
		return Usage("--attach %s: %v", path, err)
	}
	to.Attachments = append(to.Attachments, f.Attachment)
	if f.Image != nil {
		to.Images = append(to.Images, f.Image)
	}
	return nil
}

// RetryQuestion is the last question of a session, with the criticism of its answer. It is an error when the session
// does not exist or has no answer.
func (a *App) RetryQuestion(ctx context.Context, c *client.Client, session string) (string, error) {
	turn, _, err := c.LastTurn(ctx, session)
	if errors.Is(err, client.ErrNotFound) {
		return "", Fail(ExitFailed, "there is no answer in the session "+session, "ask something first; list "+
			"sessions with "+a.Program()+" session list")
	}
	return client.RetryText(turn), err
}

// AskError turns an error of [client.Client.Ask] into one for the user. Errors of the override say that nothing was
// asked; with ctx ended, that the user stopped it. A question that is too large is a usage error. Other faults,
// rejections by the stream and [client.ErrNotStored] refer to doctor: the question may be stored. Any other err is
// returned as it is.
func (a *App) AskError(ctx context.Context, session string, err error) error {
	var f *subjects.Fault
	var rejected *jetstream.APIError
	isFault := errors.As(err, &f)
	switch {
	case errors.Is(err, client.ErrOverride):
		return Fail(ExitFailed, "nothing was asked: "+err.Error(), "see "+a.Program()+" session override "+
			session+" --show")
	case errors.Is(err, client.ErrOverrideNotSet) && ctx.Err() != nil:
		return Fail(ExitFailed, "stopped before anything was asked", "ask again")
	case errors.Is(err, client.ErrOverrideNotSet):
		return BrokerError("nothing was asked, the override was not set", err)
	case isFault && f.Code == subjects.CodeTooLarge:
		return Usage("the question is too large (%s): name the file instead of piping it in, or shorten it", f.Text)
	case isFault && f.Code == subjects.CodeUnavailable && !errors.Is(err, client.ErrNotStored):
		return Fail(ExitAbsent, "nothing was asked: "+f.Text, "ask again when conclave runs; see conclave doctor")
	case errors.Is(err, client.ErrNotStored) && client.IsLinkDown(err):
		return Fail(ExitAbsent, "the connection to the server is down, and it is not known whether the question is "+
			"stored", "see "+a.Program()+" session show "+session+" when conclave runs")
	case isFault, errors.As(err, &rejected), errors.Is(err, client.ErrNotStored):
		return fmt.Errorf("%w: see conclave doctor", err)
	}
	return err
}

// UnansweredError explains the fault of a question without an answer. After a timeout or a cancellation an answer may
// still be stored, and the error says where.
func (a *App) UnansweredError(session string, f *subjects.Fault) error {
	later := a.Program() + " session show " + session
	switch f.Code {
	case subjects.CodeTimeout:
		return Fail(ExitAbsent, f.Text, "raise --timeout; the answer will be in "+later)
	case subjects.CodeStopped:
		return Fail(ExitFailed, f.Text, "an answer will be in "+later)
	}
	return AnswerFault(f)
}

// RejectedDecision explains why a decision was not accepted: the request is unknown, has expired or was decided before.
// r must be a reply without Accepted.
func (a *App) RejectedDecision(r subjects.ApprovalReply) error {
	list := a.Program() + " approve"
	switch r.State {
	case subjects.ApprovalUnknown:
		return Fail(ExitFailed, "there is no request "+r.ID, "list them with "+list)
	case subjects.ApprovalWithdrawn:
		return Fail(ExitFailed, "the request was withdrawn and nothing was run: the question was cancelled, "+
			"or the caller stopped waiting", "ask or call again")
	case subjects.ApprovalExpired:
		return Fail(ExitFailed, "the request has expired and the call was denied", "let the agent try again; "+
			list+" --watch shows each request as it comes")
	case subjects.ApprovalApproved, subjects.ApprovalDenied:
		return Fail(ExitFailed, fmt.Sprintf("the request was decided before: %s by %s", r.State,
			term.Plain(cmp.Or(r.By, "another client"))), "the first decision holds")
	}
	return Fail(ExitFailed, "the decision was not accepted: the request is "+term.Plain(r.State),
		"list requests with "+list)
}
