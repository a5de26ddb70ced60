package actor

import (
	"bytes"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"conclave/pkg/strict"
	"conclave/subjects"
)

// payloads makes one value of every payload type.
var payloads = []func() any{
	newPayload[subjects.Query], newPayload[subjects.Cancel], newPayload[subjects.Delta], newPayload[subjects.Response],
	newPayload[subjects.ToolCall], newPayload[subjects.Usage], newPayload[subjects.Dialog],
	newPayload[subjects.AgentState],
	newPayload[subjects.ToolSchema], newPayload[subjects.ToolRequest], newPayload[subjects.ToolOrder],
	newPayload[subjects.HostRules], newPayload[subjects.ToolResult], newPayload[subjects.Labels],
	newPayload[subjects.Parked],
	newPayload[subjects.LayerVerdict], newPayload[subjects.ExplainRequest], newPayload[subjects.Budget],
	newPayload[subjects.Taint], newPayload[subjects.ApprovalQuery], newPayload[subjects.ApprovalList],
	newPayload[subjects.Approval], newPayload[subjects.ApprovalRule], newPayload[subjects.SecretUse],
	newPayload[subjects.ToolOutput], newPayload[subjects.DiscoverRequest], newPayload[subjects.DiscoverReply],
	newPayload[subjects.UnavailableTool],
	newPayload[subjects.Verdict],
	newPayload[subjects.SpawnRequest], newPayload[subjects.SpawnReply], newPayload[subjects.ApprovalRequest],
	newPayload[subjects.ApprovalDecision], newPayload[subjects.ApprovalReply], newPayload[subjects.SessionConfig],
	newPayload[subjects.Done],
	newPayload[subjects.ChatRequest], newPayload[subjects.ChatChunk], newPayload[subjects.EmbedRequest],
	newPayload[subjects.EmbedReply], newPayload[subjects.Empty], newPayload[subjects.ModelList],
	newPayload[subjects.ModelCall], newPayload[subjects.Critique], newPayload[subjects.Claim],
	newPayload[subjects.Pairwise],
	newPayload[subjects.Feedback], newPayload[subjects.Reward], newPayload[subjects.MemoryQuery],
	newPayload[subjects.MemoryWriteRequest], newPayload[subjects.MemoryWriteReply], newPayload[subjects.MemoryReply],
	newPayload[subjects.MemoryIDs], newPayload[subjects.MemoryAdminRequest], newPayload[subjects.MemoryAdminReply],
	newPayload[subjects.MemoryEvent],
	newPayload[subjects.MemoryEntry], newPayload[subjects.Provenance], newPayload[subjects.Grades],
	newPayload[subjects.MemoryHit], newPayload[subjects.MemoryReason], newPayload[subjects.MemoryDocument],
	newPayload[subjects.DocumentPiece], newPayload[subjects.MemoryWriteResult], newPayload[subjects.MemoryEdit],
	newPayload[subjects.Relation], newPayload[subjects.MemoryStatus], newPayload[subjects.MemoryRecall],
	newPayload[subjects.MemorySummary], newPayload[subjects.MemorySummaryEntry],
	newPayload[subjects.Deliberation], newPayload[subjects.TaskProgress], newPayload[subjects.AgentReturn],
	newPayload[subjects.Task], newPayload[subjects.Subtask], newPayload[subjects.Verify],
	newPayload[subjects.FolderRules], newPayload[subjects.TaskChange], newPayload[subjects.TaskChanged],
	newPayload[subjects.ConfigSet], newPayload[subjects.DeadLetter], newPayload[subjects.SecretGet],
	newPayload[subjects.SecretValue],
	newPayload[subjects.AuditRecord], newPayload[subjects.AuditHead], newPayload[subjects.AuditGenesis],
	newPayload[subjects.Fault], newPayload[subjects.Denial],
	newPayload[subjects.Note], newPayload[subjects.ModelInfo], newPayload[subjects.CallTest],
	newPayload[subjects.RoleModel], newPayload[subjects.PullRequest], newPayload[subjects.PullProgress],
	newPayload[subjects.Grant], newPayload[subjects.Grants], newPayload[subjects.LookAlikeHost],
	newPayload[subjects.SessionChange], newPayload[subjects.SessionChanged], newPayload[subjects.AuditLogHead],
	newPayload[subjects.AuditCapacity],
	newPayload[subjects.Attachment], newPayload[subjects.PromptReading], newPayload[subjects.EmbedFailure],
	newPayload[subjects.Judgement], newPayload[subjects.LineageAgent], newPayload[subjects.Schedule],
	newPayload[subjects.ScheduleRun], newPayload[subjects.ScheduleChange],
}

