package subjects

// Setting is one value of the configuration, as the user sees it. Values of secrets are never in it.
type Setting struct {
	Name        string `json:"name"`  // path with its file in front: generator.steps
	Actor       string `json:"actor"` // the actor that uses it; "system" for the bus, the disk and the log
	Value       string `json:"value"` // in force
	Default     string `json:"default"`
	Origin      string `json:"origin"`      // "shipped", "flag", or file:line of the user's file
	Type        string `json:"type"`        // text, number, bool, duration, size, list or table
	Description string `json:"description"` // comment of the shipped file
	// Pending is the value in the user's file, when it differs from the one in force: it applies after a restart.
	Pending  string `json:"pending,omitempty"`
	Live     bool   `json:"live"`             // a change applies without a restart of conclave
	Editable bool   `json:"editable"`         // can be changed by settings.change
	Locked   string `json:"locked,omitempty"` // why it cannot, and what to do
}

// SettingList is every setting, in the order of the files.
type SettingList struct {
	Settings []Setting `json:"settings"`
	Folder   string    `json:"folder"` // the user's config folder
	// why the user's files cannot be loaded now; the values in force are listed
	Error string `json:"error,omitempty"`
}

// SettingChange sets one setting in the user's file.
type SettingChange struct {
	Name  string `json:"name"`
	Value string `json:"value"` // as it would be written in the file, without quotes
}

// SettingChanged is a setting after its change.
type SettingChanged struct {
	Setting   Setting  `json:"setting"`
	Restarted []string `json:"restarted,omitempty"` // actors that were started again with the new value
}

// DoctorReport is the result of the checks of conclave doctor.
type DoctorReport struct {
	Checks []DoctorCheck `json:"checks"`
}

// DoctorCheck is the result of one check.
type DoctorCheck struct {
	Name  string `json:"name"`
	Level string `json:"level"` // ok, warn or fail
	Text  string `json:"text"`
	Fix   string `json:"fix,omitempty"`
}
