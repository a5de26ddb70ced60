package recall

import (
	"slices"

	"conclave/subjects"
)

// cloneReply returns a copy that shares no list with r.
func cloneReply(r subjects.MemoryReply) subjects.MemoryReply {
	r.Notes = slices.Clone(r.Notes)
	r.Hits = slices.Clone(r.Hits)
	for i := range r.Hits {
		h := &r.Hits[i]
		h.Reasons = slices.Clone(h.Reasons)
		e := &h.Entry
		e.Tags, e.Correlating, e.Entities, e.Supersedes = slices.Clone(e.Tags), slices.Clone(e.Correlating),
			slices.Clone(e.Entities), slices.Clone(e.Supersedes)
		e.Provenance.Flags = slices.Clone(e.Provenance.Flags)
	}
	return r
}

// textSize returns about how many bytes the texts of a reply take: names, descriptions, corpora and segments.
func textSize(r subjects.MemoryReply) (n int) {
	for _, h := range r.Hits {
		n += len(h.Entry.Name) + len(h.Entry.Description) + len(h.Entry.Corpus) + len(h.Segment)
	}
	return n
}
