package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"
)

// turn is one thing that was said. Text includes the caption of a picture that came with it.
type turn struct {
	conv     string
	id       string // within the conversation
	position int    // in the conversation, from 1
	said     string // date and time as written in the file
	happened time.Time
	speaker  string
	text     string
}

// plain is the turn as one text with nothing else known of it. The baselines use it in every form.
func (t turn) plain() string { return fmt.Sprintf("(%s) %s said, \"%s\"", t.said, t.speaker, t.text) }

// question is one question with its answer's evidence.
type question struct {
	conv     string
	category string
	text     string
	evidence []int // indexes of turns, at least one
}

// dataset is a file of conversations.
type dataset struct {
	turns         []turn
	questions     []question
	conversations []string // in order of appearance
	skipped       int      // questions without evidence among the turns
}

// line is one row of the file.
type line struct {
	Kind     string   `json:"kind"` // turn, question
	Conv     string   `json:"conv"`
	ID       string   `json:"id"`
	Session  int      `json:"session"`
	Date     string   `json:"date"`
	Speaker  string   `json:"speaker"`
	Text     string   `json:"text"`
	Caption  string   `json:"caption"`
	Category string   `json:"category"`
	Question string   `json:"question"`
	Evidence []string `json:"evidence"`
}

// dateLayout is how the file writes the time of a session, as in "1:56 pm on 8 May, 2023".
const dateLayout = "3:04 pm on 2 January, 2006"

// readDataset reads a file with one JSON object per line. It rejects an unknown kind, a date in another layout, and a
// file without turns or questions. Evidence that is no turn of the file does not count; a question with no other is
// skipped.
func readDataset(name string) (*dataset, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	d := &dataset{}
	index := map[[2]string]int{}
	var asked []line
	rows := bufio.NewScanner(f)
	rows.Buffer(nil, 1<<20)
	for n := 1; rows.Scan(); n++ {
		var l line
		err := json.Unmarshal(rows.Bytes(), &l)
		switch {
		case err != nil:
		case l.Kind == "turn":
			index[[2]string{l.Conv, l.ID}] = len(d.turns)
			err = d.addTurn(l)
		case l.Kind == "question":
			asked = append(asked, l)
		default:
			err = fmt.Errorf("there is no kind %q; kinds are turn and question", l.Kind)
		}
		if err != nil {
			return nil, fmt.Errorf("reading %s, line %d: %w", name, n, err)
		}
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("reading %s: %w", name, err)
	}
	for _, l := range asked {
		d.addQuestion(l, index)
	}
	if len(d.turns) == 0 || len(d.questions) == 0 {
		return nil, errors.New("reading " + name + ": it needs turns, and questions with evidence among them")
	}
	return d, nil
}

func (d *dataset) addTurn(l line) error {
	at, err := time.Parse(dateLayout, l.Date)
	if err != nil {
		return err
	}
	if !slices.Contains(d.conversations, l.Conv) {
		d.conversations = append(d.conversations, l.Conv)
	}
	position := 1
	for _, t := range d.turns {
		if t.conv == l.Conv {
			position = t.position + 1
		}
	}
	if l.Caption != "" {
		l.Text += " [shares " + l.Caption + "]"
	}
	d.turns = append(d.turns, turn{
		conv: l.Conv, id: l.ID, position: position, said: l.Date, happened: at,
		speaker: l.Speaker, text: l.Text,
	})
	return nil
}

func (d *dataset) addQuestion(l line, index map[[2]string]int) {
	q := question{conv: l.Conv, category: l.Category, text: l.Question}
	for _, id := range l.Evidence {
		if at, ok := index[[2]string{l.Conv, id}]; ok {
			q.evidence = append(q.evidence, at)
		}
	}
	if len(q.evidence) == 0 {
		d.skipped++
		return
	}
	d.questions = append(d.questions, q)
}
