package readable

import (
	"strings"

	"golang.org/x/net/html"
	"golang.org/x/net/html/atom"
)

// dropped elements are code, or another document. Their text is not the page's.
var dropped = map[atom.Atom]bool{
	atom.Script: true, atom.Style: true, atom.Noscript: true, atom.Template: true, atom.Iframe: true, atom.Object: true, atom.Embed: true,
	atom.Svg: true, atom.Canvas: true, atom.Math: true, atom.Frame: true, atom.Frameset: true, atom.Noframes: true, atom.Noembed: true,
	atom.Textarea: true, atom.Select: true, atom.Datalist: true, atom.Applet: true,
}

// maxStyles is how many bytes of style sheets are looked at.
const maxStyles = 256 << 10

// around is what an element inherits from those it stands in.
type around struct {
	paper string // background, "" = unknown
}

// page is what the walk over one page knows.
type page struct {
	removed *Removed
	rules   map[string]bool // ".class" and "#id" that a style sheet hides
	nodes   int
	work    int // the sum of their depths
}

// strip takes out of a document what a user would not see, counts it, and returns how many nodes are left and the
// sum of their depths.
func (r *Removed) strip(root *html.Node) (nodes, work int) {
	p := page{removed: r, rules: map[string]bool{}}
	styled := p.styles(root)
	start := around{}
	if !styled {
		start.paper = "#ffffff" // no style sheet says otherwise
	}
	p.strip(root, start, 1)
	return p.nodes, p.work
}

// styles reads the rules of the page's own style sheets, and reports whether it has any, its own or linked.
func (p *page) styles(root *html.Node) (any bool) {
	left := maxStyles
	var walk func(*html.Node)
	walk = func(n *html.Node) {
		switch {
		case n.Type == html.ElementNode && n.DataAtom == atom.Link && strings.Contains(strings.ToLower(attr(n, "rel")), "stylesheet"):
			any = true
		case n.Type == html.ElementNode && n.DataAtom == atom.Style && n.FirstChild != nil:
			any = true
			css := n.FirstChild.Data
			if media := strings.ToLower(attr(n, "media")); media != "" && !strings.Contains(media, "all") && !strings.Contains(media, "screen") {
				return // for printers and the like
			}
			if len(css) > left {
				css = css[:left]
			}
			left -= len(css)
			hidingRules(css, p.rules)
			return
		}
		for c := n.FirstChild; c != nil; c = c.NextSibling {
			walk(c)
		}
	}
	walk(root)
	return any
}

// strip walks below n. The parser bounds the depth.
func (p *page) strip(n *html.Node, in around, depth int) {
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
			case dropped[c.DataAtom]:
				p.removed.Scripts++
				n.RemoveChild(c)
			case p.hidden(c, in):
				p.removed.Hidden++
				n.RemoveChild(c)
			default:
				p.addresses(c)
				p.nodes++
				p.work += depth
				p.strip(c, paper(c, in), depth+1)
			}
		default:
			p.nodes++
			p.work += depth
		}
		c = next
	}
}

// hidden reports whether c is not shown.
func (p *page) hidden(c *html.Node, in around) bool {
	if c.DataAtom == atom.Html || c.DataAtom == atom.Body || c.DataAtom == atom.Head {
		return false // pages that a script uncovers
	}
	if c.DataAtom == atom.Dialog && !has(c, "open") || c.DataAtom == atom.Input && strings.EqualFold(attr(c, "type"), "hidden") {
		return true
	}
	if attrsHide(c.Attr) {
		return true
	}
	if len(p.rules) > 0 {
		if id := attr(c, "id"); id != "" && p.rules["#"+id] {
			return true
		}
		for class := range strings.FieldsSeq(attr(c, "class")) {
			if p.rules["."+class] {
				return true
			}
		}
	}
	ink := ""
	if c.DataAtom == atom.Font {
		ink = color(attr(c, "color"))
	}
	d := declarations(attr(c, "style"))
	if v := d["color"]; v != "" {
		ink = color(v)
	}
	return ink != "" && ink == paper(c, in).paper
}

// paper is what is behind the text of c.
func paper(c *html.Node, in around) around {
	if v := attr(c, "bgcolor"); v != "" {
		in.paper = color(v)
	}
	d := declarations(attr(c, "style"))
	for _, k := range []string{"background", "background-color", "background-image"} {
		if v, ok := d[k]; ok {
			in.paper = color(v) // "" when it is a picture, or several words
		}
	}
	return in
}

// addresses drops attributes whose value is content in the form of an address, or a script.
func (p *page) addresses(c *html.Node) {
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

// attrsHide reports whether an element's own attributes hide it.
func attrsHide(attrs []html.Attribute) bool {
	for _, a := range attrs {
		switch {
		case a.Key == "hidden",
			a.Key == "aria-hidden" && strings.EqualFold(strings.TrimSpace(a.Val), "true"),
			a.Key == "style" && hides(declarations(a.Val)):
			return true
		}
	}
	return false
}

func attr(n *html.Node, key string) string {
	for _, a := range n.Attr {
		if a.Key == key {
			return a.Val
		}
	}
	return ""
}

func has(n *html.Node, key string) bool {
	for _, a := range n.Attr {
		if a.Key == key {
			return true
		}
	}
	return false
}
