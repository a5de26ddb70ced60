// Package anthropic reaches Anthropic's API.
package anthropic

import _ "github.com/anthropics/anthropic-sdk-go"