func newPayload[T any]() any { return new(T) }

// Every payload type is in the list, and none has a field that the checkers cannot see.
func TestEveryPayloadIsFuzzed(t *testing.T) {
	t.Parallel()
	var listed []string
	for _, p := range payloads {
		typ := reflect.TypeOf(p()).Elem()
		listed = append(listed, typ.Name())
		fields := reflect.VisibleFields(typ)
		if len(fields) > 64 {
			t.Errorf("%s has more fields than seen has bits", typ)
		}
		for _, f := range fields {
			if f.Anonymous && f.Type.Kind() == reflect.Struct && f.Tag == "" {
				continue // its fields stand for themselves
			}
			if !f.IsExported() || f.Tag.Get("json") == "" || strings.HasPrefix(f.Tag.Get("json"), ",") {
				t.Errorf("%s.%s has no name of its own on the bus", typ, f.Name)
			}
		}
	}
	for _, name := range []string{
		"payloads.go", "query.go", "tool_call.go", "approval.go", "model.go", "grade.go",
		"task.go", "memory.go", "audit.go", "fault.go", "attachment.go", "judgement.go", "schedule.go",
	} {
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join("..", "..", "subjects", name), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok || g.Tok != token.TYPE {
				continue
			}
			for _, s := range g.Specs {
				ts := s.(*ast.TypeSpec)
				if _, ok := ts.Type.(*ast.StructType); ok && !slices.Contains(listed, ts.Name.Name) {
					t.Errorf("subjects.%s is not among the payloads", ts.Name.Name)
				}
			}
		}
	}
}

// fillFields sets every field of a value, so that the seeds cover each one.
func fillFields(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fillFields(v.Elem())
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)))
			return
		}
		for i := range v.NumField() {
			fillFields(v.Field(i))
		}
	case reflect.Slice:
		if v.Type() == reflect.TypeFor[json.RawMessage]() {
			v.SetBytes([]byte(`{"a":[1,{"b":null}]}`))
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fillFields(v.Index(0))
		fillFields(v.Index(1))
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		e := reflect.New(v.Type().Elem()).Elem()
		fillFields(e)
		v.SetMapIndex(reflect.ValueOf("k"), e)
	case reflect.String:
		v.SetString("text")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(-5_000_000_000)
	case reflect.Uint64:
		v.SetUint(1 << 63)
	case reflect.Uint8:
		v.SetUint(200)
	case reflect.Float32, reflect.Float64:
		v.SetFloat(0.5)
	default:
		panic(v.Type().String())
	}
}

// Every payload survives encoding and decoding, in both codecs, full and empty.
func TestPayloadsRoundTrip(t *testing.T) {
	t.Parallel()
	for _, p := range payloads {
		for _, c := range []subjects.Codec{subjects.JSON, subjects.Msgpack} {
			filled := p()
			fillFields(reflect.ValueOf(filled).Elem())
			data, err := encode(c, filled)
			if err != nil {
				t.Fatalf("%T as %s: %v", filled, c, err)
			}
			got := p()
			if err := decode(c, data, got); err != nil {
				t.Errorf("%T as %s: %v: %q", filled, c, err, data)
				continue
			}
			if again, err := encode(c, got); err != nil || !bytes.Equal(again, data) {
				t.Errorf("%T as %s: %q became %q, %v", filled, c, data, again, err)
			}
			if data, err := encode(c, p()); err != nil || decode(c, data, p()) != nil {
				t.Errorf("empty %T as %s: %q, %v, %v", p(), c, data, err, decode(c, data, p()))
			}
		}
	}
}

