package policy

// Passed reports whether a verdict has nothing against the call.
func Passed(v Verdict) bool { return v.kind == passes }

// ReadJSON reads arguments as the layers do.
func ReadJSON(raw []byte) error {
	_, err := readJSON(raw)
	return err
}
