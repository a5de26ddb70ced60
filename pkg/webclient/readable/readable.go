// Package readable turns a page into text for a model: what a user would read there, as Markdown, and nothing that a
// user would not see. It is a pure function of the page, and bounded whatever the page holds.
package readable

import (
	"bytes"
	"net/url"
	"strings"
	"unicode"
	"unicode/utf8"

	readability "codeberg.org/readeck/go-readability"
	"github.com/JohannesKaufmann/html-to-markdown/v2/converter"
	"github.com/JohannesKaufmann/html-to-markdown/v2/plugin/base"
	"github.com/JohannesKaufmann/html-to-markdown/v2/plugin/commonmark"
	"golang.org/x/net/html"
	"golang.org/x/net/html/atom"

	"conclave/pkg/text"
)

// Limits of a page. What is beyond them is not read; what is too tangled is read as plain words.
const (
	maxHTML    = 1 << 20
	maxNodes   = 25000  // for readability and Markdown, whose time grows with the nodes
	maxWork    = 600000 // and with how deep each of them stands: the sum of that
	maxTitle   = 200
	minArticle = 200 // characters that make an article; below, the whole page is taken
)

// Doc is a page as text.
type Doc struct {
	Title   string
	Text    string
	Removed Removed
}

// Removed counts what was removed because a user would not have seen it.
type Removed struct {
	Hidden   int // elements that are not shown, or shown so that nobody sees them
	Comments int
	DataURLs int // content inside an address
	Scripts  int // scripts, styles, frames and the like: every page has them, they hide nothing
}

// Parts returns how many removed parts could have been meant for a model alone.
func (r Removed) Parts() int { return r.Hidden + r.Comments + r.DataURLs }

// HTML reads a page of this address as Markdown; address makes links absolute and may be "". When rendering fails, the
// words of the page remain. Only the first maxHTML bytes are read. Text is "" for a page without words, and for one
// that is nested deeper than the parser goes: nothing tells what of it is hidden.
func HTML(body, address string) Doc {
	if len(body) > maxHTML {
		body = strings.ToValidUTF8(body[:maxHTML], "")
	}
	root, err := html.Parse(strings.NewReader(body))
	if err != nil {
		return Doc{}
	}
	doc := Doc{}
	nodes, work := doc.Removed.strip(root)
	doc.Title = cleanText(titleOf(root))
	doc.Title = text.OneLine(doc.Title, maxTitle)
	if nodes <= maxNodes && work <= maxWork {
		doc.Text = mainContent(root, address)
	}
	if doc.Text == "" {
		doc.Text = cleanText(textBelow(root))
	}
	return doc
}

// Plain reads plain text.
func Plain(body string) Doc { return Doc{Text: cleanText(body)} }

// Markup reads Markdown, XML and the like as text without comments, which are invisible where it is rendered. An
// unclosed comment stays.
func Markup(body string) Doc {
	var doc Doc
	var b strings.Builder
	for {
		before, after, ok := strings.Cut(body, "<!--")
		_, rest, closed := strings.Cut(after, "-->")
		if !ok || !closed {
			b.WriteString(body)
			break
		}
		b.WriteString(before)
		doc.Removed.Comments++
		body = rest
	}
	doc.Text = cleanText(b.String())
	return doc
}

// mainContent returns the page's main part as Markdown, or its whole body when that part is shorter than minArticle; ""
// when that fails. It changes root. It recovers from panics of the two libraries, which read untrusted content.
func mainContent(root *html.Node, address string) (out string) {
	defer func() {
		if recover() != nil {
			out = ""
		}
	}()
	page, err := url.Parse(address)
	if err != nil {
		page = &url.URL{}
	}
	whole := findElement(root, atom.Body)
	p := readability.NewParser()
	p.DisableJSONLD = true
	if a, err := p.ParseDocument(root, page); err == nil && a.Node != nil {
		if s := renderMarkdown(a.Node, page); utf8.RuneCountInString(s) >= minArticle || whole == nil {
			return s
		}
	}
	if whole == nil {
		return ""
	}
	return renderMarkdown(whole, page)
}

// toMarkdown escapes nothing: a model reads a star as a star, and the escapes of a page of nothing but stars took
// seconds.
var toMarkdown = converter.NewConverter(
	converter.WithEscapeMode(converter.EscapeModeDisabled),
	converter.WithPlugins(base.NewBasePlugin(), commonmark.NewCommonmarkPlugin()),
)

