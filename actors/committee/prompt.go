package committee

import (
	_ "embed"
	"fmt"
	"strings"

	"conclave/pkg/firewall"
	"conclave/pkg/text"
	"conclave/subjects"
)

// The reviewed texts of the committee. They are the same for every persona and come first, so that a model server finds
// them in its prompt cache.
var (
	//go:embed deliberate.md
	deliberateText string
	//go:embed close.md
	closeText string
	//go:embed guide.md
	guideText string
)

// systemPrompt is the system message of a persona.
func systemPrompt(p Persona, closing bool) string {
	task := deliberateText
	if closing {
		task = closeText
	}
	return strings.TrimSpace(guideText) + "\n\n# What to do\n\n" + strings.TrimSpace(task) + "\n\n# Who you are\n\n" +
		strings.TrimSpace(p.Prompt)
}

// Headings of the parts of the message that a persona reads.
const (
	headContext  = "# What the user said earlier\n\n"
	headEarlier  = "# What the members have said\n\n"
	headQuestion = "# The question\n\n"
)

// buildMessage is the message that a persona reads: the static context, the earlier contributions in at most most
// bytes, and at the end the question with its framed attachments. Empty parts are left out.
func buildMessage(context string, earlier []contribution, question, nonce string, most int) string {
	var b strings.Builder
	if context != "" {
		b.WriteString(headContext + context + "\n\n")
	}
	if said := renderContributions(earlier, nonce, most); said != "" {
		b.WriteString(headEarlier + said + "\n\n")
	}
	if b.Len() == 0 {
		return question
	}
	return b.String() + headQuestion + question
}

// minContribution is how much of a contribution is shown at least, in bytes.
const minContribution = 300

// renderContributions lists the contributions that did not fail, each cut to its share of most bytes. Those that are
// made from untrusted content are framed as such, with a nonce that they cannot know.
func renderContributions(all []contribution, nonce string, most int) string {
	var said []string
	share := max(minContribution, most/max(1, len(all)))
	for _, c := range all {
		if c.Error != nil {
			continue
		}
		words := text.Clip(c.Response, share)
		if c.Dissents {
			words += "\n" + dissentMark + " " + c.Dissent
		}
		if c.Labels != nil && c.Labels.Trust != subjects.Trusted {
			words = "\n" + firewall.Frame(words, nonce, firewall.Scan(words))
		}
		said = append(said, fmt.Sprintf("[%s, round %d]: %s", c.Persona, c.Round, words))
	}
	return strings.Join(said, "\n\n")
}

// describeDeliberation is the text of an answer that could not be closed: what the members have said so far, "" =
// nothing.
func describeDeliberation(all []contribution) string {
	var said []string
	for _, c := range all {
		if c.Error == nil {
			said = append(said, fmt.Sprintf("%s: %s", c.Persona, text.Clip(c.Response, maxContribution)))
		}
	}
	if len(said) == 0 {
		return ""
	}
	return "The deliberation was not closed. What the members said:\n\n" + strings.Join(said, "\n\n")
}
