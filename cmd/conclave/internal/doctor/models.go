package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"conclave/actors/model"
	"conclave/cmd/conclave/internal/term"
	"conclave/pkg/client"
	"conclave/pkg/local"
	llm "conclave/pkg/model"
	"conclave/pkg/model/ollama"
	"conclave/subjects"
)

// checkModels warns of roles in use without their own model, and fails when the model actor does not answer. A role
// whose model is optional is no problem: the check names what its model would improve. It ends with the check of the
// critic and respondent B; respondentB says whether that one runs. It returns the models.
func (x *examination) checkModels(ctx context.Context, c *client.Client, respondentB bool) subjects.ModelList {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	list, err := c.Models(ctx)
	if err != nil {
		x.fail("models", seeLog, "%v", err)
		return list
	}
	x.checkRoles(list)
	x.checkCalls(list)
	x.checkSpeed(list)
	x.checkSecondModel(list, local.AvailableMemory())
	x.checkCritic(list, respondentB)
	return list
}

// checkRoles reports the model of every role in use but the critic's, which has its own check. The demo model in all
// roles is one warning.
func (x *examination) checkRoles(list subjects.ModelList) {
	good, demo := len(list.Roles) > 0, false
	for _, r := range list.Roles {
		switch {
		case r.DemoModel:
			demo = true
		case r.Role == subjects.RoleCritic:
		case r.Improves != "":
			x.add("models", LevelOK, "conclave model pull "+r.Wanted, "%s", optionalModel(r))
		case r.Notice != "": // names its fix
			good = false
			x.warn("models", r.Notice, "for %s", r.Role)
		}
	}
	switch {
	case demo:
		x.warn("models", "run ollama serve (https://ollama.com/download), then conclave model pull "+
			x.cfg.Models.Roles[subjects.RoleAssistant]+"; one at another address: conclave setup --ollama-url <url>",
			"Ollama does not answer at %s: the built-in demo model is used", x.cfg.Models.Ollama.URL)
	case good:
		x.ok("models", "%s, and every role in use has one", term.Count(len(list.Models), "model available",
			"models available"))
	case len(list.Roles) == 0:
		x.fail("models", seeLog, "the model actor lists no role")
	}
}

// checkCalls reports how the assistant's model calls tools, and by what that was decided.
func (x *examination) checkCalls(list subjects.ModelList) {
	for _, r := range list.Roles {
		if r.Role != subjects.RoleAssistant {
			continue
		}
		for _, m := range usedModels(subjects.ModelList{Models: list.Models, Roles: []subjects.RoleModel{r}}) {
			switch test := m.CallTest; {
			case test != nil && m.Calls == subjects.CallConstrained:
				x.ok("tool calls", "%s: under a JSON schema, because %d of %d replies of its self-test were right, "+
					"on %s", m.Name, test.Passed, test.Total, test.Tested.Format(time.DateOnly))
			case test != nil:
				x.ok("tool calls", "%s: native, %d of %d replies of its self-test were right, on %s", m.Name,
					test.Passed, test.Total, test.Tested.Format(time.DateOnly))
			case m.Calls == subjects.CallConstrained:
				x.ok("tool calls", "%s: under a JSON schema, by its size or models.yaml", m.Name)
			case m.Calls == subjects.CallNative && m.Remote != "":
				x.ok("tool calls", "%s: native; models on other machines are not tested", m.Name)
			case m.Calls == subjects.CallNative:
				x.ok("tool calls", "%s: native, not tested yet; it is tested once, half a minute after its first use, "+
					"unless calls in models.yaml is set", m.Name)
			}
		}
	}
}

// checkSpeed reports the measured speed of the models in use.
func (x *examination) checkSpeed(list subjects.ModelList) {
	var measured []string
	for _, m := range usedModels(list) {
		if m.PromptSpeed > 0 || m.OutputSpeed > 0 {
			measured = append(measured, m.Name+": "+term.Speeds(m.PromptSpeed, m.OutputSpeed)+" tokens/s")
		}
	}
	if len(measured) > 0 {
		x.ok("speed", "measured on this machine: %s", strings.Join(measured, "; "))
	}
}

// usedModels returns the available models of the roles in use, each once, in the order of the roles.
func usedModels(list subjects.ModelList) (out []subjects.ModelInfo) {
	latest := func(name string) string { return strings.TrimSuffix(name, ":latest") }
	for _, r := range list.Roles {
		for _, m := range list.Models {
			if latest(m.Name) == latest(r.Model) && !slices.ContainsFunc(out, func(o subjects.ModelInfo) bool {
				return o.Name == m.Name
			}) {
				out = append(out, m)
			}
		}
	}
	return out
}

