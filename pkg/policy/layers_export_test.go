package policy

// Passed reports whether a verdict has nothing against the call.
func Passed(v Verdict) bool { return v.kind == passes }
