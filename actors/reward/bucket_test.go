package reward

import (
	"encoding/json"
	"testing"

	"conclave/subjects"
)

// What readers decode of a record, to find an answer, is what the actor stores.
func TestRecordTellsThePlaceOfAnAnswer(t *testing.T) {
	t.Parallel()
	stored := answer{Position: streamPosition{Seq: 7}, Heard: streamPosition{Seq: 9}, Count: 2}
	data, err := json.Marshal(stored)
	var place subjects.AnswerPlace
	if err == nil {
		err = json.Unmarshal(data, &place)
	}
	want := subjects.AnswerPlace{Answer: subjects.Place{Seq: 7}, Rated: subjects.Place{Seq: 9}, Count: 2}
	if err != nil || place != want {
		t.Errorf("%+v, %v, want %+v", place, err, want)
	}
}
