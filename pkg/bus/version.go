package bus

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"conclave/pkg/file"
)

// DataVersion is the version of the data folder that this build writes. It increases when a build writes data that
// earlier builds cannot read. A build opens the data of its own and of every earlier version; 0 is data without a
// version file.
const DataVersion = 3

// ErrNewerData means that a newer build wrote the data folder.
var ErrNewerData = errors.New("the data folder was written by a newer version of conclave")

// dataVersion is the content of the version file.
type dataVersion struct {
	Version int `json:"version"`
}

func (h Home) versionFilePath() string { return filepath.Join(h.Data, "version.json") }

// ReadVersion returns the version of the data folder, 0 without a version file. It fails with [ErrNewerData] when this
// build cannot read the data, and on a malformed file. It writes nothing.
func (h Home) ReadVersion() (int, error) {
	b, err := os.ReadFile(h.versionFilePath())
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("reading the version of the data folder: %w", err)
	}
	var v dataVersion
	if err := json.Unmarshal(b, &v); err != nil || v.Version < 1 {
		return 0, fmt.Errorf("%s holds no version of the data folder: restore it from a backup", h.versionFilePath())
	}
	return v.Version, CheckVersion(v.Version)
}

// CheckVersion returns [ErrNewerData] for data of a version that this build cannot read.
func CheckVersion(version int) error {
	if version > DataVersion {
		return fmt.Errorf("%w: it has version %d, this build reads up to %d; use the newer build, or another --data "+
			"folder", ErrNewerData, version, DataVersion)
	}
	return nil
}

// WriteVersion sets the version of the data folder to that of this build, unless it has it already. It returns the
// version before, 0 for new data. The caller must hold the lock, and must have opened the data: earlier builds refuse
// it from then on.
func (h Home) WriteVersion() (before int, err error) {
	before, err = h.ReadVersion()
	if err != nil || before == DataVersion {
		return before, err
	}
	if err := file.ReplaceJSON(h.versionFilePath(), dataVersion{DataVersion}); err != nil {
		return before, fmt.Errorf("writing the version of the data folder: %w", err)
	}
	return before, nil
}
