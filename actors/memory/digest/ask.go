package digest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"conclave/pkg/text"
)

var (
	errNoModel = errors.New("no model configured")
	errNonce   = errors.New("no unused nonce found")
)

// fence is one text of a question to a model, with the name that the model reads.
type fence struct{ name, text string }

func randomNonce() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // it does not fail: the program ends before that
	return hex.EncodeToString(b[:])
}

// askObject asks the model about the texts and decodes the object that it replies with. It returns
// errNoModel without a model, errNonce, the error of the model or of ctx, and that of readReply for a malformed reply.
// The fields are not checked against schema.
func (d *Digester) askObject(ctx context.Context, system string, schema json.RawMessage, fences []fence) (reply,
	error,
) {
	if d.ask == nil {
		return nil, errNoModel
	}
	user, err := d.frameTexts(fences)
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("asking the model: %w", err)
	}
	said, err := d.ask(ctx, system, user, schema)
	if err != nil {
		return nil, fmt.Errorf("asking the model: %w", err)
	}
	return readReply(said)
}

// frameTexts puts each text, cleaned, between two lines that carry a nonce which no text can know; lines that resemble
// those are quoted. It draws another nonce when a text holds it or it has less than 16 characters, and fails with
// errNonce after 4 attempts.
func (d *Digester) frameTexts(fences []fence) (string, error) {
	var nonce string
	for range 4 {
		n := d.nonce()
		held := len(n) < 16
		for _, t := range fences {
			held = held || strings.Contains(t.text, n)
		}
		if !held {
			nonce = n
			break
		}
	}
	if nonce == "" {
		return "", errNonce
	}
	var b strings.Builder
	b.WriteString("The number of this message is " + nonce + ".\n")
	for _, t := range fences {
		b.WriteString("\n[TEXT " + t.name + " " + nonce + "]\n")
		for line := range strings.Lines(cleanText(t.text)) {
			if resemblesFence(line) {
				b.WriteString("> ")
			}
			b.WriteString(line)
		}
		b.WriteString("\n[END OF TEXT " + nonce + "]\n")
	}
	return b.String(), nil
}

// resemblesFence reports whether a line of a text could be taken for a line of the frame around it, in any case,
// spacing or look-alike letters.
func resemblesFence(line string) bool {
	line = strings.TrimSpace(line)
	if len(line) < len("[text") {
		return false
	}
	line = strings.ToLower(text.Normalize(text.Cut(line, 80)))
	inside, ok := strings.CutPrefix(line, "[")
	inside = strings.Join(strings.Fields(inside), "")
	return ok && (strings.HasPrefix(inside, "text") || strings.HasPrefix(inside, "endoftext"))
}