// A claimed length must not be allocated. The msgpack package alone would allocate 400 GB.
func TestClaimedLengthsAreNotAllocated(t *testing.T) {
	for _, tt := range []struct {
		name string
		v    any
		data string
	}{
		{"tools", &subjects.DiscoverReply{}, "\x81\xa5tools\xdd\xff\xff\xff\xff"},
		{"tool calls", &subjects.Response{}, "\x81\xaatool_calls\xdd\x7f\xff\xff\xff\x80"},
		{"vectors", &subjects.EmbedReply{}, "\x81\xa7vectors\x92\xdd\xff\xff\xff\xff\x01\x02"},
		{"texts", &subjects.EmbedRequest{}, "\x81\xa5texts\xdd\x00\xff\xff\xff\xa1x"},
		{"a map", &subjects.ConfigSet{}, "\x81\xa6values\xdf\xff\xff\xff\xff\xa1x\xa1y"},
		{"bytes", &subjects.SecretValue{}, "\x81\xa6sealed\xc6\xff\xff\xff\xffx"},
		{"a text", &subjects.Query{}, "\x81\xa5query\xdb\xff\xff\xff\xffx"},
		{"an extension", &subjects.ApprovalRequest{}, "\x81\xa7expires\xc9\xff\xff\xff\xff\xffx"},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		err := decode(subjects.Msgpack, []byte(tt.data), tt.v)
		runtime.ReadMemStats(&after)
		if err == nil {
			t.Errorf("%s: read %+v", tt.name, tt.v)
		}
		if took := after.TotalAlloc - before.TotalAlloc; took > 64<<10 {
			t.Errorf("%s: took %d bytes for %d", tt.name, took, len(tt.data))
		}
	}
}

