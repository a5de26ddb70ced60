package bus

import "github.com/nats-io/nats-server/v2/server"

// EditConf changes the text of nats.conf from the next [Server.Apply] on.
func (s *Server) EditConf(edit func(conf string) string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.editConf = edit
}

// LogServerError logs a line of the NATS server.
func (s *Server) LogServerError(text string) { s.serverLog.Errorf("%s", text) }

// BeforeReload calls f before each step of a reload, with what the server will load.
func (s *Server) BeforeReload(f func(ns *server.Server, opts *server.Options)) {
	s.applying.Lock()
	defer s.applying.Unlock()
	s.beforeReload = f
}
