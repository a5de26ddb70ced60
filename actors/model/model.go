// Package model is inference for everyone on the bus. It chooses the model by role and hint, asks every model with one
// frozen set of options, lines up who waits for a GPU, those whom a user waits for before the critic and respondent B, and
// lets nothing leave the machine that is not allowed by name.
//
// It listens on agent.<account>.model.chat, .model.embed, .model.list and .model.pull, and on query.cancel.<query>; it
// speaks in replies only, those of chat and pull in pieces. Who asks is what the server wrote into the subject. Every
// call is in the audit before it is made and with what came of it.
//
// Without Ollama a built-in demo model stands in and says so in every answer. By default it does so only until Ollama is seen
// for the first time: whoever has a model is told when it is gone, and not fobbed off with a script.
package model

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/model"
	"conclave/pkg/model/wire"
	"conclave/pkg/strict"
	"conclave/pkg/text"
	"conclave/subjects"
)

// Audit stores a record. It returns nil only when the record is acknowledged.
type Audit interface {
	Append(ctx context.Context, rec subjects.AuditRecord) error
	Close(ctx context.Context) error
}

// Hasher makes the keyed hash of what a model is asked.
type Hasher interface{ Hash(params []byte) string }

// Model is the actor.
type Model struct {
	cfg     Config
	servers map[string]*server
	script  *server // nil = nothing stands in
	audit   Audit
	hash    Hasher
	calls   calls
	presence
}

// New returns a model actor for the given backends, each under the name of its server in cfg. standIn answers while there
// is no model; nil = nothing does. cfg must be valid.
func New(cfg Config, backends map[string]model.Backend, standIn model.Backend, a Audit, h Hasher) *Model {
	m := &Model{cfg: cfg, servers: map[string]*server{}, audit: a, hash: h}
	m.probe = make(chan struct{}, 1)
	for name, s := range cfg.Servers() {
		if b := backends[name]; b != nil {
			m.servers[name] = newServer(name, s, b)
		}
	}
	if standIn != nil {
		m.script = newServer(Scripted, Server{URL: "http://localhost", Slots: scriptSlots}, standIn)
	}
	return m
}

// scriptSlots is how many the script answers at once: it needs no GPU.
const scriptSlots = 64

// Name implements [actor.Actor].
func (m *Model) Name() string { return "model" }

// Routes implements [actor.Actor]. A chat has a worker of its own while it waits: the order is our own queue's.
func (m *Model) Routes() []actor.Route {
	return []actor.Route{
		actor.ServeStream(subjects.ModelChat, m.onChat, actor.Workers(1024), actor.OnReject(m.onUnreadable(actChat))),
		actor.Serve(subjects.ModelEmbed, m.onEmbed, actor.Workers(512), actor.OnReject(m.onUnreadable(actEmbed))),
		actor.Serve(subjects.ModelListService, m.onNames, actor.Workers(8)),
		actor.ServeStream(subjects.ModelPull, m.onPull, actor.Workers(4), actor.OnReject(m.onUnreadable(actPull))),
		actor.Subscribe(subjects.QueryCancel, m.onCancel),
	}
}

// Close implements [actor.Closer].
func (m *Model) Close(ctx context.Context) error {
	for _, s := range m.servers {
		if c, ok := s.backend.(interface{ Close() }); ok {
			c.Close()
		}
	}
	return m.audit.Close(ctx)
}

// Actions, as the audit has them.
const (
	actChat  = "model.chat"
	actEmbed = "model.embed"
	actPull  = "model.pull"
)

