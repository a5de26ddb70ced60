package date

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestFindRanges(t *testing.T) {
	t.Parallel()
	now := time.Date(2023, 8, 2, 15, 0, 0, 0, time.UTC) // a Wednesday
	for question, want := range map[string]string{
		"what happened on 8 May 2023?":               "2023-05-08..2023-05-08",
		"What did she show on October 13, 2022":      "2022-10-13..2022-10-13",
		"on the 3rd of June":                         "2023-06-03..2023-06-03",
		"what did Melanie do on 20 October":          "2022-10-20..2022-10-20",
		"on 2023-05-08 and 9.5.2023":                 "2023-05-08..2023-05-08 2023-05-09..2023-05-09",
		"between 3 and 10 June 2023":                 "2023-06-03..2023-06-10",
		"What setback did she face in October 2022?": "2022-10-01..2022-10-31",
		"When did they go camping in June?":          "2023-06-01..2023-06-30",
		"the support group last May":                 "2023-05-01..2023-05-31",
		"last August":                                "2022-08-01..2022-08-31",
		"next May":                                   "2024-05-01..2024-05-31",
		"May I ask who may march with June?":         "",
		"How many times in 2022?":                    "2022-01-01..2022-12-31",
		"in the summer of 2022":                      "2022-06-01..2022-08-31",
		"last winter":                                "2022-12-01..2023-02-28",
		"What did Ana say yesterday?":                "2023-08-01..2023-08-01",
		"the day before yesterday":                   "2023-07-31..2023-07-31",
		"was hat Ana gestern gesagt":                 "2023-08-01..2023-08-01",
		"im Mai 2023, le 8 mai 2023":                 "2023-05-01..2023-05-31 2023-05-08..2023-05-08",
		"two weeks ago, a month ago":                 "2023-07-16..2023-07-22 2023-06-17..2023-07-17",
		"3 days ago":                                 "2023-07-30..2023-07-30",
		"four years ago":                             "2019-01-01..2019-12-31",
		"last week, last weekend":                    "2023-07-24..2023-07-30 2023-07-29..2023-07-30",
		"last Tuesday":                               "2023-08-01..2023-08-01",
		"on Wednesday":                               "2023-07-26..2023-07-26",
		"two weeks before August 11, 2022":           "2022-07-25..2022-08-11",
		"the week before August 3, 2022":             "2022-07-24..2022-08-03",
		"since July":                                 "2023-07-01..2023-08-02",
		"on 31 February 2023":                        "2023-02-01..2023-02-28",
		"8.5.2023 and 9.5.2023, 3 to 5 July": "2023-05-08..2023-05-08 2023-05-09..2023-05-09 " +
			"2023-07-03..2023-07-05",
		"version 1.2.3, el agua de mar":           "",
		"who has 3 children, 12 cats and 2 cars?": "",
		"What is 1234 plus 99999999999999999999?": "",
	} {
		var got []string
		for _, r := range FindRanges(question, now) {
			last := r.Until.Add(-time.Nanosecond)
			got = append(got, fmt.Sprintf("%s..%s", r.From.Format(time.DateOnly), last.Format(time.DateOnly)))
		}
		if s := strings.Join(got, " "); s != want {
			t.Errorf("%q: %s, want %s", question, s, want)
		}
	}
	if n := len(FindRanges(strings.Repeat("yesterday ", 50), now)); n != maxRanges {
		t.Errorf("%d ranges, want %d", n, maxRanges)
	}
}
