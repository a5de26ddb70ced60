package subjects

// Codes of the notes that an answerer writes beside its answer. The agent loop has more of its own.
const (
	NoteDemoModel = "demo_model"   // the built-in demo model answered
	NoteModel     = "model_notice" // another model than asked for answered
	NoteRenamed   = "renamed_id"   // an id that could not be used
	NoteNoBroker  = "no_broker"    // no tools could be found
	NoteDuplicate = "duplicate"    // the question was answered before
	NoteResumed   = "resumed"      // it goes on after a crash
	NoteLost      = "gave_up"      // it was tried too often
	NoteRecordCut = "record_cut"   // the record of the answer does not hold everything
	NoteCompacted = "compacted"    // old turns were summarized
	NoteGraded    = "graded"       // what somebody thought of an answer stands beside it now
	NoteNoHistory = "no_history"   // respondent B could not read what the user was told before
)

// formerDemoModel is [NoteDemoModel] in answers that an earlier build stored.
const formerDemoModel = "stand_in"

// IsDemoModel reports whether the note says that the built-in demo model answered.
func (n Note) IsDemoModel() bool { return n.Code == NoteDemoModel || n.Code == formerDemoModel }
