package sessionbus

import "strings"

// Flags that may stand before the command, or without one: those of conclave itself and those of conclave up. The value
// says whether something follows the flag.
var Flags = map[string]bool{
	"data": true, "config": true, "server": true, "log-level": true, "json": false,
	"listen": true, "api-port": true, "model": true, "sync": true, "headless": false,
	"respondent-b": false, "model-b": true, "temperature-b": true,
}

// Wanted reports whether a process with these arguments needs the session bus: conclave up in its two spellings, conclave
// actor with secrets among the actors, and conclave secret. Whatever it does not understand, it answers with no: a test,
// a question for help, another program.
func Wanted(args []string) bool {
	var words []string
	for i := 0; i < len(args); i++ {
		a := args[i]
		name, isFlag := strings.CutPrefix(a, "--")
		switch {
		case a == "--":
			words = append(words, args[i+1:]...)
			i = len(args)
		case a == "-h" || a == "--help":
			return false
		case isFlag:
			name, _, given := strings.Cut(name, "=")
			follows, known := Flags[name]
			if !known && len(words) == 0 {
				return false
			}
			if follows && !given {
				i++
			}
		case strings.HasPrefix(a, "-") && len(words) == 0:
			return false
		case !strings.HasPrefix(a, "-"):
			words = append(words, a)
		}
	}
	switch {
	case len(words) == 0 || words[0] == "up" || words[0] == "secret":
		return true
	case words[0] == "actor":
		for _, w := range words[1:] {
			if w == "secrets" {
				return true
			}
		}
	}
	return false
}
