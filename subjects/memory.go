package subjects

import "time"

// Payloads of memory: what is remembered, how it is asked for, and what became of it.

// MemoryEntry is one thing remembered, with everything known of it.
type MemoryEntry struct {
	ID          string     `json:"id"`
	Kind        string     `json:"kind"` // engram, fact, document
	Name        string     `json:"name"`
	Description string     `json:"description"`
	Corpus      string     `json:"corpus"`
	Tags        []string   `json:"tags,omitempty"`
	Correlating []string   `json:"correlating_ids,omitempty"`
	Provenance  Provenance `json:"provenance"`
	Intent      string     `json:"intent,omitempty"`
	Entities    []string   `json:"entities,omitempty"`
	Sentiment   string     `json:"sentiment,omitempty"` // positive, neutral, negative
	Respondent  string     `json:"respondent_id,omitempty"`
	Grades      Grades     `json:"grades"`
	State       string     `json:"state"` // active, candidate, superseded
	// SupersededBy is the entry that took this one's place, and Supersedes are those whose place this one took.
	SupersededBy string    `json:"superseded_by,omitempty"`
	Supersedes   []string  `json:"supersedes,omitempty"`
	Pinned       bool      `json:"pinned,omitempty"`
	Created      time.Time `json:"created"`
	Updated      time.Time `json:"updated"`
	Accessed     time.Time `json:"last_accessed,omitzero"`
	Accesses     int       `json:"access_count,omitempty"`
}

// Provenance says where an entry came from, and how far it can be trusted. It is written by memory from what the broker
// and the bus say, never by a model.
type Provenance struct {
	Source    Source `json:"source"` // user, conversation, agent, document, external
	Trust     string `json:"trust"`  // trusted, untrusted
	Agent     string `json:"agent,omitempty"`
	SessionID string `json:"session_id,omitempty"`
	QueryID   string `json:"query_id,omitempty"`
	From      string `json:"from,omitempty"` // a file or an address
	Part      int    `json:"part,omitempty"` // which piece of it, from 1
	Model     string `json:"model,omitempty"`
	// Digest says who made name and description: model, plain, given.
	Digest string   `json:"digest,omitempty"`
	Flags  []string `json:"flags,omitempty"` // signs of injection that were found
}

// Grades are what others thought of an answer. Nobody has said anything yet when all is zero.
type Grades struct {
	Critic   int     `json:"critic_score,omitempty"` // 1 to 5
	Feedback string  `json:"feedback,omitempty"`     // the critic's words
	Pairwise string  `json:"pairwise_winner,omitempty"`
	Reward   float64 `json:"reward,omitempty"`  // -1 to 1, what the user thinks now
	Rewards  int     `json:"rewards,omitempty"` // how often the user said so
	Words    string  `json:"words,omitempty"`   // the user's words; memory does not keep them
	Retry    bool    `json:"retry,omitempty"`   // the critic thinks that another try should be offered; memory does not keep that
}

// Kinds of entries.
const (
	KindEngram   = "engram"   // an answer and what it was asked for
	KindFact     = "fact"     // what somebody wanted to be kept
	KindDocument = "document" // a piece of a file
)

// States of entries. Only active ones are recalled.
const (
	MemoryActive     = "active"
	MemoryCandidate  = "candidate" // proposed by a subagent, waiting for a decision
	MemorySuperseded = "superseded"
)

// Source says who stated something: the content of a memory entry, or a [Reward].
type Source string

// UnmarshalText implements [encoding.TextUnmarshaler]. It reads "person" as [SourceUser]: events, exports and key-value
// entries written before the value was renamed hold it. Other values are taken as they are; readers validate them.
func (s *Source) UnmarshalText(text []byte) error {
	if *s = Source(text); *s == formerSourceUser {
		*s = SourceUser
	}
	return nil
}

// formerSourceUser is the value of [SourceUser] and [RewardUser] before they were renamed.
const formerSourceUser = "person"

// Sources of entries.
const (
	SourceUser         = "user"         // stated by the user by hand: conclave memory, the page
	SourceConversation = "conversation" // an answer that no stranger wrote into
	SourceAgent        = "agent"        // save_memory
	SourceDocument     = "document"     // a file that the user imported
	SourceExternal     = "external"     // strangers could have written it
)

