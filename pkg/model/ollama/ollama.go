// Package ollama reaches an Ollama server.
package ollama

import _ "github.com/ollama/ollama/api"
