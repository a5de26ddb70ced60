package subjects

import "time"

// Payloads of the table in docs/bus.md have a file per topic; those of no topic are here. Field names are an interface
// to watchers of the bus: a renamed field keeps its former name in the tag `was`. Ids that travel in headers are
// repeated only where a user who watches with the nats command line needs them.

// Done acknowledges a request that has no other result.
type Done struct {
	OK bool `json:"ok"`
}

// Empty is the payload of a request that needs none.
type Empty struct{}

// ConfigSet changes settings of an actor.
type ConfigSet struct {
	Values map[string]string `json:"values"`
}

// DeadLetter reports a message that could not be decoded or kept failing. It does not repeat the body, which could hold
// a secret.
type DeadLetter struct {
	Actor   string    `json:"actor"`
	Subject string    `json:"subject"`
	Code    string    `json:"code"`
	Reason  string    `json:"reason"`
	Size    int       `json:"size"`
	SHA256  string    `json:"sha256,omitempty"`
	Time    time.Time `json:"time"`
}

// SecretGet requests one credential, sealed to the receiver that needs it. The secrets actor believes neither that the
// receiver may have the credential nor that the key is its own.
type SecretGet struct {
	Name     string `json:"name"`
	Receiver string `json:"receiver"` // account
	For      string `json:"for"`      // public curve key of a process of the receiver
}

// SecretValue is the sealed credential.
type SecretValue struct {
	Sealed []byte `json:"sealed"`
	From   string `json:"from"` // public curve key of the sender
}

// SecretUse requests from the broker a credential that the configuration assigns to the caller.
type SecretUse struct {
	Name string `json:"name"`
	For  string `json:"for"` // the caller's public curve key
}