// MemoryQuery recalls.
type MemoryQuery struct {
	Query string `json:"query"`
	Max   int    `json:"max,omitempty"`   // entries at the end; nothing = as configured
	Kind  string `json:"kind,omitempty"`  // of this kind only
	Whole bool   `json:"whole,omitempty"` // the corpus, not the segment that matters
	Fresh bool   `json:"fresh,omitempty"` // do not look into the cache
	// All includes what is superseded or waits for a decision.
	All bool `json:"all,omitempty"`
}

// MemoryHit is an entry as it was recalled, with the reasons for its rank.
type MemoryHit struct {
	Entry      MemoryEntry    `json:"entry"`
	Segment    string         `json:"segment,omitempty"` // what matters of the corpus
	Similarity float64        `json:"similarity"`        // -1 to 1
	Score      float64        `json:"score"`             // what it was ranked by
	Reasons    []MemoryReason `json:"reasons"`           // they add up to the score
}

// MemoryReason is one part of a score.
type MemoryReason struct {
	What  string  `json:"what"` // name, description, words, critic, pairwise, reward, age, pinned, rerank
	Value float64 `json:"value"`
	Text  string  `json:"text,omitempty"`
}

// MemoryReply is a stage of a recall, or what goes with some entries. The last piece has Done.
type MemoryReply struct {
	Stage  string      `json:"stage,omitempty"` // names, descriptions, corpus
	Hits   []MemoryHit `json:"hits"`
	Cached bool        `json:"cached,omitempty"`
	Notes  []Note      `json:"notes,omitempty"` // what was missing: no vectors, no model for segments
	Millis float64     `json:"ms,omitempty"`
	Done   bool        `json:"done,omitempty"`
}

// MemoryIDs names entries.
type MemoryIDs struct {
	IDs    []string `json:"ids"`
	Corpus bool     `json:"corpus,omitempty"` // the whole, not only the descriptions
}

// MemoryWriteRequest is what the user hands to memory: entries, or the pieces of a document.
type MemoryWriteRequest struct {
	Entries  []MemoryEntry   `json:"entries,omitempty"`
	Document *MemoryDocument `json:"document,omitempty"`
	// Restore takes ids, times, grades and provenance as they are: an export is read back.
	Restore bool `json:"restore,omitempty"`
	// Trusted says, with Restore, that the user vouches for the export. Otherwise every entry in it is untrusted.
	Trusted bool `json:"trusted,omitempty"`
}

// MemoryDocument is a file on its way into memory, whole or some of its pieces. Pieces come in order; the last message has
// Last, and then what the file had before and has no longer is forgotten.
type MemoryDocument struct {
	From     string          `json:"from"` // where it is; importing it again updates it
	Title    string          `json:"title"`
	Hash     string          `json:"hash"` // of the whole text
	Modified time.Time       `json:"modified,omitzero"`
	Trust    string          `json:"trust,omitempty"` // trusted when the user vouches for every word; anything else is not
	First    int             `json:"first"`           // number of the first piece here, from 1
	Pieces   []DocumentPiece `json:"pieces"`
	Last     bool            `json:"last"`
}

// DocumentPiece is a piece of a file.
type DocumentPiece struct {
	Heading string `json:"heading,omitempty"` // the way of headings to it
	Text    string `json:"text"`
}

// MemoryWriteReply tells what became of each, in order.
type MemoryWriteReply struct {
	Results []MemoryWriteResult `json:"results"`
	// Unchanged means that the document is known in this form: nothing more has to be sent.
	Unchanged bool   `json:"unchanged,omitempty"`
	Removed   int    `json:"removed,omitempty"` // pieces of an older form
	Notes     []Note `json:"notes,omitempty"`
}

// MemoryWriteResult is what became of one.
type MemoryWriteResult struct {
	ID     string `json:"id"`
	Action string `json:"action"`          // stored, merged, superseded, candidate, updated, unchanged, refused
	Other  string `json:"other,omitempty"` // the entry it was merged into, or whose place it took
	Why    string `json:"why,omitempty"`
}

