package config

// Reload applies the file at once: the caller knows that it is complete. The error is that of the current file.
func (r *Reloader) Reload() error { return r.check(false) }