// checkSecondModel explains what the models beside the assistant's cost on this machine: both in memory, or a swap with
// each change. It is silent when one local model has every role. The decision is Ollama's, which also counts the
// context; so this is an estimate by the sizes of the files and the free memory in bytes, 0 = unknown.
func (x *examination) checkSecondModel(list subjects.ModelList, free int64) {
	var names []string
	var sum, resident int64
	for _, m := range usedModels(list) {
		if m.Remote != "" || m.Backend != model.Ollama || m.Size <= 0 {
			continue
		}
		names = append(names, fmt.Sprintf("%s %s", m.Name, term.Bytes(m.Size)))
		sum += m.Size
		if m.Loaded {
			resident += m.Size
		}
	}
	if len(names) < 2 {
		return
	}
	text := fmt.Sprintf("%d models in use: %s", len(names), strings.Join(names, ", "))
	switch {
	case free == 0:
		x.ok("second model", "%s; they stay loaded together if they fit the memory of the GPU or of this machine and "+
			"OLLAMA_MAX_LOADED_MODELS is not 1, else each change loads one again", text)
	case sum-resident <= free*8/10:
		x.ok("second model", "%s; both fit into the free memory of %s beside what is loaded, unless "+
			"OLLAMA_MAX_LOADED_MODELS is 1 or the GPU is smaller", text, term.Bytes(free))
	default:
		x.warn("second model", "give every role the assistant's model in models.yaml, or choose smaller ones",
			"%s; %s more is needed and %s of memory is free, so each change between them loads a model again", text,
			term.Bytes(sum-resident), term.Bytes(free))
	}
}

// optionalModel describes an optional model that is not installed.
func optionalModel(r subjects.RoleModel) string {
	return fmt.Sprintf("optional, not installed: %s for %s; with it, %s", r.Wanted, r.Role, r.Improves)
}

// checkCritic reports whether answers are graded and by which model, and whether respondent B has its model and a
// critic that compares. running says whether respondent B runs, which a flag of conclave up may have enabled.
func (x *examination) checkCritic(list subjects.ModelList, running bool) {
	cfg := x.cfg
	if cfg.Critic.Enabled {
		x.checkCriticModel(list)
	} else {
		x.ok("critic", "switched off in critic.yaml: answers are not graded")
	}
	b := cfg.Generator.RespondentB
	if (b.Enabled || running) && !cfg.Critic.Enabled {
		x.warn(subjects.RespondentB, "enabled: true in critic.yaml, or respondent_b: {enabled: false} in "+
			"generator.yaml", "respondent B is on and the critic is off, so the answers are not compared")
	}
	switch {
	case !b.Enabled && running:
		x.ok(subjects.RespondentB, "answers every question for comparison; enabled by a flag, so its model is not "+
			"known here")
	case !b.Enabled:
	case b.Model != "" && !client.HasModel(list, b.Model):
		x.warn(subjects.RespondentB, "conclave model pull "+b.Model, "respondent B is on, and its model %s is not "+
			"available", b.Model)
	default:
		x.ok(subjects.RespondentB, "answers every question for comparison, with %s",
			cmp.Or(b.Model, "the assistant's model"))
	}
}

// checkCriticModel reports which model grades, and warns when it is the demo model, which grades nothing, when it
// replaces the wanted one, and when no model has the role.
func (x *examination) checkCriticModel(list subjects.ModelList) {
	for _, r := range list.Roles {
		if r.Role != subjects.RoleCritic {
			continue
		}
		switch {
		case r.DemoModel:
			x.warn("critic", "run ollama serve, then conclave model pull "+cmp.Or(r.Wanted, r.Model),
				"only the built-in demo model is available, so answers stay ungraded")
		case r.Wanted == "" && r.Notice == "":
			x.ok("critic", "%s grades every answer%s", r.Model, ownGrades(list, r.Model))
		case r.Improves != "":
			x.add("critic", LevelOK, "conclave model pull "+r.Wanted, "%s grades every answer; %s", r.Model,
				optionalModel(r))
		case r.Wanted != "" && (r.Notice == "" || strings.Contains(r.Notice, "conclave model pull")):
			x.warn("critic", "conclave model pull "+r.Wanted, "%s is not available, so %s grades", r.Wanted, r.Model)
		default: // the notice names its fix
			x.warn("critic", r.Notice, "%s grades", cmp.Or(r.Model, "no model"))
		}
		return
	}
	x.warn("critic", "name a model for the role critic in models.yaml", "no model has the role critic")
}

// ownGrades continues the line about a critic that is the assistant's model too: what another model would improve, and
// how to choose one. "" for any other critic.
func ownGrades(list subjects.ModelList, critic string) string {
	for _, r := range list.Roles {
		if r.Role == subjects.RoleAssistant && r.Model == critic {
			return ", its own too; optional: with a model that was made to grade (conclave model pull prometheus:7b) " +
				"it does not grade itself"
		}
	}
	return ""
}

// checkOllamaCloud warns when a local Ollama may send prompts to its cloud. A remote server is not asked; one that does
// not answer within a second is not reported here.
func (x *examination) checkOllamaCloud(ctx context.Context, server model.Server) {
	if server.RemoteHost() != "" {
		return
	}
	b, err := ollama.New(ollama.Config{URL: server.URL})
	if err != nil {
		return // the configuration is valid
	}
	defer b.Close()
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	const anyway = "conclave denies cloud models unless allow_remote in models.yaml names them"
	switch on, err := b.IsCloudEnabled(ctx); {
	case errors.Is(err, llm.ErrUnsupported):
		x.ok("cloud", "unknown, this Ollama does not report it; %s", anyway)
	case err != nil: // not running: reported with the models
	case on:
		x.warn("cloud", "start Ollama with OLLAMA_NO_CLOUD=1 to switch it off", "Ollama's cloud is on; %s", anyway)
	default:
		x.ok("cloud", "Ollama's cloud is off; %s", anyway)
	}
}