// onChat finds the model, stores that it will be asked, waits for its turn, passes on what it says and stores the
// outcome. The last piece waits for that: a reply without a record is not completed.
func (m *Model) onChat(ctx context.Context, in actor.Msg[subjects.ChatRequest], say func(subjects.ChatChunk) error, out actor.Out) error {
	ctx, end := m.calls.begin(ctx, in.Query)
	defer end()
	begun := out.Now()
	rec := m.record(out, actChat, in.From, in.Session, in.Query, in.Body.Model, in.Body.Messages)
	r, err := readChat(in.Body)
	if err != nil {
		return m.refuse(ctx, out, rec, err)
	}
	t, err := m.route(ctx, wish{role: in.Body.Role, hint: in.Body.Hint, model: in.Body.Model, now: begun})
	rec.Tool = t.name
	if err == nil {
		r, err = t.request(r)
	}
	if err == nil && t.queue().full(in.From) {
		err = errFull
	}
	if err != nil {
		return m.refuse(ctx, out, rec, err)
	}
	if err := m.store(ctx, rec, subjects.AuditBefore, subjects.StatusAllowed, ""); err != nil {
		return noAudit(err)
	}
	last, began, err := m.chat(ctx, t, r, visitor{in.From, keyOf(in.From, in.Session)}, say)
	ended := out.Now()
	if errors.Is(err, model.ErrMissing) {
		t.server.forget()
	}
	if err := m.finish(ctx, rec, began, err); err != nil {
		return err
	}
	last.Final.Model = t.name
	last.Final.Total = ended.Sub(begun)
	return sayLast(last, t, say)
}

// visitor is who waits for a model: the account, and whose turn it is.
type visitor struct{ account, key string }

// keyOf is what takes turns: an account's session, or the account.
func keyOf(account, session string) string { return account + "/" + session }

// chat waits for its turn and passes on all pieces but the last, which it returns. began is whether the model was asked.
// One that gives way before anything was said is asked again in its next turn: for its caller, and for the audit, that is
// the same call of the same model with the same words.
func (m *Model) chat(ctx context.Context, t target, r model.Request, v visitor, say func(subjects.ChatChunk) error) (last model.Chunk, began bool, err error) {
	began, err = t.queue().run(ctx, v.account, v.key, t.there, func(turn context.Context) (err error) {
		last, err = m.reply(turn, t, r, say)
		return err
	})
	return last, began, err
}

// reply is one turn of a chat.
func (m *Model) reply(turn context.Context, t target, r model.Request, say func(subjects.ChatChunk) error) (last model.Chunk, err error) {
	size, said := 0, false
	tell := func(p subjects.ChatChunk) error {
		said = true
		return say(p)
	}
	for c, err := range t.server.backend.Chat(turn, r) {
		if err != nil {
			return model.Chunk{}, gaveWay(turn, err, said)
		}
		if host := c.Final.RemoteHost; host != "" && !t.standIn {
			if err := m.stays(t.name, t.there, host); err != nil {
				return model.Chunk{}, err
			}
		}
		if size += sizeOf(c); size > maxReply {
			return model.Chunk{}, fmt.Errorf("%w: the reply of %s is too long, more than %d MB", model.ErrMalformed, t.name, maxReply>>20)
		}
		if c.Done { // whole: it is not thrown away, though it should have given way a moment ago
			_, err := piece(model.Chunk{Calls: c.Calls}) // before it is on record that all went well
			return c, err
		}
		if turn.Err() != nil { // a server that goes on all the same is not listened to
			break
		}
		if err := sayAll(c, tell); err != nil {
			return model.Chunk{}, err
		}
	}
	if turn.Err() != nil {
		return model.Chunk{}, gaveWay(turn, context.Cause(turn), said)
	}
	return model.Chunk{}, fmt.Errorf("%w: %s stopped without saying that it is done", model.ErrCut, t.name)
}

