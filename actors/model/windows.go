package model

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"unicode/utf8"

	"conclave/pkg/model"
	"conclave/subjects"
)

const (
	// maxEmbedWindow is the most tokens of one embedded window: the server's own default bounds larger models, and one
	// vector of a longer text says little.
	maxEmbedWindow = 2048
	// windowBytes is the assumed size of a token: low, because a window that is too long costs a request more.
	windowBytes = 3
	// minWindowBytes is the size below which a window is no longer halved.
	minWindowBytes = 32
	embedBatch     = 32 // windows of one request
)

// textEmbedder embeds texts of any length with a model that has a window. A text is split into windows between words;
// its vector is the mean of theirs. The server rejects a request as a whole when one window is too long, so that the
// windows of a rejected request are sent one by one, and halved until the server accepts them.
type textEmbedder struct {
	backend model.Embedder
	name    string // at the server
	prefix  string // before each window
	bytes   int    // of one window, without prefix
}

// newTextEmbedder returns an embedder for a model and a task of [subjects.EmbedRequest].
func newTextEmbedder(t target, task string) textEmbedder {
	e := textEmbedder{backend: t.server.backend, name: t.backendName}
	switch task {
	case subjects.EmbedQuery:
		e.prefix = t.opts.QueryPrefix
	case subjects.EmbedDocument:
		e.prefix = t.opts.DocumentPrefix
	}
	window := maxEmbedWindow
	if t.info.Window > 0 {
		window = min(window, t.info.Window)
	}
	e.bytes = max(minWindowBytes, window*windowBytes-len(e.prefix))
	return e
}

// window is a part of a text.
type window struct {
	of   int // index of the text
	text string
}

// embedTexts returns one vector per text; a text in failed has an empty one. It fails when the server cannot be used,
// and with the reason of the first text when none has a vector.
func (e textEmbedder) embedTexts(ctx context.Context, texts []string) (vectors [][]float32, failed map[int]error,
	err error,
) {
	var all []window
	for i, t := range texts {
		for _, part := range splitWindows(t, e.bytes) {
			all = append(all, window{i, part})
		}
	}
	sums, counts := make([][]float32, len(texts)), make([]int, len(texts))
	failed = map[int]error{}
	add := func(w window, v []float32, err error) {
		if err == nil {
			err = addWindow(&sums[w.of], v, counts[w.of])
		}
		if err != nil {
			failed[w.of] = err
			return
		}
		counts[w.of]++
	}
	for len(all) > 0 {
		n := min(embedBatch, len(all))
		if err := e.embedBatch(ctx, all[:n], add); err != nil {
			return nil, nil, err
		}
		all = all[n:]
	}
	for i := range sums {
		if _, bad := failed[i]; bad {
			sums[i] = []float32{}
		} else if counts[i] > 1 {
			normalize(sums[i])
		}
	}
	if err, bad := failed[0]; bad && len(failed) == len(texts) {
		return nil, nil, err
	}
	return sums, failed, nil
}

// embedBatch embeds windows in one request, or one by one when the server rejects it. It calls add for each of them,
// with the vector or with why there is none. An error means that the server cannot be used.
func (e textEmbedder) embedBatch(ctx context.Context, batch []window, add func(window, []float32, error)) error {
	texts := make([]string, len(batch))
	for i, w := range batch {
		texts[i] = e.prefix + w.text
	}
	v, err := e.backend.Embed(ctx, e.name, texts)
	if err == nil && len(v.Values) != len(batch) {
		err = fmt.Errorf("%w: %d vectors for %d texts", model.ErrMalformed, len(v.Values), len(batch))
	}
	switch {
	case err == nil:
		for i, w := range batch {
			add(w, v.Values[i], nil)
		}
		return nil
	case ctx.Err() != nil || !isRejection(err):
		return err
	case len(batch) > 1:
		for i := range batch {
			if err := e.embedBatch(ctx, batch[i:i+1], add); err != nil {
				return err
			}
		}
		return nil
	case errors.Is(err, model.ErrTooLong) && len(batch[0].text) > minWindowBytes:
		var halves []window
		for _, part := range splitWindows(batch[0].text, (len(batch[0].text)+1)/2) {
			halves = append(halves, window{batch[0].of, part})
		}
		return e.embedBatch(ctx, halves, add)
	}
	add(batch[0], nil, err)
	return nil
}

// isRejection reports whether an error may be about one of the texts, and not about the server or the model.
func isRejection(err error) bool {
	return !model.IsAny(err, model.ErrUnreachable, model.ErrMissing, model.ErrBusy, model.ErrRemote,
		model.ErrUnsupported, model.ErrUnauthorized, model.ErrCut, model.ErrRunner)
}

// splitWindows splits a text into parts of at most size bytes, between words where there are any, and never inside a
// character. A text that fits, also an empty one, is one part as it is.
func splitWindows(s string, size int) (parts []string) {
	size = max(size, utf8.UTFMax)
	for len(s) > size {
		end := size
		for end > 0 && !utf8.RuneStart(s[end]) {
			end--
		}
		if end == 0 { // not UTF-8
			end = size
		}
		if blank := strings.LastIndexAny(s[:end], " \n\t"); blank > end/2 {
			end = blank + 1
		}
		parts = append(parts, s[:end])
		s = s[end:]
	}
	if s != "" || len(parts) == 0 {
		parts = append(parts, s)
	}
	return parts
}

// addWindow adds v to the sum of n vectors, each as a unit vector, so that each window counts the same; an only one
// stays as it is. It rejects vectors that are empty, too long or of another size.
func addWindow(sum *[]float32, v []float32, n int) error {
	switch {
	case len(v) == 0 || len(v) > maxVector:
		return fmt.Errorf("%w: a vector of %d numbers", model.ErrMalformed, len(v))
	case *sum == nil:
		*sum = append([]float32{}, v...)
		return nil
	case len(*sum) != len(v):
		return fmt.Errorf("%w: vectors of %d and of %d numbers", model.ErrMalformed, len(*sum), len(v))
	}
	if n == 1 {
		normalize(*sum)
	}
	unit := append([]float32{}, v...)
	normalize(unit)
	for i, x := range unit {
		(*sum)[i] += x
	}
	return nil
}

// normalize scales v to length 1; a zero vector stays as it is.
func normalize(v []float32) {
	square := 0.0
	for _, x := range v {
		square += float64(x) * float64(x)
	}
	if square == 0 {
		return
	}
	scale := float32(1 / math.Sqrt(square))
	for i := range v {
		v[i] *= scale
	}
}
