package digest

import (
	_ "embed"
	"encoding/json"
)

// What is said to a model stands in the files beside, which people review as text. The forms that it fills in stand
// here, with the fields in the order in which a model should think of them.

var (
	//go:embed answer.md
	answerPrompt string
	//go:embed note.md
	notePrompt string
	//go:embed segments.md
	segmentsPrompt string
)

// Values of fields, as the schema and the prompts have them.
var (
	intents       = []string{"ask fact", "ask how", "tell preference", "tell fact", "task", "chat"}
	sentiments    = []string{"positive", "neutral", "negative"}
	relationKinds = []string{"person", "place", "thing", kindOther}
	tenses        = []string{tenseIs, tenseWas}
)

// kindOther is the kind of an object of an unknown kind.
const kindOther = "other"

var (
	digestSchema = json.RawMessage(`{"type": "object", "additionalProperties": false,
	"required": ["name", "description", "intent", "sentiment", "entities", "relations"],
	"properties": {
	"name": {"type": "string"},
	"description": {"type": "string"},
	"intent": {"type": "string", "enum": ["ask fact", "ask how", "tell preference", "tell fact", "task", "chat"]},
	"sentiment": {"type": "string", "enum": ["positive", "neutral", "negative"]},
	"entities": {"type": "array", "maxItems": 12, "items": {"type": "string"}},
	"relations": {"type": "array", "maxItems": 8, "items": {
		"type": "object", "additionalProperties": false, 
		"required": ["subject", "predicate", "object", "kind", "tense", "from", "until"],
		"properties": {
			"subject": {"type": "string"}, "predicate": {"type": "string"}, "object": {"type": "string"},
			"kind": {"type": "string", "enum": ["person", "place", "thing", "other"]},
			"tense": {"type": "string", "enum": ["is", "was"]},
			"from": {"type": "string"}, "until": {"type": "string"}}}}}}`)

	segmentsSchema = json.RawMessage(`{"type": "object", "additionalProperties": false, "required": ["segments"],
	"properties": {"segments": {"type": "array", "maxItems": 12, "items": {
		"type": "object", "additionalProperties": false, "required": ["n", "quote"],
		"properties": {"n": {"type": "integer"}, "quote": {"type": "string"}}}}}}`)
)
