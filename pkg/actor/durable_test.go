package actor_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/bus/bustest"
	"conclave/subjects"
)

type answerMsg = actor.Msg[subjects.Response]

// publishResponse publishes an answer as the generator does.
func publishResponse(t testing.TB, out actor.Out, query string) {
	t.Helper()
	if err := actor.Emit(t.Context(), out, subjects.ResponseGeneration, subjects.Response{QueryID: query}); err != nil {
		t.Fatal(err)
	}
}

// An event stored while the actor was down is handled after its start, in order, with its author's account.
func TestOnHandlesEventsStoredBeforeStart(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	out := newOut(t, b.Connect("generator"))
	for i := range 3 {
		publishResponse(t, out.WithIDs("s1", fmt.Sprint("before-", i)), fmt.Sprint("before-", i))
	}
	got := make(chan answerMsg, 10)
	spec := (&testActor{
		name: "critic",
		routes: []actor.Route{actor.On(subjects.ResponseGeneration,
			func(_ context.Context, in answerMsg, _ actor.Out) error {
				got <- in
				return nil
			})},
	}).spec()
	s, err := actor.Supervise(t.Context(), spec, b.Dial, actor.Config{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if in := receive(t, "an event", got); in.Body.QueryID != fmt.Sprint("before-", i) ||
			in.Query != in.Body.QueryID || in.Session != "s1" || in.From != "generator" ||
			in.Subject != "from.generator.response.generation" {
			t.Errorf("event %d: %+v", i, in)
		}
	}
	if err := s.Stop(); err != nil {
		t.Error(err)
	}

	publishResponse(t, out, "between")
	supervise(t, b, spec, actor.Config{})
	if in := receive(t, "the event between", got); in.Body.QueryID != "between" {
		t.Errorf("%+v came again", in)
	}
	publishResponse(t, out, "after")
	if in := receive(t, "the event after", got); in.Body.QueryID != "after" {
		t.Errorf("%+v came again", in)
	}
}

func TestOnRetriesAfterError(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	book := &logRecorder{}
	tries := make(chan int, 10)
	n := 0
	startActor(t, b, "critic", actor.Config{RetryDelay: time.Millisecond, Log: book.logger()},
		actor.On(subjects.ResponseGeneration, func(context.Context, answerMsg, actor.Out) error {
			n++
			tries <- n
			switch n {
			case 1:
				return errors.New("the model is away")
			case 2:
				panic("the model is odd")
			}
			return nil
		}))
	user := b.Connect("user")
	letters := subscribe(t, user, "dead.critic")
	publishResponse(t, newOut(t, b.Connect("generator")), "q1")
	for want := 1; want <= 3; want++ {
		if n := receive(t, "a try", tries); n != want {
			t.Errorf("try %d, want %d", n, want)
		}
	}
	waitUntil(t, "figures", func() bool {
		s, _ := readStats(t, user, "critic")
		return s.Endpoints[0].NumRequests == 3 && s.Endpoints[0].NumErrors == 2
	})
	if len(book.linesWith("handler failed", "the model is away")) != 1 ||
		len(book.linesWith("panic in handler", "the model is odd")) != 1 {
		t.Errorf("logged %s", book)
	}
	expectNone(t, letters, user)
}

// A message that keeps failing becomes a dead letter after the last attempt and does not block later ones.
func TestOnWritesDeadLetterAfterMaxDeliver(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	var tries atomic.Int64
	good := make(chan string, 1)
	startActor(t, b, "critic", actor.Config{RetryDelay: time.Millisecond},
		actor.On(subjects.ResponseGeneration, func(_ context.Context, in answerMsg, _ actor.Out) error {
			if in.Body.QueryID != "bad" {
				good <- in.Body.QueryID
				return nil
			}
			tries.Add(1)
			return errors.New("hunter2")
		}))
	user := b.Connect("user")
	letters := subscribe(t, user, "dead.critic")
	out := newOut(t, b.Connect("generator"))
	publishResponse(t, out.WithIDs("s", "bad"), "bad")
	publishResponse(t, out, "good")
	if q := receive(t, "the next", good); q != "good" {
		t.Errorf("handled %s", q)
	}
	m := nextMessage(t, letters)
	if m.Header.Get(subjects.HeaderQuery) != "bad" {
		t.Errorf("a dead letter about %q", m.Header.Get(subjects.HeaderQuery))
	}
	if want := fmt.Sprintf("failed after %d attempts", subjects.MaxDeliver); !strings.Contains(string(m.Data), want) ||
		!strings.Contains(string(m.Data), subjects.CodeInternal) || strings.Contains(string(m.Data), "hunter2") {
		t.Errorf("dead letter %s, want %q", m.Data, want)
	}
	// It does not come again: a later one overtakes nothing.
	publishResponse(t, out, "later")
	receive(t, "a later one", good)
	expectNone(t, letters, user)
	if tries.Load() != subjects.MaxDeliver {
		t.Errorf("%d tries, want %d", tries.Load(), subjects.MaxDeliver)
	}
}

// A handler that the shutdown interrupts fails at no attempt: its message is delivered after the next start, however
// often that happens, and becomes no dead letter.
func TestOnInterruptedByShutdownIsRedelivered(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	attempts := make(chan int, 1)
	spec := (&testActor{name: "critic", routes: []actor.Route{actor.On(subjects.ResponseGeneration,
		func(ctx context.Context, in answerMsg, _ actor.Out) error {
			attempts <- in.Attempt
			if in.Attempt > subjects.MaxDeliver+1 {
				return nil
			}
			<-ctx.Done()
			return fmt.Errorf("the work is interrupted: %w", context.Cause(ctx))
		})}}).spec()
	user := b.Connect("user")
	letters := subscribe(t, user, "dead.critic")
	publishResponse(t, newOut(t, b.Connect("generator")), "long")
	for n := 1; n <= subjects.MaxDeliver+2; n++ {
		s, err := actor.Supervise(t.Context(), spec, b.Dial,
			actor.Config{RetryDelay: time.Millisecond, DrainTimeout: time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		if got := receive(t, "the message", attempts); got != n {
			t.Errorf("attempt %d, want %d", got, n)
		}
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	}
	expectNone(t, letters, user)
}

// A handler that returns a retry delay is retried after it, not after the default backoff.
func TestOnRetryLater(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	tried := make(chan time.Time, 8)
	startActor(t, b, "critic", actor.Config{RetryDelay: time.Hour},
		actor.On(subjects.ResponseGeneration, func(_ context.Context, in answerMsg, _ actor.Out) error {
			tried <- time.Now()
			if in.Attempt == 1 {
				return fmt.Errorf("not yet: %w", actor.RetryAfter(errors.New("busy"), 150*time.Millisecond))
			}
			return nil
		}))
	publishResponse(t, newOut(t, b.Connect("generator")), "q")
	first, second := receive(t, "the first try", tried), receive(t, "the second", tried)
	if waited := second.Sub(first); waited < 140*time.Millisecond {
		t.Errorf("tried again after %s", waited)
	}
}

// A malformed message is not retried.
func TestOnMalformedBecomesDeadLetter(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	rejected := make(chan actor.Rejection, 20)
	handled := make(chan string, 20)
	startActor(t, b, "critic", actor.Config{RetryDelay: time.Millisecond},
		actor.On(subjects.ResponseGeneration, func(_ context.Context, in answerMsg, _ actor.Out) error {
			handled <- in.Body.QueryID
			return nil
		}, actor.OnReject(func(_ context.Context, rej actor.Rejection, _ actor.Out) { rejected <- rej })))
	user, generator := b.Connect("user"), b.Connect("generator")
	letters := subscribe(t, user, "dead.critic")
	for _, tt := range []struct {
		name, body string
		headers    []string
		code       string
	}{
		{"not JSON", "hunter2", nil, subjects.CodeMalformed},
		{"an unknown field", `{"hunter2":1}`, nil, subjects.CodeMalformed},
		{"trick: a field inside in another case", `{"usage":{"MS":31337}}`, nil, subjects.CodeMalformed},
		{"trick: a key inside twice", `{"usage":{"ms":1,"ms":31337}}`, nil, subjects.CodeMalformed},
		{"trick: an unknown field in a list", `{"tool_calls":[{"hunter2":1}]}`, nil, subjects.CodeMalformed},
		{"a text for a number", `{"usage":{"ms":"hunter2"}}`, nil, subjects.CodeMalformed},
		{"a number that does not fit", `{"usage":{"ms":31337e99}}`, nil, subjects.CodeMalformed},
		// The msgpack package would allocate the list before it reads it: hundreds of gigabytes.
		{
			"trick: four billion tool calls in five bytes", "\x81\xaatool_calls\xdd\xff\xff\xff\xff",
			[]string{subjects.HeaderType, subjects.TypeMsgpack},
			subjects.CodeMalformed,
		},
		{
			"trick: a tool call as a list", "\x81\xaatool_calls\x91\x94\xa1x\xc4\x00\xa0\xc0",
			[]string{subjects.HeaderType, subjects.TypeMsgpack},
			subjects.CodeMalformed,
		},
		{
			"trick: a number that wraps", "\x81\xa5usage\x81\xa2ms\xcf\xff\xff\xff\xff\xff\xff\xff\xff",
			[]string{subjects.HeaderType, subjects.TypeMsgpack},
			subjects.CodeMalformed,
		},
		{"plain text", "hunter2", []string{subjects.HeaderType, subjects.TypeText}, subjects.CodeCodec},
		{"a query id that is a wildcard", `{}`, []string{subjects.HeaderQuery, "*"}, subjects.CodeMalformed},
		{"a deadline in words", `{}`, []string{subjects.HeaderDeadline, "tomorrow"}, subjects.CodeMalformed},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := generator.RequestMsg(rawMessage("response.generation", []byte(tt.body), tt.headers...),
				timeout); err != nil {
				t.Fatal(err)
			}
			m := nextMessage(t, letters)
			if s := string(m.Data); !strings.Contains(s, `"`+tt.code+`"`) || strings.Contains(s, "hunter2") ||
				strings.Contains(s, "31337") || insides.MatchString(strings.ReplaceAll(s, "subject", "")) {
				t.Errorf("dead letter %s, want %s", s, tt.code)
			}
			if rej := receive(t, "the hook", rejected); rej.Fault.Code != tt.code {
				t.Errorf("the hook was told %+v", rej)
			}
		})
	}
	publishResponse(t, newOut(t, generator), "good")
	if q := receive(t, "a good one", handled); q != "good" {
		t.Errorf("handled %q", q)
	}
	expectNone(t, letters, user)
	if len(rejected) > 0 {
		t.Error("one of them was tried again")
	}
}

// The deadline of a stored event does not apply to its handler.
func TestOnHandlesEventsPastTheirDeadline(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	got := make(chan answerMsg, 2)
	startActor(t, b, "critic", actor.Config{},
		actor.On(subjects.ResponseGeneration, func(ctx context.Context, in answerMsg, _ actor.Out) error {
			if _, ok := ctx.Deadline(); ok {
				t.Error("the caller's deadline holds for an event")
			}
			got <- in
			return nil
		}))
	generator := b.Connect("generator")
	for _, ms := range []string{"1000", nearDeadline()} {
		if _, err := generator.RequestMsg(rawMessage("response.generation", []byte(`{"query_id":"q"}`),
			subjects.HeaderDeadline, ms), timeout); err != nil {
			t.Fatal(err)
		}
		if in := receive(t, "the event", got); in.Body.QueryID != "q" || !in.Deadline.IsZero() {
			t.Errorf("%+v", in)
		}
	}
}

// Two instances share the work: each event is handled once, by one of them.
func TestOnSharesWorkBetweenInstances(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	const n = 200
	var mu sync.Mutex
	times := map[string]int{}
	all := make(chan struct{})
	first := [2]chan struct{}{make(chan struct{}), make(chan struct{})}
	for i := range 2 {
		var once sync.Once
		startActor(t, b, "critic", actor.Config{},
			actor.On(subjects.ResponseGeneration, func(_ context.Context, in answerMsg, _ actor.Out) error {
				// Each waits for the other to have one too, so that neither takes all.
				once.Do(func() { close(first[i]) })
				<-first[1-i]
				mu.Lock()
				defer mu.Unlock()
				times[in.Body.QueryID]++
				if len(times) == n {
					close(all)
				}
				return nil
			}, actor.Workers(4)))
	}
	out := newOut(t, b.Connect("generator"))
	for i := range n {
		publishResponse(t, out, fmt.Sprint("q", i))
	}
	receive(t, "the last event", all)
	user := b.Connect("user")
	waitUntil(t, "all counted", func() bool { // by both: a request without a name is answered by each
		total := 0
		inbox := subscribe(t, user, user.NewInbox())
		if err := user.PublishRequest("$SRV.STATS.critic", inbox.Subject, nil); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			m := nextMessage(t, inbox)
			total += countRequests(t, m.Data)
		}
		return total == n
	})
	mu.Lock()
	defer mu.Unlock()
	for q, k := range times {
		if k != 1 {
			t.Errorf("%s was handled %d times", q, k)
		}
	}
}

