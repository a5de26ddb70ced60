// Package actor runs an actor: it decodes messages strictly, calls typed handlers with bounded concurrency,
// propagates ids, deadlines and traces, replies for handlers that fail, and drains in order.
//
// An actor is a struct with a name and a table of routes. It has no goroutine, no logger and no NATS import of its
// own.
//
// # Routes
//
// [Serve] and [ServeStream] answer requests of a service, [On] handles the events of a stream until they are handled
// (deliver again after an error, then a dead letter), [Subscribe] and [Notify] hear live events. An [Option] bounds
// how many handlers of a route run, or how often one account may ask. A handler gets a [Msg], decoded and with its
// envelope, and an [Out], with which it publishes ([Emit], [EmitOnce]) and asks other actors ([Ask], [AskStream]).
//
// # Running
//
// [Supervise] connects an actor with its own key, subscribes its routes, starts it again within a [Budget] when it
// fails, and drains it at the end. [Deliver] runs one message through a route without a bus; package actortest has a
// recorder in place of the other actors.
//
// # What several actors need
//
// It is here once: [Audited] (record, act, record: no act without an acknowledged record), [Bucket] (compare-and-set
// state with an outbox, for what must be published exactly once) and [Toolset] (serving tools to the broker).
package actor
