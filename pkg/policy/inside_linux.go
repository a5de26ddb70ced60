package policy

import "golang.org/x/sys/unix"

// oPath opens a folder for use as the base of openat. It needs no permission to list the folder.
const oPath = unix.O_PATH

// denyKernelFS returns ErrSpecial for a file on a file system that exposes the kernel (proc, sysfs, cgroup, ...),
// wherever it is mounted.
func denyKernelFS(fd int) error {
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil {
		return err
	}
	switch int64(st.Type) {
	case unix.PROC_SUPER_MAGIC, unix.SYSFS_MAGIC, unix.DEVPTS_SUPER_MAGIC, unix.DEBUGFS_MAGIC, unix.TRACEFS_MAGIC,
		unix.SECURITYFS_MAGIC, unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC, unix.NSFS_MAGIC, unix.BPF_FS_MAGIC,
		unix.EFIVARFS_MAGIC:
		return ErrSpecial
	}
	return nil
}
