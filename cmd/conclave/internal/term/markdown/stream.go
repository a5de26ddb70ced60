package markdown

import "strings"

// Block is a part of a text that is rendered on its own.
type Block struct {
	Text string
	Code bool // a line of a fenced code block, without the fence
	// First is false for the lines of code after the first: no blank line stands before them.
	First bool
}

// Stream splits a Markdown text that arrives in pieces into blocks: paragraphs, lists, tables, and the lines of code. A
// block is returned once nothing that follows can change it, so that it is printed only once. The zero value is an
// empty text.
type Stream struct {
	line  string   // the last line, which is not ended
	block []string // lines of the open block
	fence string   // of the open code block; "" = none
	code  int      // lines of the open code block that were returned
	blank bool     // the open block is a list that a blank line may end
}

// Write adds a piece and returns the blocks that are complete now.
func (s *Stream) Write(piece string) (done []Block) {
	s.line += piece
	for {
		line, rest, ended := strings.Cut(s.line, "\n")
		if !ended {
			return done
		}
		s.line = rest
		done = append(done, s.addLine(strings.TrimSuffix(line, "\r"))...)
	}
}

// Tail returns the open block as it is so far, and whether there is one.
func (s *Stream) Tail() (Block, bool) {
	if s.fence != "" {
		if s.closesFence(s.line) || s.line == "" {
			return Block{}, false
		}
		return Block{Text: s.line, Code: true, First: s.code == 0}, true
	}
	text := strings.Join(append(append([]string{}, s.block...), s.line), "\n")
	return Block{Text: text, First: true}, strings.TrimSpace(text) != ""
}

// End returns the last blocks, if any. The stream is empty then.
func (s *Stream) End() []Block {
	var done []Block
	if s.line != "" {
		done = s.addLine(strings.TrimSuffix(s.line, "\r"))
	}
	done = append(done, s.closeBlock()...)
	*s = Stream{}
	return done
}

// addLine adds a complete line.
func (s *Stream) addLine(line string) (done []Block) {
	if s.fence != "" {
		if s.closesFence(line) {
			s.fence = ""
			return nil
		}
		s.code++
		return []Block{{Text: line, Code: true, First: s.code == 1}}
	}
	trimmed := strings.TrimSpace(line)
	if trimmed == "" {
		if s.isList() {
			s.blank = true // an indented line continues it
			s.block = append(s.block, "")
			return nil
		}
		return s.closeBlock()
	}
	if s.blank && line[0] != ' ' && line[0] != '\t' {
		done = s.closeBlock()
	}
	s.blank = false
	if f := fenceOf(line); f != "" && !s.isList() {
		done = append(done, s.closeBlock()...)
		s.fence, s.code = f, 0
		return done
	}
	s.block = append(s.block, line)
	return done
}

// closeBlock returns the open block.
func (s *Stream) closeBlock() []Block {
	text := strings.TrimRight(strings.Join(s.block, "\n"), "\n")
	s.block, s.blank = nil, false
	if text == "" {
		return nil
	}
	return []Block{{Text: text, First: true}}
}

// isList reports whether the open block is a list.
func (s *Stream) isList() bool { return len(s.block) > 0 && isList(s.block[0]) }

// isList reports whether a text begins with an item of a list.
func isList(text string) bool {
	first := strings.TrimLeft(text, " ")
	if rest := strings.TrimLeft(first, "0123456789"); rest != first && rest != "" &&
		strings.ContainsRune(".)", rune(rest[0])) {
		return len(rest) == 1 || rest[1] == ' '
	}
	return len(first) > 1 && strings.ContainsRune("-*+", rune(first[0])) && first[1] == ' '
}

// fenceOf returns the fence that a line opens, "" for none.
func fenceOf(line string) string {
	if strings.HasPrefix(line, "    ") || strings.HasPrefix(line, "\t") {
		return ""
	}
	line = strings.TrimLeft(line, " ")
	for _, c := range []string{"`", "~"} {
		if n := len(line) - len(strings.TrimLeft(line, c)); n >= 3 && !(c == "`" && strings.Contains(line[n:], "`")) {
			return line[:n]
		}
	}
	return ""
}

// closesFence reports whether a line ends the open code block.
func (s *Stream) closesFence(line string) bool {
	t := strings.TrimSpace(line)
	return len(t) >= len(s.fence) && strings.Trim(t, s.fence[:1]) == ""
}
