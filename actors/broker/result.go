package broker

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"

	"conclave/actors/broker/internal/stage"
	"conclave/pkg/actor"
	"conclave/pkg/firewall"
	"conclave/pkg/policy"
	"conclave/pkg/text"
	"conclave/subjects"
)

// processResult prepares a tool's result for the caller: it redacts secrets, scans for injection, labels the result,
// records it in the session's flow (see [isRecorded]; not for harmless tools), distills it for callers that must
// not see untrusted content, parks what is too large, and frames untrusted content, except for the user's own calls. A
// result that cannot be recorded or parked is withheld with an unrecorded fault, and so is a recall by the runtime that
// is untrusted; one that cannot be distilled with an unavailable one. An error goes to [Broker.processFault].
func (b *Broker) processResult(ctx context.Context, out actor.Out, j *stage.Judged, k Known,
	res subjects.ToolResult,
) subjects.ToolResult {
	c := j.Received()
	res.Ephemeral, res.Repeated = k.Ephemeral && res.Error == nil, 0
	if res.Error != nil {
		return b.processFault(ctx, out, j, k, res)
	}
	res.Links = filterLinks(k.Tool, res.Links)
	whole, hidden := firewall.Redact(strings.ToValidUTF8(res.Result, "\uFFFD"))
	scan := firewall.Scan(whole)
	r := policy.Result{
		Tool: k.Tool, CallID: c.ID, Query: c.Query, Args: c.Args, Source: sourceOf(k.Tool, c.Args), Text: whole,
		Links: res.Links,
		Flags: scan.Techniques(), Declared: res.Labels, Time: out.Now().UTC(),
	}
	res.Recalls = filterTokens(res.Recalls)
	labels := r.Labels()
	res.Labels = &labels
	if hidden > 0 {
		labels.Flags = append(labels.Flags, "redacted")
	}
	if c.Own && labels.Trust != subjects.Trusted {
		res.Labels, res.Recalls = nil, nil // nothing of it reaches the caller
		return withholdResult(res, "the result of %s is not the user's own, so it is withheld", c.Tool)
	}
	if isRecorded(j) && !isHarmless(k.Tool) {
		if err := b.recordFlow(ctx, out, c.Session, r); err != nil {
			out.LogError(err)
			return withholdResult(res, "the result of %s could not be recorded in the session, so it is withheld",
				c.Tool)
		}
	}
	shown := whole
	var err error
	if callMode(j) == subjects.ModeSummary {
		if shown, err = checkSummary(k.Tool, whole); err != nil {
			return withholdUndistilled(out, res, err)
		}
	}
	if mustDistill(j, k.Tool, labels) {
		links := res.Links
		if requestedURL(k.Tool, c.Args) != "" {
			links = append([]string{r.Source}, links...)
		}
		res.Artifacts = nil // a file name can carry content
		if shown, err = b.distill(ctx, out, c, shown, links); err != nil {
			return withholdUndistilled(out, res, err)
		}
	}
	if shown, res.Parked, err = b.parkResult(ctx, out, c, shown); err != nil {
		out.LogError(err)
		return withholdResult(res, "the result of %s is too large and could not be parked, so it is withheld", c.Tool)
	}
	res.Result = shown
	if labels.Trust == subjects.Untrusted && !j.Facts().FromUser { // no model reads the result of the user's own call
		res.Result = firewall.Frame(shown, b.frameNonce(c.Session, shown), scan)
	}
	return res
}

// mustDistill reports whether the caller gets findings instead of the result: it sees findings only, and the tool reads
// untrusted content, or the result is untrusted and comes from memory or goes to the orchestrator, which never sees a
// raw result.
func mustDistill(j *stage.Judged, t policy.Tool, l subjects.Labels) bool {
	asked := j.Facts()
	return callMode(j) == subjects.ModeStructured || seesDistilledOnly(asked) && l.Trust == subjects.Untrusted &&
		(t.Graded || len(asked.Caller.Path) == 0)
}

// isRecorded reports whether the results of the call enter the session's flow: the user called, or the generator, or
// another account that answers the query. For every other caller the session is unknown and counts as tainted, so that
// nothing needs recording, and its results must not become permitted values of the user's session. Nor does what the
// runtime recalls: it is trusted, and private data that no model looked up must not make later calls ask the user.
func isRecorded(j *stage.Judged) bool {
	r, asked := j.Received(), j.Facts()
	return r.Session != "" && !r.Own && !isRespondentB(r.Caller) &&
		(asked.FromUser || r.Caller.Account == subjects.Generator || asked.Flow != nil)
}

// filterTokens returns the ids that are tokens, at most the first maxRecalls; the others are dropped.
func filterTokens(ids []string) (out []string) {
	for _, id := range ids {
		if len(out) < maxRecalls && subjects.CheckToken(id) == nil {
			out = append(out, id)
		}
	}
	return out
}

// maxRecalls bounds the memory ids in one result.
const maxRecalls = 100

// frameNonce returns the nonce of the frame around a text: unpredictable, so no text can contain its own nonce, and
// equal for equal texts, so that repeated results are recognized.
func (b *Broker) frameNonce(session, text string) string {
	return b.hashText("frame", session, text)[:16]
}

// hashText returns a keyed hash of a text of a session, for a purpose.
func (b *Broker) hashText(purpose, session, text string) string {
	sum := sha256.Sum256([]byte(b.hash.Hash([]byte(purpose + " " + session + " " + text))))
	return hex.EncodeToString(sum[:])
}

