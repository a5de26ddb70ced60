package bus

// EditConf changes the text of nats.conf from the next [Server.Apply] on.
func (s *Server) EditConf(edit func(conf string) string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.editConf = edit
}

// LogServerError logs a line of the NATS server.
func (s *Server) LogServerError(text string) { s.serverLog.Errorf("%s", text) }
