package readable

import (
	"strings"

	"github.com/andybalholm/cascadia"
	"golang.org/x/net/html"

	"conclave/pkg/text"
)

// hidingRules are the selectors of the page's own style sheets whose elements are hidden.
type hidingRules struct {
	names     map[string]bool // ".class" and "#id"
	selectors []cascadia.Sel  // those that are more than one class or id
	rough     map[string]bool // ".class", "#id" and tags by which the last element of a selector is known, "*" for any
	left      int             // how much work may still be spent on selectors
}

// maxSelectorWork bounds the time for selectors: the sum of the depths of the elements that are compared with each.
const maxSelectorWork = 8 << 20

func newHidingRules() *hidingRules {
	return &hidingRules{names: map[string]bool{}, rough: map[string]bool{}, left: maxSelectorWork}
}

// hides reports whether a style sheet hides element c, which stands at the given depth. When the selectors take too
// much work, an element counts as hidden that could be the last of one: what cannot be told is not shown.
func (h *hidingRules) hides(c *html.Node, depth int) bool {
	if h.matchesName(c, h.names) {
		return true
	}
	for _, sel := range h.selectors {
		if h.left -= depth; h.left < 0 {
			return h.rough["*"] || h.rough[c.Data] || h.matchesName(c, h.rough)
		}
		if sel.Match(c) {
			return true
		}
	}
	return false
}

func (h *hidingRules) matchesName(c *html.Node, names map[string]bool) bool {
	if len(names) == 0 {
		return false
	}
	if id := attributeValue(c, "id"); id != "" && names["#"+id] {
		return true
	}
	for class := range strings.FieldsSeq(attributeValue(c, "class")) {
		if names["."+class] {
			return true
		}
	}
	return false
}

// collect adds the selectors that a style sheet hides. Rules inside of @media and the like count when their condition
// holds for every screen, see [holdsAlways].
func (h *hidingRules) collect(css string) {
	css = stripComments(css)
	for css != "" {
		open := strings.IndexByte(css, '{')
		if open < 0 {
			return
		}
		head := strings.TrimSpace(css[:open])
		if i := strings.LastIndexByte(head, ';'); i >= 0 {
			head = strings.TrimSpace(head[i+1:]) // behind @import and @charset
		}
		head = strings.TrimSpace(strings.TrimLeft(head, "}")) // behind a block that was opened
		css = css[open+1:]
		if strings.HasPrefix(head, "@") {
			if !holdsAlways(head) {
				css = css[blockEnd(css):]
			}
			continue
		}
		end := strings.IndexByte(css, '}')
		if end < 0 {
			end = len(css)
		}
		if hidesElement(parseDeclarations(css[:end])) {
			for sel := range strings.SplitSeq(head, ",") {
				h.add(strings.TrimSpace(sel))
			}
		}
		css = css[min(end+1, len(css)):]
	}
}

var (
	simpleSelector = text.Pattern(`^([.#][A-Za-z_][A-Za-z0-9_-]*)$`)
	selectorNames  = text.Pattern(`[.#]?[A-Za-z_][A-Za-z0-9_-]*`)
	// minWidth and maxWidth match conditions on the width of the window that every screen meets.
	alwaysMet = text.Pattern(
		`\(\s*(?:min-(?:width|height)\s*:\s*(?:[0-2]?[0-9]{1,2}(?:\.[0-9]+)?(?:px)?|[0-9](?:\.[0-9]+)?r?em)|` +
			`max-(?:width|height)\s*:\s*[0-9]{5,}(?:px)?)\s*\)`)
	someScreens = text.Pattern(`\(|print|speech|not `)
)

// add adds one selector. It ignores a selector that is not understood, such as a state or a pseudo-element, except that
// of :is and :where all names count.
func (h *hidingRules) add(sel string) {
	if simpleSelector().MatchString(sel) {
		h.names[sel] = true
		return
	}
	parsed, err := cascadia.Parse(sel)
	if err != nil {
		if strings.Contains(sel, ":is(") || strings.Contains(sel, ":where(") {
			for _, name := range selectorNames().FindAllString(sel, -1) {
				h.names[name] = name[0] == '.' || name[0] == '#'
			}
		}
		return
	}
	if parsed.PseudoElement() != "" {
		return
	}
	h.selectors = append(h.selectors, parsed)
	last := sel[strings.LastIndexAny(sel, " >+~")+1:]
	if names := selectorNames().FindAllString(last, -1); len(names) > 0 && last[0] != '[' && last[0] != ':' {
		h.rough[names[len(names)-1]] = true
		return
	}
	h.rough["*"] = true
}

// holdsAlways reports whether the block that head, an at-rule, opens holds for every screen: a layer, a feature that is
// supported, or a medium that is not limited to some windows. Fonts, animations and pages hold no rules about elements.
func holdsAlways(head string) bool {
	head = strings.ToLower(head)
	name, condition, _ := strings.Cut(head, " ")
	if before, after, ok := strings.Cut(name, "("); ok { // @media(min-width:1px)
		name, condition = before, "("+after+condition
	}
	switch name {
	case "@layer", "@supports", "@scope", "@starting-style":
		return true
	case "@media":
		return !someScreens().MatchString(alwaysMet().ReplaceAllString(condition, ""))
	}
	return false
}
