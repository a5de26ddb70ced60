package subjects

// Codes of the notes of a response. The agent loop defines more.
const (
	NoteDemoModel = "demo_model"   // the built-in demo model answered
	NoteModel     = "model_notice" // another model than asked for answered
	NoteRenamed   = "renamed_id"   // an id was replaced: not a valid token
	NoteUntrusted = "untrusted"    // content came with the question that the user did not type
	NoteNoBroker  = "no_broker"    // no tools could be found
	NoteNoResult  = "no_result"    // a tool that was called gave no result
	NoteDuplicate = "duplicate"    // the question was answered before
	NoteResumed   = "resumed"      // resumed after a crash
	NoteLost      = "gave_up"      // attempts exhausted
	NoteRecordCut = "record_cut"   // the response was shortened to fit its stream
	NoteCompacted = "compacted"    // old turns were summarized
	NoteDeleted   = "deleted"      // the user deleted the conversation
	NoteBranched  = "branched"     // the user edited an earlier question, or switched to another branch
	NoteGraded    = "graded"       // a grade was added to an earlier answer
	NoteNoHistory = "no_history"   // the conversation could not be read
	NoteStopped   = "stopped"      // the user stopped the answer
	NotePersona   = "persona"      // a persona failed and was skipped
	NoteContext   = "context"      // the model does not search memory by itself; it was searched for it

	NoteCandidates = "memory_candidates" // which memories that agents proposed were kept
)

// formerDemoModel is [NoteDemoModel] in answers that an earlier build stored.
const formerDemoModel = "stand_in"

// IsDemoModel reports whether the note says that the built-in demo model answered.
func (n Note) IsDemoModel() bool { return n.Code == NoteDemoModel || n.Code == formerDemoModel }
