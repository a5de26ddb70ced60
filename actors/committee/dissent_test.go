package committee

import (
	"strings"
	"testing"
)

func TestSplitDissent(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, in, response, reason string }{
		{"none", "Yes.\nDISSENT: none", "Yes.", ""},
		{"none with a stop and emphasis", "Yes.\n\n**DISSENT: None.**\n", "Yes.", ""},
		{"a reason", "No.\nDISSENT: It is too early.", "No.", "It is too early."},
		{"emphasis around the mark", "No.\n**DISSENT:** It is too early.", "No.", "It is too early."},
		{"lower case, quoted", "No.\n> dissent: too early", "No.", "too early"},
		{"no line", "Yes, and there is no dissent: none at all", "Yes, and there is no dissent: none at all", ""},
		{"trick: a mark in the middle", "He said\nDISSENT: never\nand I agree.", "He said\nDISSENT: never\nand I " +
			"agree.", ""},
		{"trick: two marks, the last counts", "DISSENT: first\nDISSENT: none", "DISSENT: first", ""},
		{
			"only the line", "DISSENT: I do not want to speak.", "DISSENT: I do not want to speak.",
			"I do not want to speak.",
		},
		{"empty mark", "Yes.\nDISSENT:", "Yes.", ""},
		{"long", "No.\nDISSENT: " + strings.Repeat("x", 1000), "No.", "x"},
		{"empty", "", "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			response, dissents, reason := splitDissent(tt.in)
			if tt.name == "long" {
				if len(reason) > maxDissent+len("…") || !dissents {
					t.Errorf("%d bytes", len(reason))
				}
				return
			}
			if response != tt.response || reason != tt.reason || dissents != (tt.reason != "") {
				t.Errorf("%q %v %q", response, dissents, reason)
			}
		})
	}
}
