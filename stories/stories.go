// Package stories holds the acceptance stories: each file is a conversation with the messages that it must cause. They
// run with "conclave story run" and with the tests of this package, in a system of their own.
package stories
