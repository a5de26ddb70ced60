package backup

import (
	"os"
	"path/filepath"

	"conclave/pkg/bus"
)

// withheldFile is the list of the principals that a restored system does not admit.
const withheldFile = "principals.restored.json"

// WithholdPrincipals moves the list of run-time principals of restored data aside, so that no key is valid which was
// revoked or replaced since the backup. It returns the names; an unreadable list is moved too.
func WithholdPrincipals(restored bus.Home) (names []string, err error) {
	list, err := restored.ReadPrincipals()
	if err != nil {
		names = []string{"an unreadable list"}
	}
	for _, p := range list {
		names = append(names, p.Name)
	}
	if len(names) == 0 {
		return nil, nil
	}
	return names, os.Rename(restored.Principals(), filepath.Join(restored.Data, withheldFile))
}
