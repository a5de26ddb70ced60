package view

import (
	"strings"

	"conclave/pkg/client"
)

// Deltas joins the pieces of an answer as they are generated. Pieces can be lost: after a gap no more of the step is
// shown, and [Deltas.Rest] has the rest at the end. The zero value has no text.
type Deltas struct {
	begun bool
	step  int // model call whose text is shown
	next  int // number of the next piece
	gap   bool
	shown strings.Builder
}

// Next returns the text of a piece that is to be shown, "" for none. begins is true for the first piece of another
// step, and of one that begins again after a crash: its text does not continue what was shown before.
func (d *Deltas) Next(p client.Delta) (text string, begins bool) {
	next := p.N == d.next
	if !d.begun || p.Step != d.step || p.N == 0 && d.next > 0 {
		begins, next = true, next || p.N == 0
		d.begun, d.step, d.gap = true, p.Step, false
		d.shown.Reset()
	}
	d.gap = d.gap || !next
	d.next = p.N + 1
	if d.gap {
		return "", begins
	}
	text = p.Text
	if d.shown.Len() == 0 {
		text = strings.TrimLeft(text, " \t\r\n")
	}
	d.shown.WriteString(text)
	return text, begins
}

// Text is the text of the step so far.
func (d *Deltas) Text() string { return d.shown.String() }

// Rest returns the part of the answer that was not shown. continues is false when it is all of it, because what was
// shown is something else.
func (d *Deltas) Rest(answer string) (rest string, continues bool) {
	shown := d.Text()
	if strings.TrimSpace(shown) == strings.TrimSpace(answer) {
		return "", true
	}
	rest, continues = strings.CutPrefix(answer, shown)
	return rest, continues && shown != ""
}
