// Package genai reaches Google's GenAI API.
package genai

import _ "google.golang.org/genai"