func renderMarkdown(n *html.Node, page *url.URL) string {
	cleanLinks(n, page)
	out, err := toMarkdown.ConvertNode(n)
	if err != nil {
		return ""
	}
	return cleanText(string(bytes.ToValidUTF8(out, nil)))
}

// cleanLinks removes images and media, makes links absolute, and drops those that are no pages or too long.
func cleanLinks(n *html.Node, page *url.URL) {
	for c := n.FirstChild; c != nil; {
		next := c.NextSibling
		if c.Type == html.ElementNode {
			switch c.DataAtom {
			case atom.Img, atom.Picture, atom.Video, atom.Audio, atom.Source:
				n.RemoveChild(c)
			case atom.A:
				rewriteLink(c, page)
			}
		}
		cleanLinks(c, page)
		c = next
	}
}

// rewriteLink makes the target of a link absolute and drops its other attributes. It drops a target that is not http or
// https or longer than 300 bytes; the words of the link stay.
func rewriteLink(a *html.Node, page *url.URL) {
	kept := a.Attr[:0]
	for _, at := range a.Attr {
		if at.Key != "href" {
			continue
		}
		u, err := page.Parse(strings.TrimSpace(at.Val))
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || len(u.String()) > 300 {
			continue
		}
		kept = append(kept, html.Attribute{Key: "href", Val: u.String()})
	}
	a.Attr = kept
}

// cleanText drops invisible characters, blanks at the end of lines and repeated empty lines. Other white space becomes
// a blank.
func cleanText(s string) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case r == '\n', r == '\t':
			return r
		case r == '\r':
			return -1
		case unicode.IsSpace(r):
			return ' '
		case !unicode.IsPrint(r), r == utf8.RuneError:
			return -1
		}
		return r
	}, s)
	var b strings.Builder
	empty := 2 // none at the beginning
	for l := range strings.SplitSeq(s, "\n") {
		l = strings.TrimRight(l, " \t")
		if l == "" {
			empty++
		} else {
			if b.Len() > 0 {
				b.WriteString("\n")
				if empty > 0 {
					b.WriteString("\n")
				}
			}
			b.WriteString(l)
			empty = 0
		}
	}
	return b.String()
}

// findElement returns the first element of a kind, nil when there is none.
func findElement(n *html.Node, a atom.Atom) *html.Node {
	if n.Type == html.ElementNode && n.DataAtom == a {
		return n
	}
	for c := n.FirstChild; c != nil; c = c.NextSibling {
		if f := findElement(c, a); f != nil {
			return f
		}
	}
	return nil
}

// titleOf returns the beginning of the title in the head of a document, "" when there is none.
func titleOf(root *html.Node) string {
	head := findElement(root, atom.Head)
	if head == nil {
		return ""
	}
	t := findElement(head, atom.Title)
	if t == nil || t.FirstChild == nil {
		return ""
	}
	return text.Clip(t.FirstChild.Data, 4*maxTitle)
}

// textBelow returns all text below n, a line for each block. The head and dropped elements are left out.
func textBelow(n *html.Node) string {
	var b strings.Builder
	var walk func(*html.Node)
	walk = func(n *html.Node) {
		if n.Type == html.TextNode {
			b.WriteString(strings.Join(strings.Fields(n.Data), " ") + " ")
			return
		}
		if n.Type == html.ElementNode && (n.DataAtom == atom.Head || droppedElements[n.DataAtom]) {
			return
		}
		for c := n.FirstChild; c != nil; c = c.NextSibling {
			walk(c)
		}
		if n.Type == html.ElementNode && !inlineElements[n.DataAtom] {
			b.WriteString("\n")
		}
	}
	walk(n)
	return b.String()
}

var inlineElements = map[atom.Atom]bool{
	atom.A: true, atom.Abbr: true, atom.B: true, atom.Cite: true, atom.Code: true, atom.Em: true, atom.Font: true,
	atom.I:   true,
	atom.Kbd: true, atom.Label: true, atom.Mark: true, atom.Q: true, atom.S: true, atom.Small: true, atom.Span: true,
	atom.Strong: true,
	atom.Sub:    true, atom.Sup: true, atom.Time: true, atom.U: true, atom.Var: true,
}
