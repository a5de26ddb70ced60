package committee

import (
	"strings"

	"conclave/pkg/text"
)

// dissentMark begins the last line of a contribution.
const dissentMark = "DISSENT:"

// maxDissent bounds the reason of a dissent, in bytes.
const maxDissent = 300

// noDissent are the reasons that are none.
var noDissent = map[string]bool{"": true, "none": true, "no": true, "nothing": true, "n/a": true, "-": true}

// splitDissent separates a contribution from its last line, which says whether the persona dissents and why. Only the
// last line that is not blank counts, and only when it begins with [dissentMark], whatever its case and emphasis: a
// mark inside the text is part of the text. A contribution without the line does not dissent. One that has nothing else
// keeps it as its text.
func splitDissent(contribution string) (response string, dissents bool, reason string) {
	contribution = strings.TrimSpace(contribution)
	at := strings.LastIndexByte(contribution, '\n') + 1
	line := strings.Trim(contribution[at:], "*_`> \t\r")
	if len(line) < len(dissentMark) || !strings.EqualFold(line[:len(dissentMark)], dissentMark) {
		return contribution, false, ""
	}
	reason = text.OneLine(strings.Trim(line[len(dissentMark):], "*_` \t"), maxDissent)
	dissents = !noDissent[strings.ToLower(strings.TrimRight(reason, ". !"))]
	if !dissents {
		reason = ""
	}
	if response = strings.TrimSpace(contribution[:at]); response == "" {
		response = contribution
	}
	return response, dissents, reason
}
