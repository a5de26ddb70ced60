package model

import (
	"errors"
	"testing"
)

// Requests with images that wait take no more memory than the budget; what is released can be used again.
func TestImageBudgetIsBounded(t *testing.T) {
	t.Parallel()
	var b imageBudget
	release, err := b.reserve(maxImageBytes)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.reserve(1); !errors.Is(err, errQueueFull) {
		t.Errorf("a byte beyond the budget: %v", err)
	}
	release()
	if _, err := b.reserve(maxImageBytes); err != nil {
		t.Errorf("after the release: %v", err)
	}
}