// onEmbed makes vectors. They are of the model that was asked for or there are none: vectors of two models cannot be
// compared, so nothing but the script, which says so, ever takes a model's place.
func (m *Model) onEmbed(ctx context.Context, in actor.Msg[subjects.EmbedRequest], out actor.Out) (subjects.EmbedReply, error) {
	ctx, end := m.calls.begin(ctx, in.Query)
	defer end()
	begun := out.Now()
	texts, err := json.Marshal(in.Body.Texts)
	if err != nil {
		return subjects.EmbedReply{}, err
	}
	rec := m.record(out, actEmbed, in.From, in.Session, in.Query, in.Body.Model, texts)
	if err := checkEmbed(in.Body); err != nil {
		return subjects.EmbedReply{}, m.refuse(ctx, out, rec, err)
	}
	name := in.Body.Model
	if name == "" {
		name = m.cfg.Roles[subjects.RoleEmbeddings]
	}
	t, err := m.find(ctx, name, begun)
	if rec.Tool = name; err == nil {
		rec.Tool = t.name
		if t.server.vectors.full(in.From) {
			err = errFull
		}
	}
	if err != nil {
		return subjects.EmbedReply{}, m.refuse(ctx, out, rec, err)
	}
	if err := m.store(ctx, rec, subjects.AuditBefore, subjects.StatusAllowed, ""); err != nil {
		return subjects.EmbedReply{}, noAudit(err)
	}
	v, began, err := m.embed(ctx, t, in.Body.Texts, visitor{in.From, keyOf(in.From, in.Session)})
	if errors.Is(err, model.ErrMissing) {
		t.server.forget()
	}
	if err := m.finish(ctx, rec, began, err); err != nil {
		return subjects.EmbedReply{}, err
	}
	return subjects.EmbedReply{Vectors: v.Values, Model: t.name}, nil
}

func (m *Model) embed(ctx context.Context, t target, texts []string, v visitor) (vectors model.Vectors, began bool, err error) {
	began, err = t.server.vectors.run(ctx, v.account, v.key, t.there, func(turn context.Context) (err error) {
		if vectors, err = t.server.backend.Embed(turn, t.there, texts); err != nil {
			return gaveWay(turn, err, false)
		}
		if len(vectors.Values) != len(texts) || slices.ContainsFunc(vectors.Values, func(v []float32) bool { return len(v) == 0 || len(v) > maxVector }) {
			return fmt.Errorf("%w: the vectors of %s do not fit the texts", model.ErrMalformed, t.name)
		}
		return nil
	})
	return vectors, began, err
}

// onPull fetches a model, for the user only. The server's grants say the same.
func (m *Model) onPull(ctx context.Context, in actor.Msg[subjects.PullRequest], say func(subjects.PullProgress) error, out actor.Out) error {
	rec := m.record(out, actPull, in.From, in.Session, in.Query, in.Body.Model, []byte(in.Body.Model))
	if !slices.Contains(subjects.UserAccounts, in.From) {
		return m.refuse(ctx, out, rec, subjects.Faultf(subjects.CodeDenied, "only the user fetches models: conclave model pull"))
	}
	if err := checkName(in.Body.Model); err != nil {
		rec.Tool = ""
		return m.refuse(ctx, out, rec, subjects.Faultf(subjects.CodeMalformed, "%v", err))
	}
	at, there := m.cfg.Split(in.Body.Model)
	s := m.servers[at]
	var err error
	if s == nil {
		err = fmt.Errorf("%w: there is no %s to fetch models", model.ErrUnsupported, at)
	} else {
		err = m.stays(in.Body.Model, there, s.away)
	}
	if err != nil {
		return m.refuse(ctx, out, rec, err)
	}
	if err := m.store(ctx, rec, subjects.AuditBefore, subjects.StatusAllowed, ""); err != nil {
		return noAudit(err)
	}
	err = m.pull(ctx, s, there, say)
	s.forget()
	return m.finish(ctx, rec, true, err)
}

