// Package stories holds the acceptance stories: each file is a conversation with the messages that it must cause. They
// run with cmd/stories and with the tests of this package, in a system of their own.
package stories