// processFault prepares a tool's error for the caller; res.Error must be set. The text may be untrusted content: it is
// redacted, recorded in the session's flow (see [isRecorded]), withheld when it cannot be recorded, framed with a
// note when it looks like instructions, and withheld from callers that only see findings unless it is a [statusText].
// The user's own calls get it whole. Faults of the broker itself, of harmless tools and with a trusted text are only
// redacted.
func (b *Broker) processFault(ctx context.Context, out actor.Out, j *stage.Judged, k Known,
	res subjects.ToolResult,
) subjects.ToolResult {
	c := j.Received()
	res.Error.Text, _ = firewall.Redact(res.Error.Text)
	if res.Error.Code != subjects.CodeTool || isHarmless(k.Tool) {
		return res
	}
	scan := firewall.Scan(res.Error.Text)
	r := policy.Result{
		Tool: k.Tool, CallID: c.ID, Query: c.Query, Args: c.Args, Text: res.Error.Text,
		Flags: scan.Techniques(), Time: out.Now().UTC(),
	}
	if k.Graded { // a graded tool's error is its own text
		r.Declared = &subjects.Labels{Trust: subjects.Trusted}
	}
	labels := r.Labels()
	if labels.Trust == subjects.Trusted {
		return res
	}
	res.Labels = &labels
	if isRecorded(j) {
		if err := b.recordFlow(ctx, out, c.Session, r); err != nil {
			out.LogError(err)
			res.Error = subjects.Faultf(subjects.CodeTool, "%s failed", c.Tool)
			return res
		}
	}
	switch {
	case j.Facts().FromUser:
	case mustDistill(j, k.Tool, labels) && !statusText.MatchString(res.Error.Text):
		res.Error = subjects.Faultf(subjects.CodeTool, "%s failed; this agent gets findings only, so the error text "+
			"is withheld", c.Tool)
	case scan.Flagged:
		res.Error = subjects.Faultf(subjects.CodeTool, "%s failed:\n%s", c.Tool,
			firewall.Frame(res.Error.Text, b.frameNonce(c.Session, res.Error.Text), scan))
	}
	return res
}

// statusText matches the error texts that a caller that only sees findings gets: a few lower-case words, such as "fetch
// failed: 404" or "no results". Everything else could carry content.
var statusText = regexp.MustCompile(`^(no results|[a-z]{1,12} failed: [a-z0-9 ]{1,40})$`)

// filterLinks returns the links of a search tool's result that are plain http or https URLs without spaces or secrets,
// at most maxLink bytes each. Other tools have no links.
func filterLinks(t policy.Tool, links []string) (out []string) {
	if t.Args.With(policy.RoleQuery) == "" {
		return nil
	}
	for _, l := range links {
		_, secrets := firewall.Redact(l)
		scheme, _, ok := strings.Cut(l, "://")
		plain := l == text.OneLine(l, maxLink) && !strings.Contains(l, " ")
		if ok && (scheme == "http" || scheme == "https") && plain && secrets == 0 {
			out = append(out, l)
		}
	}
	return out
}

// maxLink bounds a URL and a path.
const maxLink = 2000

// withholdResult replaces the content of a result by an unrecorded fault.
func withholdResult(res subjects.ToolResult, format string, a ...any) subjects.ToolResult {
	res.Result, res.Links, res.Parked, res.Artifacts = "", nil, nil, nil
	res.Error = subjects.Faultf(subjects.CodeUnrecorded, format, a...)
	return res
}

// sourceOf returns where the content of a result comes from: the URL that was fetched, or the one path that was read.
func sourceOf(t policy.Tool, args json.RawMessage) string {
	if url := requestedURL(t, args); url != "" || len(t.Paths) == 0 {
		return url
	}
	return stringArgument(args, t.Paths[0])
}

// requestedURL returns the URL that the tool was asked to fetch, unchecked. It is "" when the tool declares no URL
// argument, and also when the argument is missing or not one string, as a list of URLs, or args is no JSON object.
func requestedURL(t policy.Tool, args json.RawMessage) string {
	name := t.Args.With(policy.RoleURL)
	if name == "" {
		return ""
	}
	return stringArgument(args, name)
}

// stringArgument returns an argument that is one string, "" otherwise.
func stringArgument(args json.RawMessage, name string) string {
	var a map[string]json.RawMessage
	var value string
	if json.Unmarshal(args, &a) != nil || json.Unmarshal(a[name], &value) != nil {
		return ""
	}
	return value
}

// parkResult stores a text over [Config].ShowResult bytes whole in the bucket parked, and returns its beginning with a
// note and where the rest is. A shorter text is returned as it is, with nil. On an error the text must be withheld. The
// caller's deadline does not interrupt the write. whole must be valid UTF-8.
func (b *Broker) parkResult(ctx context.Context, out actor.Out, c stage.Received,
	whole string,
) (string, *subjects.Parked, error) {
	most := b.cfg.ShowResult
	if most <= 0 {
		most = DefaultShow
	}
	if len(whole) <= most {
		return whole, nil, nil
	}
	id := b.hashText("park", c.Session, whole)[:32]
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), b.cfg.AuditTimeout)
	defer cancel()
	// Equal texts share one entry.
	if _, err := out.Store("parked").Put(ctx, id, []byte(whole), 0); err != nil && !errors.Is(err, actor.ErrChanged) {
		return "", nil, fmt.Errorf("parking a result of %s: %w", c.Tool, err)
	}
	end := most
	for !utf8.RuneStart(whole[end]) {
		end--
	}
	p := &subjects.Parked{ID: id, Bytes: len(whole), Shown: end}
	return fmt.Sprintf("%s\n[cut: %d of %d bytes are shown; the whole is kept as %s]", whole[:end], end, len(whole),
		id), p, nil
}