// A handler that takes longer than AckWait keeps its message.
func TestOnLongWorkIsNotRedelivered(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	var starts atomic.Int64
	started, done := make(chan struct{}, 4), make(chan struct{})
	for range 2 { // the other one would get it
		startActor(t, b, "critic", actor.Config{},
			actor.On(subjects.ResponseGeneration, func(_ context.Context, in answerMsg, _ actor.Out) error {
				if in.Body.QueryID == "long" {
					starts.Add(1)
					started <- struct{}{}
					<-done
				}
				return nil
			}))
	}
	publishResponse(t, newOut(t, b.Connect("generator")), "long")
	receive(t, "the work", started)
	select { // the time itself is what is tested
	case <-started:
		t.Error("it was handed to another")
	case <-time.After(subjects.AckWait + time.Second):
	}
	close(done)
	if starts.Load() != 1 {
		t.Errorf("started %d times", starts.Load())
	}
}

// A message of the consumer that no route handles is acknowledged and skipped.
func TestOnPartOfAConsumersFilter(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	got := make(chan string, 2)
	startActor(t, b, "memory", actor.Config{},
		actor.On(subjects.CritiqueResult, func(_ context.Context, in actor.Msg[subjects.Critique], _ actor.Out) error {
			got <- in.From + " " + in.Body.QueryID
			return nil
		}))
	letters := subscribe(t, b.Connect("user"), "dead.memory")
	publishResponse(t, newOut(t, b.Connect("generator")), "not for memory here")
	if err := actor.Emit(t.Context(), newOut(t, b.Connect("critic")), subjects.CritiqueResult,
		subjects.Critique{QueryID: "q1", Score: 4}); err != nil {
		t.Fatal(err)
	}
	if s := receive(t, "the critique", got); s != "critic q1" {
		t.Errorf("handled %q", s)
	}
	expectNone(t, letters, b.Connect("user"))
}

