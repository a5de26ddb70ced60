package broker

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"conclave/pkg/actor"
	"conclave/pkg/firewall"
	"conclave/pkg/policy"
	"conclave/pkg/text"
	"conclave/subjects"
)

// processResult makes a result fit to be given out: secrets taken out, signs of injection noted, labelled, written down as part
// of the session, parked when it is large, and framed when strangers could have written it. Nothing is dropped silently.
func (b *Broker) processResult(ctx context.Context, out actor.Out, c call, k Known, res subjects.ToolResult) subjects.ToolResult {
	if res.Error != nil {
		return b.processFault(ctx, out, c, k, res)
	}
	res.Links = filterLinks(k.Tool, res.Links)
	whole, hidden := firewall.Redact(strings.ToValidUTF8(res.Result, "\uFFFD"))
	scan := firewall.Scan(whole)
	r := policy.Result{
		Tool: k.Tool, CallID: c.id, Query: c.query, Args: c.args, Source: requestedURL(k.Tool, c.args), Text: whole, Links: res.Links,
		Flags: listTechniques(scan), Declared: res.Labels, Time: out.Now().UTC(),
	}
	res.Recalls = filterTokens(res.Recalls)
	labels := r.Labels()
	res.Labels = &labels
	if hidden > 0 {
		labels.Flags = append(labels.Flags, "redacted")
	}
	if c.session != "" && !c.respondentB && !isHarmless(k.Tool) {
		if err := b.recordFlow(ctx, out, c.session, r); err != nil {
			out.LogError(err)
			return withholdResult(res, "what %s returned could not be written down as part of the session, so it is withheld", c.tool)
		}
	}
	shown := whole
	if c.mode == subjects.ModeStructured || k.Graded && c.distilledOnly && labels.Trust == subjects.Untrusted {
		links := res.Links
		if r.Source != "" {
			links = append([]string{r.Source}, links...)
		}
		shown = b.distill(ctx, out, c, whole, links)
	}
	var err error
	if shown, res.Parked, err = b.parkResult(ctx, out, c, shown); err != nil {
		out.LogError(err)
		return withholdResult(res, "what %s returned is too large to be shown and could not be kept, so it is withheld", c.tool)
	}
	res.Result = shown
	if labels.Trust == subjects.Untrusted && !c.fromUser { // no model reads what the user asked for
		res.Result = firewall.Frame(shown, b.frameNonce(c, shown), scan)
	}
	return res
}

// filterTokens are the ids that may be shown as such.
func filterTokens(ids []string) (out []string) {
	for _, id := range ids {
		if len(out) < maxRecalls && subjects.CheckToken(id) == nil {
			out = append(out, id)
		}
	}
	return out
}

// maxRecalls bounds how many memories one result names.
const maxRecalls = 100

// frameNonce is what only the frame around one text carries. It is a keyed hash of the text, so nobody can know it and no text
// can hold its own; and the same text twice is framed alike, so that whoever looks for repetitions finds them.
func (b *Broker) frameNonce(c call, text string) string {
	sum := sha256.Sum256([]byte(b.hash.Hash([]byte("frame " + c.session + " " + text))))
	return hex.EncodeToString(sum[:8])
}

// processFault treats what a tool said instead of a result: a stranger may have written that too. It stands in no frame, so
// what looks like an order is not passed on.
func (b *Broker) processFault(ctx context.Context, out actor.Out, c call, k Known, res subjects.ToolResult) subjects.ToolResult {
	res.Error.Text, _ = firewall.Redact(res.Error.Text)
	if res.Error.Code != subjects.CodeTool || isHarmless(k.Tool) {
		return res
	}
	r := policy.Result{Tool: k.Tool, CallID: c.id, Query: c.query, Args: c.args, Text: res.Error.Text, Flags: listTechniques(firewall.Scan(res.Error.Text)), Time: out.Now().UTC()}
	if k.Graded { // why it failed is in its own words
		r.Declared = &subjects.Labels{Trust: subjects.Trusted}
	}
	labels := r.Labels()
	if labels.Trust == subjects.Trusted {
		return res
	}
	res.Labels = &labels
	if c.session != "" && !c.respondentB {
		if err := b.recordFlow(ctx, out, c.session, r); err != nil {
			out.LogError(err)
			res.Error = subjects.Faultf(subjects.CodeTool, "%s failed", c.tool)
			return res
		}
	}
	switch {
	case c.fromUser:
	case len(r.Flags) > 0:
		res.Error = subjects.Faultf(subjects.CodeTool, "%s failed, and what it said about that looks like instructions, so it is withheld", c.tool)
	case c.mode == subjects.ModeStructured:
		res.Error.Text = text.OneLine(res.Error.Text, maxStructuredFault)
	}
	return res
}

// maxStructuredFault bounds what an agent is told of a failure that never sees what strangers wrote: enough for a status.
const maxStructuredFault = 200

// filterLinks are the addresses that a search lists, as they are. No other tool lists any; what is no address, or carries a
// secret, is left out.
func filterLinks(t policy.Tool, links []string) (out []string) {
	if t.Query == "" {
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

// maxLink bounds an address.
const maxLink = 2000

// withholdResult is a result that nobody gets.
func withholdResult(res subjects.ToolResult, format string, a ...any) subjects.ToolResult {
	res.Result, res.Links, res.Parked = "", nil, nil
	res.Error = subjects.Faultf(subjects.CodeUnrecorded, format, a...)
	return res
}

// listTechniques are the names of what was found, each once.
func listTechniques(r firewall.Report) (out []string) {
	if !r.Flagged {
		return nil
	}
	for _, f := range r.Findings {
		if !slices.Contains(out, f.Technique) {
			out = append(out, f.Technique)
		}
	}
	return out
}

// requestedURL is the address that a tool was asked to fetch, "" when it fetches none.
func requestedURL(t policy.Tool, args json.RawMessage) string {
	if t.URL == "" {
		return ""
	}
	var a map[string]json.RawMessage
	var address string
	if json.Unmarshal(args, &a) != nil || json.Unmarshal(a[t.URL], &address) != nil {
		return ""
	}
	return address
}

// parkID names a text by a keyed hash of it: nobody can guess it, and the same text has the same.
func (b *Broker) parkID(c call, text string) string {
	sum := sha256.Sum256([]byte(b.hash.Hash([]byte("park " + c.session + " " + text))))
	return hex.EncodeToString(sum[:16])
}

// parkResult keeps a large text whole and returns the beginning of it, with where the rest is.
func (b *Broker) parkResult(ctx context.Context, out actor.Out, c call, whole string) (string, *subjects.Parked, error) {
	most := b.cfg.ShowResult
	if most <= 0 {
		most = DefaultShow
	}
	if len(whole) <= most {
		return whole, nil, nil
	}
	id := b.parkID(c, whole)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), b.cfg.AuditTimeout)
	defer cancel()
	// The same text twice is kept once.
	if _, err := out.Store("parked").Put(ctx, id, []byte(whole), 0); err != nil && !errors.Is(err, actor.ErrChanged) {
		return "", nil, fmt.Errorf("parking a result of %s: %w", c.tool, err)
	}
	end := most
	for !utf8.RuneStart(whole[end]) {
		end--
	}
	p := &subjects.Parked{ID: id, Bytes: len(whole), Shown: end}
	return fmt.Sprintf("%s\n[cut: %d of %d bytes are shown; the whole is kept as %s]", whole[:end], end, len(whole), id), p, nil
}
