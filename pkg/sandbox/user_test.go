//go:build linux && (amd64 || arm64)

package sandbox

import (
	"os"
	"testing"
)

func TestCanWrite(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, tt := range []struct {
		what  string
		give  bool
		mode  os.FileMode
		want  bool
		other bool // the result when programs run as this user
	}{
		{"a folder of this user", false, 0o700, false, true},
		{"a folder that others may change", false, 0o777, true, true},
		{"a folder of the programs", true, 0o700, true, true},
		{"a read-only folder of the programs", true, 0o577, false, false},
	} {
		if tt.give {
			if err := GiveToPrograms(dir); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Chmod(dir, tt.mode); err != nil {
			t.Fatal(err)
		}
		want := tt.want
		if os.Geteuid() != 0 {
			want = tt.other
		}
		if ok, user := CanWrite(dir); ok != want {
			t.Errorf("%s: %v for the user %d, want %v", tt.what, ok, user, want)
		}
	}
	if owner, err := chooseUser(); err == nil && owner != nil { // only root gives a folder to a group
		if err := os.Lchown(dir, os.Geteuid(), int(owner.Gid)); err != nil {
			t.Fatal(err)
		}
		for mode, want := range map[os.FileMode]bool{0o770: true, 0o707: false} {
			if err := os.Chmod(dir, mode); err != nil {
				t.Fatal(err)
			}
			if ok, _ := CanWrite(dir); ok != want {
				t.Errorf("a folder of the group of the programs, mode %o: %v, want %v", mode, ok, want)
			}
		}
	}
	if ok, _ := CanWrite(dir + "/missing"); ok {
		t.Error("a missing folder")
	}
}
