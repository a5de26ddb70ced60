package orchestrator

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"conclave/pkg/jsonschema"
	"conclave/pkg/text"
	"conclave/subjects"
)

// returnSchema is the JSON schema of an agent's return.
var returnSchema = jsonschema.Literal(`{
	"type": "object",
	"properties": {
		"summary": {"type": "string", "minLength": 1, "maxLength": 1200},
		"status": {"type": "string", "enum": ["success", "partial", "failed"]},
		"artifacts": {"type": "array", "maxItems": 20,
			"items": {"type": "string", "minLength": 1, "maxLength": 1000}},
		"result_quality": {"type": "string", "enum": ["verified", "inferred", "uncertain"]},
		"source": {"type": "string", "enum": ["tool_output", "model_knowledge", "web"]},
		"new_memory_candidates": {"type": "array", "maxItems": 5,
			"items": {"type": "string", "minLength": 1, "maxLength": 400}},
		"failure_reason": {"anyOf": [{"type": "string", "maxLength": 400}, {"type": "null"}]}
	},
	"required": ["status", "summary", "artifacts", "result_quality", "source", "new_memory_candidates",
		"failure_reason"],
	"additionalProperties": false
}`)

var compiledReturn = mustCompile(returnSchema)

// minCopied is how many words of the prompt a summary must repeat to count as copied.
const minCopied = 6

// maxSentences bounds the summary of a return.
const maxSentences = 3

// artifactRules say which files a return may name.
type artifactRules struct {
	work    string   // the task's working folder; "" = none
	written []string // files that the agent's tools reported, absolute
}

// parseReturn reads and checks a return of a model. The error says what is wrong, for the model. With isLast a summary
// that is too long is cut instead: it was not made shorter when it was asked for.
func parseReturn(reply string, files artifactRules, isLast bool) (subjects.AgentReturn, error) {
	var r subjects.AgentReturn
	raw := extractObject(reply)
	if err := compiledReturn.ValidateJSON(raw); err != nil {
		return r, describeInvalid(err)
	}
	if err := json.Unmarshal(raw, &r); err != nil {
		return r, errors.New("the reply is not the JSON object of the schema")
	}
	spans := text.Sentences(r.Summary, maxSentences+1)
	switch {
	case len(spans) > maxSentences && isLast:
		r.Summary = strings.TrimSpace(r.Summary[:spans[maxSentences].From])
	case len(spans) > maxSentences:
		return r, fmt.Errorf("the summary has more than %d sentences", maxSentences)
	case len(strings.Fields(r.Summary)) >= minCopied &&
		strings.Contains(text.Fold(readPrompt("return")), strings.TrimRight(text.Fold(r.Summary), ".")):
		return r, errors.New("the summary repeats the instruction: write the result itself")
	}
	r.FailureReason = strings.TrimSpace(r.FailureReason)
	if r.Status == subjects.ReturnFailed && r.FailureReason == "" {
		return r, errors.New("the status is failed and failure_reason is empty")
	}
	var artifacts []string
	for _, a := range r.Artifacts {
		path, err := files.resolve(a)
		if err != nil {
			return r, err
		}
		if !slices.Contains(artifacts, path) {
			artifacts = append(artifacts, path)
		}
	}
	r.Artifacts = artifacts
	return r, nil
}

// resolve returns the absolute path of an artifact: a file that a tool reported, or one that exists inside the working
// folder. Other paths are not looked at, and every rejection reads the same, so that a return cannot probe the file
// system. A name of several lines is rejected, because the report lists names.
func (f artifactRules) resolve(name string) (string, error) {
	rejected := fmt.Errorf("the artifact %q is neither a file that this agent wrote nor one in the task's working "+
		"folder", text.OneLine(name, 80))
	path := name
	if !filepath.IsAbs(path) {
		path = filepath.Join(f.work, path)
	}
	path = filepath.Clean(path)
	below := f.work != "" && strings.HasPrefix(path, filepath.Clean(f.work)+string(filepath.Separator))
	if path != text.OneLine(path, maxArtifact) || !filepath.IsAbs(path) || !below && !slices.Contains(f.written, path) {
		return "", rejected
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", rejected
	}
	if work, err := filepath.EvalSymlinks(f.work); !slices.Contains(f.written, path) &&
		(err != nil || !strings.HasPrefix(real, work+string(filepath.Separator))) {
		return "", rejected
	}
	return path, nil
}

// maxArtifact bounds the path of an artifact, in bytes.
const maxArtifact = 1000

// failedReturn is the return of an agent without a usable one.
func failedReturn(reason string) subjects.AgentReturn {
	return subjects.AgentReturn{
		Status: subjects.ReturnFailed, Summary: "The subtask failed.", ResultQuality: subjects.QualityUncertain,
		Source: subjects.SourceModelKnowledge, FailureReason: text.OneLine(reason, 400),
	}
}

// evidence is what the runtime knows of an agent's work, independent of its claims.
type evidence struct {
	succeeded int  // tool calls without a fault
	web       int  // those of them that read the web
	verify    bool // the subtask has a verification
	passed    bool // the runtime saw it pass
	code      bool // a coder's work
}

// adjust corrects the quality and the source that an agent claims by what the runtime saw. Code is verified only when
// its verification passed, and no result is verified without a tool call that succeeded.
func (e evidence) adjust(r subjects.AgentReturn) subjects.AgentReturn {
	if e.succeeded == 0 && r.Source != subjects.SourceModelKnowledge {
		r.Source = subjects.SourceModelKnowledge
	}
	if e.web > 0 { // what was read shaped the work, whatever it says
		r.Source = subjects.SourceWeb
	}
	switch {
	case e.verify && !e.passed:
		if r.Status == subjects.ReturnSuccess {
			r.Status = subjects.ReturnPartial
		}
		r.ResultQuality = subjects.QualityUncertain
	case e.passed:
		r.ResultQuality = subjects.QualityVerified
	case r.ResultQuality == subjects.QualityVerified && (e.code || e.succeeded == 0):
		r.ResultQuality = subjects.QualityInferred
	}
	return r
}