// MemoryAdminRequest is the user's own hand on memory.
type MemoryAdminRequest struct {
	Op    string      `json:"op"` // list, show, edit, pin, unpin, forget, accept, reject, graph, status
	IDs   []string    `json:"ids,omitempty"`
	Query string      `json:"query,omitempty"` // forget: those that match these words; graph: about whom or what
	Kind  string      `json:"kind,omitempty"`
	State string      `json:"state,omitempty"`
	Trust string      `json:"trust,omitempty"`
	Tag   string      `json:"tag,omitempty"`
	From  string      `json:"from,omitempty"`
	Text  string      `json:"text,omitempty"` // list: only those with these letters in name, description or corpus
	Edit  *MemoryEdit `json:"edit,omitempty"`
	Limit int         `json:"limit,omitempty"`
	After string      `json:"after,omitempty"` // where the last page ended
	Whole bool        `json:"whole,omitempty"` // list: the corpus too
	Dry   bool        `json:"dry,omitempty"`   // forget: tell which, and forget none
}

// MemoryEdit changes what is said, and nothing else.
type MemoryEdit struct {
	Name        *string   `json:"name,omitempty"`
	Description *string   `json:"description,omitempty"`
	Corpus      *string   `json:"corpus,omitempty"`
	Tags        *[]string `json:"tags,omitempty"`
}

// MemoryAdminReply is the answer to the user.
type MemoryAdminReply struct {
	Entries   []MemoryEntry `json:"entries"`
	Next      string        `json:"next,omitempty"` // ask for more after this
	Changed   int           `json:"changed,omitempty"`
	Relations []Relation    `json:"relations,omitempty"`
	Status    *MemoryStatus `json:"status,omitempty"`
	Missing   []string      `json:"missing,omitempty"` // ids that do not exist
}

// Relation is one line of the knowledge graph.
type Relation struct {
	ID        string    `json:"id"`
	Subject   string    `json:"subject"`
	Predicate string    `json:"predicate"`
	Object    string    `json:"object"`
	Kind      string    `json:"kind,omitempty"` // of the object: person, place, thing, other
	Tense     string    `json:"tense"`          // is, was
	From      string    `json:"from,omitempty"` // since when, as far as it was said: a year, a month, a day
	Until     string    `json:"until,omitempty"`
	Entry     string    `json:"entry_id"` // the memory that says so
	Trust     string    `json:"trust"`
	Said      time.Time `json:"said"`
}

// Tenses of a relation.
const (
	TenseIs  = "is"
	TenseWas = "was"
)

// MemoryStatus is how memory is.
type MemoryStatus struct {
	Entries    map[string]int `json:"entries"` // by kind
	States     map[string]int `json:"states"`
	Relations  int            `json:"relations"`
	Documents  int            `json:"documents"`
	Bytes      int64          `json:"bytes"` // of the file
	Schema     int            `json:"schema"`
	DuckDB     string         `json:"duckdb"`
	Search     string         `json:"search"` // which path a recall takes now, and why
	Model      string         `json:"embedding_model"`
	Unembedded int            `json:"unembedded"` // entries that wait for vectors
	Resident   int64          `json:"index_bytes"`
	Cached     int            `json:"cached"`
}

// MemoryEvent says what memory did and why.
type MemoryEvent struct {
	SessionID string         `json:"session_id,omitempty"`
	QueryID   string         `json:"query_id,omitempty"` // the answer that it was for
	Action    string         `json:"action"`
	IDs       []string       `json:"ids"`
	Why       string         `json:"why"`
	Of        string         `json:"of,omitempty"`    // whose answer was graded; "" = all answers, or it is about no grade
	By        string         `json:"by,omitempty"`    // who asked: the account, with the path of spawned agents
	Query     string         `json:"query,omitempty"` // what was looked for
	Hits      []MemoryRecall `json:"hits,omitempty"`
	Cached    bool           `json:"cached,omitempty"`
}

// MemoryRecall is an entry as the event of a recall tells of it.
type MemoryRecall struct {
	ID         string    `json:"id"`
	Kind       string    `json:"kind"`
	Name       string    `json:"name"`
	Similarity float64   `json:"similarity"`
	Score      float64   `json:"score"`
	Created    time.Time `json:"created"`
	Source     Source    `json:"source"`
	Trust      string    `json:"trust"`
	Critic     int       `json:"critic_score,omitempty"`
}
