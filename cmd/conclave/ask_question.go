package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode"

	"conclave/subjects"
)

// maxReference is the most that may be said about what a good answer says.
const maxReference = 16 << 10

// maxQuestion is the most that is read: what would not fit into a message is refused before it is sent.
var maxQuestion = subjects.QueryReceived.Limit()

// question puts the question together from the words and stdin.
func (a *app) question(ctx context.Context, words []string) (string, error) {
	text := strings.TrimSpace(strings.Join(words, " "))
	whole := len(words) == 0 || len(words) == 1 && words[0] == "-"
	if whole {
		text = ""
	}
	if whole || piped(a.stdin) {
		more, err := a.readAll(ctx, maxQuestion, whole)
		if err != nil {
			return "", err
		}
		if more = strings.Trim(more, "\r\n"); strings.TrimSpace(more) != "" {
			text = strings.TrimPrefix(text+"\n\n"+more, "\n\n")
		}
	}
	switch {
	case text == "":
		return "", usage("there is no question: write it behind conclave ask, or pipe it in")
	case len(text) > maxQuestion:
		return "", usage("the question is larger than %s: name the file instead of piping it in, or shorten it", size(int64(maxQuestion)))
	}
	return text, nil
}

// piped reports whether somebody has put something before us: a pipe or a file. A terminal and /dev/null are neither.
func piped(r io.Reader) bool {
	f, is := r.(*os.File)
	if !is {
		return r != nil
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice == 0
}

// readAll reads stdin to its end, or one byte more than is allowed. Reading cannot be interrupted, so it is left behind
// when the user has had enough.
func (a *app) readAll(ctx context.Context, limit int, asked bool) (string, error) {
	if a.stdin == nil {
		return "", nil
	}
	type read struct {
		data []byte
		err  error
	}
	got := make(chan read, 1)
	go func() {
		data, err := io.ReadAll(io.LimitReader(a.stdin, int64(limit)+1))
		got <- read{data, err}
	}()
	hint := time.NewTimer(2 * time.Second)
	defer hint.Stop()
	f, is := a.stdin.(*os.File)
	switch {
	case is && asked && isTerminal(f):
		a.say("type the question and end it with Ctrl-D")
		hint.Stop()
	case !isTerminal(a.stderr): // a program that takes its time needs no hint
		hint.Stop()
	}
	for {
		select {
		case r := <-got:
			if r.err != nil {
				return "", fmt.Errorf("reading the question from stdin: %w", r.err)
			}
			return strings.ToValidUTF8(string(r.data), "\uFFFD"), nil
		case <-hint.C:
			a.say("waiting for the end of stdin, which is read too; < /dev/null if there is nothing to read")
		case <-ctx.Done():
			return "", fail(exitFailed, "stopped before anything was asked", "ask again")
		}
	}
}

// checkModel refuses what no model is called.
func checkModel(name string) error {
	odd := func(r rune) bool { return !unicode.IsPrint(r) || unicode.IsSpace(r) }
	if name == "" || len(name) > 200 || strings.ContainsFunc(name, odd) {
		return usage("%q is not the name of a model: write one such as gemma4:12b", clip(name, 40))
	}
	return nil
}
