package subjects

import "time"

// Payloads of memory: entries, recall, writes, administration and events.

// MemoryEntry is one entry of memory.
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
	// Conversation, Position, Speaker and Happened are the context of the text; see [MemoryEntry.CheckContext].
	Conversation string `json:"conversation,omitempty"` // id: a session, the origin of a document, a chat
	Position     int    `json:"position,omitempty"`     // order in the conversation, from 1; 0 = unknown
	Speaker      string `json:"speaker,omitempty"`      // who said it; "" = unknown
	// when it was said or took place; Created is when it was stored
	Happened time.Time `json:"happened,omitzero"`
	Grades   Grades    `json:"grades"`
	State    string    `json:"state"` // active, candidate, superseded
	// SupersededBy and Supersedes are ids of entries.
	SupersededBy string    `json:"superseded_by,omitempty"`
	Supersedes   []string  `json:"supersedes,omitempty"`
	Pinned       bool      `json:"pinned,omitempty"`
	Created      time.Time `json:"created"`
	Updated      time.Time `json:"updated"`
	Accessed     time.Time `json:"last_accessed,omitzero"`
	Accesses     int       `json:"access_count,omitempty"`
}

// Provenance is the origin of an entry and its trust. Memory sets it from the broker's labels and the subject's
// account, never from a model's text.
type Provenance struct {
	Source    Source `json:"source"` // user, conversation, agent, document, external
	Trust     string `json:"trust"`  // trusted, untrusted
	Agent     string `json:"agent,omitempty"`
	SessionID string `json:"session_id,omitempty"`
	QueryID   string `json:"query_id,omitempty"`
	From      string `json:"from,omitempty"` // a file or a URL
	Part      int    `json:"part,omitempty"` // piece of the document, from 1
	Model     string `json:"model,omitempty"`
	// Digest is how name and description were made: [DigestModel], [DigestPlain], [DigestGiven] or [DigestPending].
	Digest string   `json:"digest,omitempty"`
	Flags  []string `json:"flags,omitempty"` // detected injection techniques
}

// Grades are the critic's and the user's grades of an answer. The zero value means ungraded.
type Grades struct {
	Critic   int     `json:"critic_score,omitempty"` // 1 to 5
	Feedback string  `json:"feedback,omitempty"`     // by the critic
	Pairwise string  `json:"pairwise_winner,omitempty"`
	Reward   float64 `json:"reward,omitempty"`  // -1 to 1, the user's latest
	Rewards  int     `json:"rewards,omitempty"` // how many the user gave
	Words    string  `json:"words,omitempty"`   // the user's comment; not stored by memory
	Retry    bool    `json:"retry,omitempty"`   // the critic suggests a retry; not stored by memory
}

// How name and description of an entry were made; see [Provenance].
const (
	DigestModel   = "model"
	DigestPlain   = "plain"   // by plain rules
	DigestGiven   = "given"   // by the user or an agent
	DigestPending = "pending" // by plain rules, until a model is idle
)

