package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
)

// Fingerprint identifies what a grant permits, without its uses.
func (g Grant) Fingerprint() string {
	g.Used = nil
	data, err := json.Marshal(g)
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// KeepFixed returns the grants that are among the fixed ones, given by their fingerprints. It only takes grants away:
// the grants of a scheduled question are derived from its words as those of any question, and were fixed when the
// schedule was made.
func KeepFixed(grants []Grant, fixed []string) []Grant {
	return slices.DeleteFunc(slices.Clone(grants), func(g Grant) bool {
		return !slices.Contains(fixed, g.Fingerprint()) || g.Fingerprint() == ""
	})
}
