package subjects

// ModelRun runs a call on the model actor of a machine, or goes on reading one that runs there.
type ModelRun struct {
	// Call identifies the call. It is unguessable. Requests with the same id are one call, which runs once.
	Call string `json:"call"`
	// Next is the number of the first chunk that is wanted: those before were received.
	Next int `json:"next"`
	// Request is set while nothing was received. A call that the machine does not know starts only with it.
	Request *ChatRequest `json:"request,omitempty"`
	// longest time of the call; not a deadline, because clocks of machines differ
	Millis int64 `json:"ms,omitempty"`
}

// ModelRunChunk is a numbered chunk of a call. Without Chunk it only says that the call is alive and the link works.
type ModelRunChunk struct {
	Call  string     `json:"call"`
	N     int        `json:"n"` // from 0; the next one, when there is no chunk
	Chunk *ChatChunk `json:"chunk,omitempty"`
	// Of the last chunk, from machines of earlier versions. Ignored: the hub measures the time for prompt and output
	// itself.
	PromptMicros int64 `json:"prompt_us,omitempty"`
	OutputMicros int64 `json:"output_us,omitempty"`
}

// ModelRunEnd says that the hub reads no more of a call: the machine stops it, if it still runs, and forgets its
// output.
type ModelRunEnd struct {
	Call string `json:"call"`
}

// ModelReport is what the model actor of a machine offers.
type ModelReport struct {
	Models []MachineModel `json:"models"`
	// Limits of its model server, see ollama in models.yaml.
	Slots     int  `json:"slots"`
	Batch     int  `json:"batch"`
	Exclusive bool `json:"exclusive,omitempty"`
}

// MachineModel describes a model of a machine.
type MachineModel struct {
	Name       string `json:"name"`
	Digest     string `json:"digest,omitempty"` // of the weights and the template
	Size       int64  `json:"size,omitempty"`
	Family     string `json:"family,omitempty"`
	Parameters string `json:"parameters,omitempty"`
	Window     int    `json:"window,omitempty"`
	Tools      bool   `json:"tools,omitempty"`
	Thinking   bool   `json:"thinking,omitempty"`
	Embedding  bool   `json:"embedding,omitempty"`
	Loaded     bool   `json:"loaded,omitempty"`
}

// ModelMachine is the state of a machine with models.
type ModelMachine struct {
	Name      string `json:"name"`
	Connected bool   `json:"connected"`
	Queue     int    `json:"queue"` // requests that run or wait there
	Slots     int    `json:"slots"`
	Reason    string `json:"reason,omitempty"` // why it is not connected
}