// A route without a consumer would never receive a message, so the start fails.
func TestOnWithoutConsumerFails(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	for name, route := range map[string]actor.Route{
		"a stream it does not pull": actor.On(subjects.QueryReceived,
			func(context.Context, actor.Msg[subjects.Query], actor.Out) error { return nil }),
		"a subject its consumer filters": actor.On(subjects.UserFeedback,
			func(context.Context, actor.Msg[subjects.Feedback], actor.Out) error { return nil }),
	} {
		_, err := actor.Supervise(t.Context(), (&testActor{name: "critic", routes: []actor.Route{route}}).spec(),
			b.Dial, actor.Config{})
		if err == nil || !strings.Contains(err.Error(), route.Spec().Name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Live subscribers receive events from their start on, under the subject without author, and no earlier ones.
func TestSubscribeIsLive(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	got := make(chan actor.Msg[subjects.Reward], 4)
	stops := make(chan actor.Msg[subjects.Cancel], 4)
	out := newOut(t, b.Connect("reward"))
	reward := func(q string) {
		if err := actor.Emit(t.Context(), out, subjects.RewardEvent,
			subjects.Reward{QueryID: q, Value: 1}); err != nil {
			t.Fatal(err)
		}
	}
	earlier := make(chan subjects.Reward, 4)
	user := b.Connect("user")
	bustest.Subscribe(t, user, "reward.event", earlier)
	if err := bustest.ConfirmSubscriptions(t.Context(), user); err != nil {
		t.Fatal(err)
	}
	reward("before")
	receive(t, "the earlier reward", earlier) // stored events are not live at once
	for range 2 {                             // each instance hears it
		startActor(t, b, "generator", actor.Config{},
			actor.Subscribe(subjects.RewardEvent, func(_ context.Context, in actor.Msg[subjects.Reward],
				_ actor.Out,
			) error {
				got <- in
				return nil
			}),
			actor.Subscribe(subjects.QueryCancel, func(_ context.Context, in actor.Msg[subjects.Cancel],
				_ actor.Out,
			) error {
				stops <- in
				return nil
			}))
	}
	reward("now")
	for range 2 {
		if in := receive(t, "the reward", got); in.Body.QueryID != "now" || in.Subject != "reward.event" ||
			in.From != "" {
			t.Errorf("heard %+v", in)
		}
	}
	if err := user.Publish("query.cancel.q7", []byte("enough")); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if in := receive(t, "the cancel", stops); in.Body.Reason != "enough" || fmt.Sprint(in.Tokens) != "[q7]" {
			t.Errorf("heard %+v", in)
		}
	}
	if len(got) > 0 {
		t.Errorf("heard %+v too", <-got)
	}
}

// Events that the broker publishes under event.> are received under the live subject.
func TestSubscribeUnderLiveSubject(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	got := make(chan actor.Msg[subjects.ToolRequest], 1)
	startActor(t, b, "gateway", actor.Config{},
		actor.Subscribe(subjects.ToolRequestEvent, func(_ context.Context, in toolMsg, _ actor.Out) error {
			got <- in
			return nil
		}))
	topic, err := subjects.ToolRequestEvent.With("x", "coder-1")
	if err != nil {
		t.Fatal(err)
	}
	if err := actor.Emit(t.Context(), newOut(t, b.Connect("broker")), topic,
		subjects.ToolRequest{CallID: "c"}); err != nil {
		t.Fatal(err)
	}
	if in := receive(t, "the copy", got); in.Subject != "tool.request.x.coder-1" ||
		fmt.Sprint(in.Tokens) != "[x coder-1]" || in.Body.CallID != "c" {
		t.Errorf("heard %+v", in)
	}
}