func (m *Model) pull(ctx context.Context, s *server, there string, say func(subjects.PullProgress) error) error {
	for p, err := range s.backend.Pull(ctx, there) {
		if err != nil {
			return err
		}
		err := say(subjects.PullProgress{Status: text.Clip(p.Status, 500), Digest: text.Clip(p.Digest, 200), Total: p.Total, Completed: p.Completed})
		if err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

// onCancel stops what is asked for a query, whether it waits or is being answered.
func (m *Model) onCancel(_ context.Context, in actor.Msg[subjects.Cancel], _ actor.Out) error {
	if len(in.Tokens) == 1 {
		m.calls.stop(in.Tokens[0])
	}
	return nil
}

// onNames tells which models there are and which role each has now. A server that is not there is told in the roles.
func (m *Model) onNames(ctx context.Context, _ actor.Msg[subjects.Empty], out actor.Out) (subjects.ModelList, error) {
	now := out.Now()
	list := subjects.ModelList{Models: m.atHand(ctx, now), Roles: []subjects.RoleModel{}}
	for _, role := range strict.Keys(m.cfg.Roles) {
		list.Roles = append(list.Roles, m.roleNow(ctx, role, now))
	}
	if ctx.Err() != nil {
		return subjects.ModelList{}, fault(ctx, context.Cause(ctx))
	}
	return list, nil
}

// roleNow is the model that would answer in a role.
func (m *Model) roleNow(ctx context.Context, role string, now time.Time) subjects.RoleModel {
	var t target
	var err error
	if role == subjects.RoleEmbeddings {
		t, err = m.find(ctx, m.cfg.Roles[role], now)
	} else {
		t, err = m.route(ctx, wish{role: role, now: now})
	}
	if err != nil {
		name := m.cfg.Roles[role]
		return subjects.RoleModel{Role: role, Model: name, Notice: text.Clip(fault(ctx, err).Text, maxText), Window: m.cfg.For(name).Window}
	}
	return subjects.RoleModel{
		Role: role, Model: t.name, Wanted: t.wanted, Notice: t.notice, Window: t.window(), Stream: t.streams(),
		Tools: t.info.Tools, Thinking: t.info.Thinking, DemoModel: t.standIn,
	}
}

// atHand lists the models of all servers that may be asked.
func (m *Model) atHand(ctx context.Context, now time.Time) []subjects.ModelInfo {
	models := []subjects.ModelInfo{}
	add := func(s *server, name string, i model.Info, refused error) {
		info := subjects.ModelInfo{
			Name: name, Backend: s.name, Size: i.Size, Family: text.Clip(i.Family, 100), Parameters: text.Clip(i.Parameters, 100), Window: i.Window,
			Tools: i.Tools, Thinking: i.Thinking, Vision: i.Vision, Embedding: i.Embedding, Loaded: i.Loaded, Remote: text.Clip(i.Remote, 200),
		}
		if refused != nil {
			info.Refused = text.Clip(refused.Error(), maxText)
		}
		models = append(models, info)
	}
	if m.cfg.DemoModel == DemoAlways && m.script != nil || m.alone(ctx, now) {
		if i, err := m.script.look(ctx, Scripted, now); err == nil {
			add(m.script, Scripted, i, nil)
		}
		return models
	}
	for _, at := range strict.Keys(m.servers) {
		s := m.servers[at]
		if s.away != "" && len(m.cfg.Remote) == 0 {
			continue // not even the question what is there leaves the machine
		}
		infos, err := s.list(ctx)
		if err != nil {
			continue // the roles that it has say why
		}
		for _, i := range infos {
			name := i.Name
			if at != Ollama {
				name = at + "/" + name
			}
			if i.Remote == "" {
				i.Remote = s.away
			}
			refused := m.stays(name, i.Name, i.Remote)
			if refused == nil {
				t, err := m.find(ctx, name, now)
				if refused = err; err == nil {
					more := t.info
					i.Window, i.Tools, i.Thinking, i.Vision, i.Embedding = max(i.Window, more.Window), more.Tools, more.Thinking, more.Vision, more.Embedding
				}
			}
			add(s, name, i, refused)
		}
	}
	return models
}

// onUnreadable records a call that could not even be read.
func (m *Model) onUnreadable(action string) func(context.Context, actor.Rejection, actor.Out) {
	return func(ctx context.Context, rej actor.Rejection, out actor.Out) {
		from := ""
		if len(rej.Tokens) > 0 && subjects.CheckToken(rej.Tokens[0]) == nil {
			from = rej.Tokens[0]
		}
		rec := subjects.AuditRecord{ID: out.NewID(), AgentID: from, Action: action, Session: rej.Session, Query: rej.Query}
		if err := m.store(ctx, rec, subjects.AuditBefore, subjects.StatusRefused, rej.Fault.Code); err != nil {
			out.LogError(fmt.Errorf("recording a refused call: %w", err))
		}
	}
}

// readChat reads a request and holds it to what any model could take.
func readChat(q subjects.ChatRequest) (model.Request, error) {
	r, err := wire.FromRequest(q)
	if err != nil {
		return r, err
	}
	bad := func(format string, a ...any) (model.Request, error) {
		return r, subjects.Faultf(subjects.CodeMalformed, format, a...)
	}
	switch o := r.Options; {
	case q.Role != "" && subjects.CheckToken(q.Role) != nil:
		return bad("the role may hold letters, digits, - and _ only")
	case q.Hint != "" && !slices.Contains(Hints, q.Hint):
		return bad("the hint is none of %v", Hints)
	case q.Model != "" && checkName(q.Model) != nil:
		return bad("%v", checkName(q.Model))
	case len(r.Format) > 0 && len(r.Tools) > 0:
		return bad("a format and tools at once: models then make no calls; ask with the tools first")
	case o.Predict < 0:
		return bad("predict must not be negative")
	case o.Temperature != nil && (*o.Temperature < 0 || *o.Temperature > maxTemperature):
		return bad("the temperature is not between 0 and %d", maxTemperature)
	case len(o.Stop) > maxStops:
		return bad("more than %d texts to stop at", maxStops)
	case len(r.Tools) > maxTools:
		return bad("more than %d tools", maxTools)
	}
	for i, msg := range r.Messages {
		if !slices.Contains([]string{model.System, model.User, model.Assistant, model.ToolRole}, msg.Role) {
			return bad("message %d: a role is system, user, assistant or tool", i)
		}
	}
	for _, tool := range r.Tools {
		if tool.Name == "" || actor.CheckJSONObject(tool.Parameters) != nil {
			return bad("a tool needs a name and parameters that are one JSON object")
		}
	}
	return r, nil
}

func checkEmbed(q subjects.EmbedRequest) error {
	if q.Model != "" {
		if err := checkName(q.Model); err != nil {
			return subjects.Faultf(subjects.CodeMalformed, "%v", err)
		}
	}
	if len(q.Texts) == 0 || len(q.Texts) > maxTexts {
		return subjects.Faultf(subjects.CodeMalformed, "%d texts; between 1 and %d make vectors in one request", len(q.Texts), maxTexts)
	}
	return nil
}

// Bounds on what is asked and answered.
const (
	maxStops  = 16
	maxTools  = 128
	maxTexts  = 128
	maxVector = 1 << 16   // numbers
	maxReply  = 16 << 20  // bytes of all pieces
	maxPiece  = 256 << 10 // bytes of one
	maxText   = 1000      // of an error
)

// request is what the model is really asked: with its own window, whoever asks.
func (t target) request(r model.Request) (model.Request, error) {
	if len(r.Tools) > 0 && !t.info.Tools {
		return r, fmt.Errorf("%w: %s; tools have to be described in the prompt", model.ErrNoTools, t.name)
	}
	r.Model = t.there
	r.Stream = r.Stream && t.streams()
	r.Think = t.think(r.Think)
	o := &r.Options
	o.Window, o.KeepAlive = t.window(), t.opts.KeepAlive
	if o.Predict == 0 || o.Predict > t.opts.Predict {
		o.Predict = t.opts.Predict
	}
	if o.Temperature == nil && t.opts.Temperature != nil {
		v := float64(*t.opts.Temperature)
		o.Temperature = &v
	}
	return r, nil
}

func (t target) streams() bool { return t.opts.Stream == nil || *t.opts.Stream }

// think says whether to think aloud: always explicitly, because what goes without saying differs. Only servers that do
// not tell what a model can are asked for what the request says.
func (t target) think(asked *bool) *bool {
	if t.server.name == OpenAI && !t.info.Thinking {
		return asked
	}
	on := t.info.Thinking && (asked == nil || *asked)
	return &on
}
