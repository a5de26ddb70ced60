package text

import "regexp"

// terminalCodes match the escape sequences of terminals: control sequences such as colors and cursor movements, and
// commands such as titles and links, each introduced by ESC or by its single C1 character.
var terminalCodes = regexp.MustCompile("(?:\x1b\\[|\u009b)[0-9;?]*[ " +
	"-/]*[@-~]|(?:\x1b\\]|\u009d)[^\x07\x1b\u009c]*(?:\x07|\x1b\\\\|\u009c)")

// StripTerminalCodes returns s, which must be valid UTF-8, without complete escape sequences of terminals. Other
// control characters stay, see [ReplaceHidden].
func StripTerminalCodes(s string) string { return terminalCodes.ReplaceAllString(s, "") }
