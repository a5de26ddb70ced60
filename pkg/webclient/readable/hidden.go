package readable

import (
	"slices"
	"strings"

	"golang.org/x/net/html"
	"golang.org/x/net/html/atom"
)

// droppedElements are code, or another document. Their text is not the page's.
var droppedElements = map[atom.Atom]bool{
	atom.Script: true, atom.Style: true, atom.Noscript: true, atom.Template: true, atom.Iframe: true, atom.Object: true,
	atom.Embed: true,
	atom.Svg:   true, atom.Canvas: true, atom.Math: true, atom.Frame: true, atom.Frameset: true, atom.Noframes: true,
	atom.Noembed:  true,
	atom.Textarea: true, atom.Select: true, atom.Datalist: true, atom.Applet: true,
}

// inherited is what an element inherits from those it stands in.
type inherited struct {
	background string // background, "" = unknown
}

// stripper is the state of stripping one page.
type stripper struct {
	removed *Removed
	rules   *hidingRules
	nodes   int
	work    int // the sum of their depths
}

// strip removes from a document what a user would not see, counts it in r, and returns the number of remaining nodes
// and the sum of their depths, from which the caller bounds its work.
func (r *Removed) strip(root *html.Node) (nodes, work int) {
	p := stripper{removed: r, rules: newHidingRules()}
	styled := p.readStyles(root)
	start := inherited{}
	if !styled {
		start.background = "#ffffff" // no style sheet says otherwise
	}
	p.stripBelow(root, start, 1)
	return p.nodes, p.work
}

// readStyles collects the hiding rules of the page's own style sheets for screens, and reports whether the page has any
// style sheet, its own or linked. Linked ones are not fetched.
func (p *stripper) readStyles(root *html.Node) (any bool) {
	var walk func(*html.Node)
	walk = func(n *html.Node) {
		switch {
		case n.Type == html.ElementNode && n.DataAtom == atom.Link &&
			strings.Contains(strings.ToLower(attributeValue(n, "rel")), "stylesheet"):
			any = true
		case n.Type == html.ElementNode && n.DataAtom == atom.Style && n.FirstChild != nil:
			any = true
			css := n.FirstChild.Data
			if media := strings.ToLower(attributeValue(n, "media")); media != "" && !strings.Contains(media, "all") &&
				!strings.Contains(media, "screen") {
				return // for printers and the like
			}
			p.rules.collect(css)
			return
		}
		for c := n.FirstChild; c != nil; c = c.NextSibling {
			walk(c)
		}
	}
	walk(root)
	return any
}

// stripBelow removes comments, dropped and hidden elements below n, and unsafe attributes of the rest. in is what n
// passes on to its children, depth their depth. The parser bounds the depth.
func (p *stripper) stripBelow(n *html.Node, in inherited, depth int) {
	for c := n.FirstChild; c != nil; {
		next := c.NextSibling
		switch c.Type {
		case html.CommentNode:
			if strings.TrimSpace(c.Data) != "" {
				p.removed.Comments++
			}
			n.RemoveChild(c)
		case html.ElementNode:
			switch {
			case droppedElements[c.DataAtom]:
				p.removed.Scripts++
				n.RemoveChild(c)
			case p.isHidden(c, in, depth):
				p.removed.Hidden++
				n.RemoveChild(c)
			default:
				p.dropUnsafeAttributes(c)
				p.nodes++
				p.work += depth
				p.stripBelow(c, inheritBackground(c, in), depth+1)
			}
		default:
			p.nodes++
			p.work += depth
		}
		c = next
	}
}

// isHidden reports whether element c is not visible: by its attributes, by a style sheet, or because its color equals
// its background. html, head and body never are: scripts uncover some pages.
func (p *stripper) isHidden(c *html.Node, in inherited, depth int) bool {
	if c.DataAtom == atom.Html || c.DataAtom == atom.Body || c.DataAtom == atom.Head {
		return false // pages that a script uncovers
	}
	isOpen := slices.ContainsFunc(c.Attr, func(a html.Attribute) bool { return a.Key == "open" })
	if c.DataAtom == atom.Dialog && !isOpen ||
		c.DataAtom == atom.Input && strings.EqualFold(attributeValue(c, "type"), "hidden") {
		return true
	}
	if hasHidingAttribute(c.Attr) || p.rules.hides(c, depth) {
		return true
	}
	ink := ""
	if c.DataAtom == atom.Font {
		ink = normalizeColor(attributeValue(c, "color"))
	}
	d := parseDeclarations(attributeValue(c, "style"))
	if v := d["color"]; v != "" {
		ink = normalizeColor(v)
	}
	return ink != "" && ink == inheritBackground(c, in).background
}

// inheritBackground returns what the children of c inherit: in, with the background that c sets by bgcolor or, with
// precedence, by its style attribute; style sheets are not read. No background (transparent, none, inherit) keeps that
// of in. What is no plain color, such as a picture, is "", unknown.
func inheritBackground(c *html.Node, in inherited) inherited {
	if v := attributeValue(c, "bgcolor"); v != "" {
		in.background = normalizeColor(v)
	}
	d := parseDeclarations(attributeValue(c, "style"))
	for _, k := range []string{"background", "background-color", "background-image"} {
		if v, ok := d[k]; ok && !slices.Contains(noBackground, strings.ToLower(strings.TrimSpace(v))) {
			in.background = normalizeColor(v) // "" when it is a picture, or several words
		}
	}
	return in
}

// noBackground are values that leave the background of the parent visible.
var noBackground = []string{"", "transparent", "none", "inherit", "initial", "unset"}

// dropUnsafeAttributes drops attributes with data: or javascript: URLs, and event handlers. Only data: URLs are
// counted.
func (p *stripper) dropUnsafeAttributes(c *html.Node) {
	kept := c.Attr[:0]
	for _, a := range c.Attr {
		v := strings.ToLower(strings.TrimLeft(a.Val, " \t\r\n\f\x00"))
		switch {
		case strings.HasPrefix(v, "data:") || a.Key == "srcset" && strings.Contains(v, "data:"):
			p.removed.DataURLs++
			continue
		case strings.HasPrefix(v, "javascript:"), strings.HasPrefix(a.Key, "on"):
			continue
		}
		kept = append(kept, a)
	}
	c.Attr = kept
}

// hasHidingAttribute reports whether an element's own attributes hide it: hidden, aria-hidden="true" or its style.
func hasHidingAttribute(attrs []html.Attribute) bool {
	for _, a := range attrs {
		switch {
		case a.Key == "hidden",
			a.Key == "aria-hidden" && strings.EqualFold(strings.TrimSpace(a.Val), "true"),
			a.Key == "style" && hidesElement(parseDeclarations(a.Val)):
			return true
		}
	}
	return false
}

func attributeValue(n *html.Node, key string) string {
	for _, a := range n.Attr {
		if a.Key == key {
			return a.Val
		}
	}
	return ""
}