// Kinds of entries.
const (
	KindEngram   = "engram"   // a question and its answer
	KindFact     = "fact"     // saved on request of a user or an agent
	KindDocument = "document" // a piece of a document
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
// entries written before the value was renamed hold it. Other values are accepted unchanged; readers validate them.
func (s *Source) UnmarshalText(text []byte) error {
	*s = Source(text)
	if *s == formerSourceUser {
		*s = SourceUser
	}
	return nil
}

// formerSourceUser is the value of [SourceUser] and [RewardUser] before they were renamed.
const formerSourceUser = "person"

// Sources of entries.
const (
	SourceUser         = "user"         // entered by the user: conclave memory, the page
	SourceConversation = "conversation" // an answer without untrusted content
	SourceAgent        = "agent"        // save_memory
	SourceDocument     = "document"     // a file that the user imported
	SourceExternal     = "external"     // untrusted content
)

// MemoryQuery requests a recall.
type MemoryQuery struct {
	Query string `json:"query"`
	Max   int    `json:"max,omitempty"`   // most entries in the result; 0 = as configured
	Kind  string `json:"kind,omitempty"`  // only this kind; empty = every kind
	Whole bool   `json:"whole,omitempty"` // the corpus instead of the relevant segment
	Fresh bool   `json:"fresh,omitempty"` // bypass the cache
	// All includes superseded entries and candidates.
	All bool `json:"all,omitempty"`
}

// MemoryHit is a recalled entry with the reasons for its rank.
type MemoryHit struct {
	Entry      MemoryEntry    `json:"entry"`
	Segment    string         `json:"segment,omitempty"` // the relevant part of the corpus
	Similarity float64        `json:"similarity"`        // -1 to 1
	Score      float64        `json:"score"`             // the rank
	Reasons    []MemoryReason `json:"reasons"`           // they add up to the score
}

// MemoryReason is one part of a score.
type MemoryReason struct {
	// corpus, description, name, words, neighbours, speaker, when, critic, pairwise, reward, age, pinned, rerank
	What  string  `json:"what"`
	Value float64 `json:"value"`
	Text  string  `json:"text,omitempty"`
}

// MemoryReply is one stage of a recall, or the entries correlated with others. The last piece has Done.
type MemoryReply struct {
	Stage  string      `json:"stage,omitempty"` // names, descriptions, corpus
	Hits   []MemoryHit `json:"hits"`
	Cached bool        `json:"cached,omitempty"`
	Notes  []Note      `json:"notes,omitempty"` // degraded parts: no embeddings, no model for segments
	Millis float64     `json:"ms,omitempty"`
	Done   bool        `json:"done,omitempty"`
}

// MemoryIDs requests the entries correlated with these.
type MemoryIDs struct {
	IDs    []string `json:"ids"`
	Corpus bool     `json:"corpus,omitempty"` // the corpus too, not only the descriptions
}

// MemoryWriteRequest stores entries, or pieces of a document, for the user.
type MemoryWriteRequest struct {
	Entries  []MemoryEntry   `json:"entries,omitempty"`
	Document *MemoryDocument `json:"document,omitempty"`
	// External means that the user did not type the texts of the entries: a pipe, a file. They become untrusted.
	External bool `json:"external,omitempty"`
	// Restore keeps ids, times, grades and provenance: it imports an export.
	Restore bool `json:"restore,omitempty"`
	// Trusted, with Restore, means that the user vouches for the export. Otherwise every entry becomes untrusted.
	Trusted bool `json:"trusted,omitempty"`
}

// MemoryDocument is a document to ingest, complete or some of its pieces, in order. The message with Last completes it:
// pieces of an earlier version that are no longer in the document are removed.
type MemoryDocument struct {
	From     string    `json:"from"` // path or URL; ingesting it again updates it
	Title    string    `json:"title"`
	Hash     string    `json:"hash"` // of the whole text
	Modified time.Time `json:"modified,omitzero"`
	// "trusted" when the user vouches for the text; any other value is untrusted
	Trust  string          `json:"trust,omitempty"`
	First  int             `json:"first"` // number of the first piece in this message, from 1
	Pieces []DocumentPiece `json:"pieces"`
	Last   bool            `json:"last"`
}

// DocumentPiece is a piece of a document.
type DocumentPiece struct {
	Heading string `json:"heading,omitempty"` // the path of headings above it
	Text    string `json:"text"`
}

// MemoryWriteReply holds one result per entry or piece, in order.
type MemoryWriteReply struct {
	Results []MemoryWriteResult `json:"results"`
	// Unchanged means that this version of the document is stored already: the client can stop sending.
	Unchanged bool   `json:"unchanged,omitempty"`
	Removed   int    `json:"removed,omitempty"` // pieces of an earlier version
	Notes     []Note `json:"notes,omitempty"`
}

// MemoryWriteResult is the result for one entry or piece.
type MemoryWriteResult struct {
	ID     string `json:"id"`
	Action string `json:"action"`          // stored, merged, superseded, candidate, updated, unchanged, refused
	Other  string `json:"other,omitempty"` // the entry it was merged into, or that it supersedes
	Why    string `json:"why,omitempty"`
}

// MemoryAdminRequest is the user's administration of memory.
type MemoryAdminRequest struct {
	Op    string      `json:"op"` // list, show, edit, pin, unpin, forget, accept, reject, graph, status
	IDs   []string    `json:"ids,omitempty"`
	Query string      `json:"query,omitempty"` // forget: entries that match these words; graph: the entity
	Kind  string      `json:"kind,omitempty"`
	State string      `json:"state,omitempty"`
	Trust string      `json:"trust,omitempty"`
	Tag   string      `json:"tag,omitempty"`
	From  string      `json:"from,omitempty"` // origin of a document; with a slash at its end, all below it
	Text  string      `json:"text,omitempty"` // list: substring of name, description or corpus
	Edit  *MemoryEdit `json:"edit,omitempty"`
	Limit int         `json:"limit,omitempty"`
	After string      `json:"after,omitempty"` // cursor: Next of the previous page
	Whole bool        `json:"whole,omitempty"` // list: the corpus too
	Dry   bool        `json:"dry,omitempty"`   // forget: dry run, returns the matching entries
}

// MemoryEdit changes the given texts of an entry; nil fields stay.
type MemoryEdit struct {
	Name        *string   `json:"name,omitempty"`
	Description *string   `json:"description,omitempty"`
	Corpus      *string   `json:"corpus,omitempty"`
	Tags        *[]string `json:"tags,omitempty"`
}

// MemoryAdminReply is the reply to a [MemoryAdminRequest].
type MemoryAdminReply struct {
	Entries   []MemoryEntry `json:"entries"`
	Next      string        `json:"next,omitempty"` // cursor of the next page; empty = last page
	Changed   int           `json:"changed,omitempty"`
	Relations []Relation    `json:"relations,omitempty"`
	Status    *MemoryStatus `json:"status,omitempty"`
	Missing   []string      `json:"missing,omitempty"` // ids that do not exist
}

// Relation is one edge of the knowledge graph.
type Relation struct {
	ID        string    `json:"id"`
	Subject   string    `json:"subject"`
	Predicate string    `json:"predicate"`
	Object    string    `json:"object"`
	Kind      string    `json:"kind,omitempty"` // of the object: person, place, thing, other
	Tense     string    `json:"tense"`          // is, was
	From      string    `json:"from,omitempty"` // start, as precise as stated: a year, a month, a day
	Until     string    `json:"until,omitempty"`
	Entry     string    `json:"entry_id"` // the entry it was extracted from
	Trust     string    `json:"trust"`
	Said      time.Time `json:"said"`
}

// Tenses of a relation.
const (
	TenseIs  = "is"
	TenseWas = "was"
)

// MemoryStatus is the state of the memory store.
type MemoryStatus struct {
	Entries    map[string]int `json:"entries"` // by kind
	States     map[string]int `json:"states"`
	Relations  int            `json:"relations"`
	Documents  int            `json:"documents"`
	Bytes      int64          `json:"bytes"` // of the file
	Schema     int            `json:"schema"`
	DuckDB     string         `json:"duckdb"`
	Search     string         `json:"search"` // the search path of a recall now, and why
	Model      string         `json:"embedding_model"`
	Unembedded int            `json:"unembedded"` // entries without embeddings yet
	// why some of them have none; empty = they wait for their turn
	Problem  string `json:"embedding_problem,omitempty"`
	Resident int64  `json:"index_bytes"`
	Cached   int    `json:"cached"`
}

// MemoryEvent reports an action of memory and its reason.
type MemoryEvent struct {
	SessionID string         `json:"session_id,omitempty"`
	QueryID   string         `json:"query_id,omitempty"` // the query it belongs to
	Action    string         `json:"action"`
	IDs       []string       `json:"ids"`
	Why       string         `json:"why"`
	Of        string         `json:"of,omitempty"`    // respondent whose answer was graded; empty = all, or no grade
	By        string         `json:"by,omitempty"`    // the caller: account and spawn chain
	Query     string         `json:"query,omitempty"` // of a recall
	Hits      []MemoryRecall `json:"hits,omitempty"`
	Cached    bool           `json:"cached,omitempty"`
}

// MemoryRecall is a recalled entry in a [MemoryEvent].
type MemoryRecall struct {
	ID         string    `json:"id"`
	Kind       string    `json:"kind"`
	Name       string    `json:"name"`
	Similarity float64   `json:"similarity"`
	Score      float64   `json:"score"`
	Created    time.Time `json:"created"`
	Source     Source    `json:"source"`
	Trust      string    `json:"trust"`
	Content    string    `json:"content,omitempty"`      // what the caller got of it, without credentials, clipped
	Critic     int       `json:"critic_score,omitempty"` // 1 to 5
	Feedback   string    `json:"feedback,omitempty"`     // by the critic, clipped
	Reward     float64   `json:"reward,omitempty"`       // -1 to 1, the user's latest
}

// MemorySummary lists entries without their content, for an agent that must not read it.
type MemorySummary struct {
	Entries []MemorySummaryEntry `json:"entries"`
}

// MemorySummaryEntry names one entry.
type MemorySummaryEntry struct {
	ID          string `json:"id"`
	Kind        string `json:"kind"`
	Name        string `json:"name,omitempty"`
	Description string `json:"description,omitempty"` // at most three sentences
}
