package model

import (
	"context"
	"errors"

	"conclave/subjects"
)

// background are the accounts whose requests no person waits for, and how far behind everybody else they stand. A request
// goes before all that stand further behind, and one of those that holds its slot gives way. The critic is last: a grade
// may come any time, while an answer of respondent B is compared with the one that the user saw only within a time limit.
//
// It goes by the account that the server wrote. What a request says of itself, its role or its hint, moves it neither
// forward nor back: else anybody could push in, or be sent away.
//
// That these wait for as long as others are busy is meant, and nothing ages forward: an answer never takes longer because
// of a grade. When nobody else is there they run at once.
var background = map[string]int{
	subjects.RespondentB: 1,
	"critic":             2,
}

const (
	foreground = 0
	ranks      = 3
)

// rankOf is where an account stands; whoever is not in the table stands in front.
func rankOf(account string) int { return background[account] }

// errGaveWay is the cause of a turn that ended because somebody who stands further in front needs its slot.
var errGaveWay = errors.New("somebody whom a user waits for came first")

// errCutShort is a reply that gave way in the middle. It cannot start anew: its caller has heard the beginning.
var errCutShort = errors.New("the reply was broken off in the middle, because somebody whom a user waits for came first")

// gaveWay is what an error of a model in a turn means: the turn's end, if it gave way. Said is whether the caller has
// heard anything yet.
func gaveWay(turn context.Context, err error, said bool) error {
	switch {
	case !errors.Is(context.Cause(turn), errGaveWay):
		return err
	case said:
		return errCutShort
	}
	return errGaveWay
}