func FuzzDecodeJSON(f *testing.F) {
	seedPayloads(f, subjects.JSON)
	for _, s := range []string{
		``, `{}`, `[]`, `null`, `{"a":1,"a":2}`, `{"error":{"Code":"x"}}`, `{"args":null}`,
		`{"args":{"a":{"b":[1,2,{"c":"d"}]}}}`, `{"created":"2026-01-02T03:04:05.6+07:00"}`,
		"{\"query\":\"\xff\\ud800\"}", `{"values":{"a":"b"}} {}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) { decodeAll(t, subjects.JSON, data) })
}

func FuzzDecodeMsgpack(f *testing.F) {
	seedPayloads(f, subjects.Msgpack)
	for _, s := range []string{
		"", "\x80", "\x90", "\xc0", "\x82\xa1a\x01\xa1a\x02", "\xdf\xff\xff\xff\xff",
		"\x81\xa4args\xc4\x02{}", "\x81\xa7created\xd7\xff\x00\x00\x00\x00\x00\x00\x00\x00",
		"\x81\xa5tools\xdd\xff\xff\xff\xff",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) { decodeAll(t, subjects.Msgpack, data) })
}

func seedPayloads(f *testing.F, c subjects.Codec) {
	for _, p := range payloads {
		v := p()
		fillFields(reflect.ValueOf(v).Elem())
		data, err := encode(c, v)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
}

// decodeAll decodes data as every payload. A decoded value must survive another round trip.
func decodeAll(t *testing.T, c subjects.Codec, data []byte) {
	for _, p := range payloads {
		v := p()
		if err := decode(c, data, v); err != nil {
			if len(err.Error()) > 400 {
				t.Errorf("%T: a long error: %v", v, err)
			}
			continue
		}
		first, err := encode(c, v)
		if err != nil {
			t.Fatalf("%T was read from %q and cannot be written: %v", v, data, err)
		}
		w := p()
		if err := decode(c, first, w); err != nil {
			t.Fatalf("%T was written as %q and cannot be read: %v", v, first, err)
		}
		second, err := encode(c, w)
		if err != nil || !bytes.Equal(first, second) {
			t.Fatalf("%T: %q became %q, %v", v, first, second, err)
		}
	}
}

func FuzzEnvelope(f *testing.F) {
	now := time.Unix(1_800_000_000, 0)
	f.Add("agent.operator.tool.request.x", "q1", "s1", "1800000060000",
		"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "application/json", []byte(`{}`))
	f.Add("agent..tool.request.", "*", ">", "-1", "", "text/plain", []byte(nil))
	f.Add("from.generator.response.generation", "q.1", "\x00", "9223372036854775807", "00-", "", []byte("\x80"))
	f.Add("query.received", "", "", "", "", "", []byte("hello"))
	f.Fuzz(func(t *testing.T, subject, query, session, deadline, trace, contentType string, data []byte) {
		h := nats.Header{
			subjects.HeaderQuery: {query}, subjects.HeaderSession: {session}, subjects.HeaderDeadline: {deadline},
			subjects.HeaderTrace: {trace}, subjects.HeaderType: {contentType},
		}
		for _, spec := range []subjects.Spec{
			subjects.ToolRequestService.Spec, subjects.ResponseGeneration.Spec,
			subjects.QueryReceived.Spec, subjects.ToolSchemaEvent.Spec,
		} {
			for _, kind := range []routeKind{serve, subscribe, durable} {
				in, fault := Route{spec: spec, kind: kind}.readMessage(subject, h, data, now)
				for _, id := range []string{in.query, in.session} {
					if id != "" && subjects.CheckToken(id) != nil {
						t.Errorf("the id %q was let through", id)
					}
				}
				if in.trace != "" && !ValidTrace(in.trace) {
					t.Errorf("the trace %q was let through", in.trace)
				}
				if fault != nil {
					if fault.Code == "" || fault.Text == "" || len(fault.Text) > 400 {
						t.Errorf("fault %+v", fault)
					}
					continue
				}
				if _, ok := subjects.Match(spec.Subscription(), subject); !ok || len(data) > spec.Limit() {
					t.Errorf("%s: %q of %d bytes was let through", spec.Name, subject, len(data))
				}
				if !in.deadline.IsZero() && !in.deadline.After(now) || spec.NeedsDeadline && kind == serve &&
					in.deadline.IsZero() {
					t.Errorf("%s: the deadline %q was let through", spec.Name, deadline)
				}
				if kind != serve && spec.Stream == "EVENTS" && !in.deadline.IsZero() {
					t.Errorf("%s: an event expires", spec.Name)
				}
				// What goes on to the next message is read there as it was here.
				out := in.ids().header(subjects.TypeJSON)
				again, fault := parseEnvelope(subjects.Spec{Name: subject}, subject, out, []byte("{}"), now)
				if fault != nil || again.ids() != in.ids() {
					t.Errorf("carried %+v became %+v, %v", in.ids(), again.ids(), fault)
				}
			}
		}
	})
}

func FuzzAsJSON(f *testing.F) {
	for _, s := range []string{
		"", "\x80", "\x81\xa1a\xc4\x02{}", "\x81\x01\x02", "\xc1", "\xca\x7f\xc0\x00\x00",
		"\xdd\xff\xff\xff\xff", strings.Repeat("\x91", 1000), strings.Repeat("\x81\xa1a", 1000),
		"\xd6\xff\x00\x00\x00\x00", "\xc7\x00\x05",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s := FormatJSON(subjects.Spec{Codec: subjects.Msgpack}, data)
		if s != string(data) && !json.Valid([]byte(s)) {
			t.Errorf("%q is shown as %q", data, s)
		}
		if FormatJSON(subjects.Spec{}, data) != string(data) {
			t.Errorf("JSON was changed: %q", data)
		}
	})
}

// A megabyte of opening brackets must not exhaust the stack of any decoder.
func TestDeepNesting(t *testing.T) {
	t.Parallel()
	const n = 1 << 20
	for name, data := range map[string]string{
		"lists": strings.Repeat("\x91", n), "maps": strings.Repeat("\x81\xa1a", n/3), "keys": strings.Repeat("\x81", n),
		"wide": strings.Repeat("\xdd\x00\x00\x00\x01", n/5),
	} {
		if got := FormatJSON(subjects.Spec{Codec: subjects.Msgpack}, []byte(data)); got != data {
			t.Errorf("%s: shown as %d bytes", name, len(got))
		}
		if err := decode(subjects.Msgpack, []byte("\x81\xa4args"+data), &subjects.ToolRequest{}); err == nil {
			t.Errorf("%s: read", name)
		}
	}
	for name, data := range map[string]string{"lists": strings.Repeat("[", n), "maps": strings.Repeat(`{"a":`, n/5)} {
		if err := decode(subjects.JSON, []byte(`{"args":`+data), &subjects.ToolRequest{}); err == nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := strict.CheckObject([]byte(`{"args":` + data)); err == nil {
			t.Errorf("%s: an object", name)
		}
	}
}
