// probes tries to leave the sandbox: probes <name> [argument...].
//
// Exit codes: 0 the attempt succeeded, 1 it was denied, 2 the probe is broken, 3 this kernel does not know the call. Each probe
// is also run outside of the sandbox, where it must succeed.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/keyctl.h>
#include <linux/perf_event.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

enum { ESCAPED = 0, DENIED = 1, BROKEN = 2, UNKNOWN = 3 };

// done ends the probe: a result of -1 with ENOSYS is unknown, with any other error denied.
static int done(long result) {
	if (result >= 0) return ESCAPED;
	if (errno == ENOSYS || errno == EAFNOSUPPORT) return UNKNOWN;
	fprintf(stderr, "%s\n", strerror(errno));
	return DENIED;
}

// reached ends a probe whose arguments are invalid: an error other than that of a denial means that the kernel did the call.
static int reached(long result) {
	if (result < 0 && (errno == EPERM || errno == EACCES)) return DENIED;
	if (result < 0 && errno == ENOSYS) return UNKNOWN;
	return ESCAPED;
}

static int has_content(const char *path) {
	char b[64];
	int fd = open(path, O_RDONLY);
	if (fd < 0) return DENIED;
	return read(fd, b, sizeof b) > 0 ? ESCAPED : DENIED;
}

static int contains(const char *path, const char *word) {
	static char b[1 << 20];
	int fd = open(path, O_RDONLY);
	if (fd < 0) return DENIED;
	ssize_t n = read(fd, b, sizeof b - 1);
	if (n <= 0) return DENIED;
	return memmem(b, n, word, strlen(word)) ? ESCAPED : DENIED;
}

// exited waits for a child, which exits with the verdict.
static int exited(pid_t child) {
	int status;
	if (child < 0) return done(child);
	if (waitpid(child, &status, 0) < 0 || !WIFEXITED(status)) return DENIED;
	return WEXITSTATUS(status);
}

static int connect_inet(int type, const char *host, int port) {
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};
	struct timeval timeout = {.tv_sec = 5};
	char b[4];
	int s = socket(AF_INET, type, 0);
	if (s < 0 || inet_pton(AF_INET, host, &a.sin_addr) != 1) return DENIED;
	if (connect(s, (void *)&a, sizeof a) < 0) return DENIED;
	if (type == SOCK_STREAM) return ESCAPED;
	setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
	if (send(s, "ping", 4, 0) < 0) return DENIED;
	return recv(s, b, sizeof b, 0) == 4 ? ESCAPED : DENIED;
}

static int connect_unix(const char *name, int abstract) {
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	int s = socket(AF_UNIX, SOCK_STREAM, 0);
	if (s < 0) return DENIED;
	strncpy(a.sun_path + abstract, name, sizeof a.sun_path - 2);
	return done(connect(s, (void *)&a, offsetof(struct sockaddr_un, sun_path) + abstract + strlen(name) + !abstract));
}

static int trace_child(void) {
	pid_t child = fork();
	if (child == 0) {
		pause();
		_exit(0);
	}
	int verdict = done(ptrace(PTRACE_ATTACH, child, 0, 0));
	kill(child, SIGKILL);
	return verdict;
}

static int clone_flags(unsigned long flags) {
	pid_t child = syscall(SYS_clone, flags | SIGCHLD, 0, 0, 0, 0);
	if (child == 0) _exit(ESCAPED);
	return exited(child);
}

static int clone3_flags(uint64_t flags) {
	struct { uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls; } args = {.flags = flags, .exit_signal = SIGCHLD};
	pid_t child = syscall(SYS_clone3, &args, sizeof args);
	if (child == 0) _exit(ESCAPED);
	return exited(child);
}

static int input_terminal(unsigned long request) {
	char c = 'x';
	int master = posix_openpt(O_RDWR | O_NOCTTY);
	if (master < 0 || grantpt(master) < 0 || unlockpt(master) < 0) return BROKEN;
	pid_t child = fork();
	if (child == 0) {
		setsid();
		int slave = open(ptsname(master), O_RDWR);
		if (slave < 0) _exit(BROKEN);
		ioctl(slave, TIOCSCTTY, 0);
		_exit(request == TIOCSTI ? done(ioctl(slave, request, &c)) : reached(ioctl(slave, request, &c)));
	}
	return exited(child);
}

static int int80(void) {
#ifdef __x86_64__
	long result;
	__asm__ volatile("int $0x80" : "=a"(result) : "a"(20L) : "memory"); // getpid
	return result > 0 ? ESCAPED : DENIED;
#else
	return UNKNOWN;
#endif
}

static int other_devices(void) {
	static const char *known[] = {".", "..", "core", "fd", "full", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin", "stdout", "tty", "urandom", "zero", "console"};
	DIR *d = opendir("/dev");
	if (!d) return DENIED;
	for (struct dirent *e; (e = readdir(d));) {
		size_t i;
		for (i = 0; i < sizeof known / sizeof *known && strcmp(known[i], e->d_name); i++);
		if (i == sizeof known / sizeof *known) return ESCAPED;
	}
	return DENIED;
}

static int open_descriptors(void) {
	for (int fd = 3; fd < 4096; fd++)
		if (fcntl(fd, F_GETFD) >= 0) {
			fprintf(stderr, "descriptor %d is open\n", fd);
			return ESCAPED;
		}
	return DENIED;
}

static int symlink_race(const char *target) {
	for (int i = 0; i < 300; i++) {
		unlink("race");
		if (i % 2) {
			if (symlink(target, "race") < 0) return BROKEN;
		} else {
			close(open("race", O_CREAT | O_WRONLY, 0600));
		}
		if (contains("race", "canary") == ESCAPED) return ESCAPED;
	}
	return DENIED;
}

static int exchange_race(const char *outside) { // the working folder itself, exchanged for a link
	char path[4096], other[4200];
	if (!getcwd(path, sizeof path)) return BROKEN;
	snprintf(other, sizeof other, "%s.moved", path);
	if (rename(path, other) < 0) return done(-1);
	int verdict = done(symlink(outside, path));
	unlink(path);
	rename(other, path);
	return verdict;
}

static int run_setuid(const char *program) {
	pid_t child = fork();
	if (child == 0) {
		if (geteuid() == 0 && (setresgid(65534, 65534, 65534) || setresuid(65534, 65534, 65534))) _exit(BROKEN);
		execl(program, program, "is_root", NULL);
		_exit(DENIED);
	}
	return exited(child);
}

static int vm_access(long call) {
	char from[8] = "canary", to[8] = "";
	struct iovec a = {from, 7}, b = {to, 7};
	return done(syscall(call, getpid(), &a, 1, &b, 1, 0));
}

static int perf(void) {
	struct perf_event_attr a = {.type = PERF_TYPE_SOFTWARE, .size = sizeof a, .config = PERF_COUNT_SW_CPU_CLOCK};
	return done(syscall(SYS_perf_event_open, &a, 0, -1, -1, 0));
}

static int file_handle(void) {
	struct { unsigned bytes; int type; unsigned char f[128]; } h = {.bytes = 128};
	int mount;
	return done(syscall(SYS_name_to_handle_at, AT_FDCWD, "/usr", &h, &mount, 0));
}

static int in_host_name(const char *host) {
	char b[256] = "";
	if (gethostname(b, sizeof b - 1) < 0) return BROKEN;
	return strcmp(b, host) == 0 ? ESCAPED : DENIED;
}

static int environment(const char *canary) {
	extern char **environ;
	for (char **e = environ; *e; e++)
		if (strstr(*e, canary)) return ESCAPED;
	return contains("/proc/1/environ", canary);
}

// Bombs never end by themselves: a limit does it. They exit with 0 when they got more than the argument allows.
static int fork_bomb(int most) {
	int made = 0;
	for (; made <= most; made++) {
		pid_t child = fork();
		if (child < 0) break;
		if (child == 0) {
			pause();
			_exit(0);
		}
	}
	return made > most ? ESCAPED : DENIED;
}

static int memory_bomb(long megabytes) {
	for (long i = 0; i < megabytes; i++) {
		char *p = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (p == MAP_FAILED) return DENIED;
		memset(p, 1, 1 << 20);
	}
	return ESCAPED;
}

// many_memory_bombs stays below the limit of a process, and waits for the limit of all together.
static int many_memory_bombs(int processes, long megabytes) {
	for (int i = 0; i < processes; i++)
		if (fork() == 0) {
			memory_bomb(megabytes);
			pause();
			_exit(0);
		}
	pause();
	return ESCAPED;
}

static int fill(const char *dir, int files, long megabytes, int deleted) {
	static char block[1 << 20];
	char path[4096];
	long total = 0;
	memset(block, 1, sizeof block);
	signal(SIGXFSZ, SIG_IGN);
	for (int i = 0; i < files; i++) {
		snprintf(path, sizeof path, "%s/fill%d", dir, i);
		int fd = open(path, O_CREAT | O_WRONLY, 0600);
		if (fd < 0) break;
		if (deleted) unlink(path);
		ssize_t n = 0;
		for (long m = 0; m < megabytes && (n = write(fd, block, sizeof block)) == sizeof block; m++) total++;
		if (n < 0 && errno == ENOSPC) break;
		if (!deleted) close(fd);
	}
	if (total < files * megabytes) return DENIED;
	pause(); // the watch ends it
	return ESCAPED;
}

// fill_hidden fills a folder that its owner can use and not list.
static int fill_hidden(int files, long megabytes) {
	if (mkdir("hidden", 0700) || chmod("hidden", 0333)) return BROKEN;
	return fill("hidden", files, megabytes, 0);
}

static int allocate(long megabytes) {
	int fd = open("allocated", O_CREAT | O_RDWR, 0600);
	if (fd < 0) return BROKEN;
	return done(fallocate(fd, 0, 0, megabytes << 20));
}

static int nest(int levels) {
	for (int i = 0; i < levels; i++)
		if (mkdir("d", 0700) || chdir("d")) return DENIED;
	pause(); // the watch ends it
	return ESCAPED;
}

// set_id makes a file with a setuid bit, with a system call given by name.
static int set_id(const char *how) {
	struct { uint64_t flags, mode, resolve; } open_how = {O_CREAT | O_WRONLY, 04755, 0};
	struct stat st;
	int fd = open("plain", O_CREAT | O_RDWR, 0700), made = -1;
	if (fd < 0) return BROKEN;
	if (!strcmp(how, "chmod") && chmod("plain", 04755)) return done(-1);
	if (!strcmp(how, "fchmod") && fchmod(fd, 06755)) return done(-1);
	if (!strcmp(how, "fchmodat") && syscall(SYS_fchmodat, AT_FDCWD, "plain", 04755)) return done(-1);
	if (!strcmp(how, "fchmodat2") && syscall(452, AT_FDCWD, "plain", 04755, 0)) return done(-1);
	if (!strcmp(how, "mknod") && mknod("made", S_IFREG | 04755, 0)) return done(-1);
	if (!strcmp(how, "mknodat") && mknodat(AT_FDCWD, "made", S_IFREG | 04755, 0)) return done(-1);
	if (!strcmp(how, "creat") && (made = creat("made", 04755)) < 0) return done(-1);
	if (!strcmp(how, "open") && (made = open("made", O_CREAT | O_WRONLY, 04755)) < 0) return done(-1);
#ifdef SYS_open
	if (!strcmp(how, "old_open") && (made = syscall(SYS_open, "made", O_CREAT | O_WRONLY, 04755)) < 0) return done(-1);
#else
	if (!strcmp(how, "old_open")) return UNKNOWN;
#endif
	if (!strcmp(how, "openat2") && (made = syscall(437, AT_FDCWD, "made", &open_how, sizeof open_how)) < 0) return done(-1);
	if (!strcmp(how, "tmpfile") && (made = open(".", O_TMPFILE | O_WRONLY, 04755)) < 0) return done(-1);
	if (made >= 0 ? fstat(made, &st) : stat("made", &st) && fstat(fd, &st)) return BROKEN;
	return st.st_mode & 06000 ? ESCAPED : DENIED;
}

static int many_files(int files) {
	char path[64];
	for (int i = 0; i < files; i++) {
		snprintf(path, sizeof path, "many%d", i);
		int fd = open(path, O_CREAT | O_WRONLY, 0600);
		if (fd < 0) return DENIED;
		close(fd);
	}
	pause();
	return ESCAPED;
}

static int open_bomb(int most) {
	int made = 0;
	while (made <= most && open("/dev/null", O_RDONLY) >= 0) made++;
	return made > most ? ESCAPED : DENIED;
}

// listen_forever leaves a process behind that a test can reach as long as it lives.
static int listen_forever(const char *path) {
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	strncpy(a.sun_path, path, sizeof a.sun_path - 1);
	int s = socket(AF_UNIX, SOCK_STREAM, 0), ready[2];
	if (s < 0 || pipe(ready) < 0 || bind(s, (void *)&a, sizeof a) < 0 || listen(s, 8) < 0) return BROKEN;
	if (fork() == 0) {
		setsid();
		if (fork() == 0) {
			for (int i = 1; i < 65; i++) signal(i, SIG_IGN);
			close(0), close(1), close(2);
			if (write(ready[1], "x", 1) != 1) _exit(BROKEN);
			for (;;) close(accept(s, NULL, NULL));
		}
		_exit(0);
	}
	char c;
	close(s);
	return read(ready[0], &c, 1) == 1 ? ESCAPED : BROKEN;
}

static int probe(const char *name, char **arg) {
#define IS(s) (strcmp(name, s) == 0)
	// files
	if (IS("read")) return contains(arg[0], "canary");
	if (IS("open_write")) return done(open(arg[0], O_WRONLY));
	if (IS("create")) return done(open(arg[0], O_CREAT | O_WRONLY, 0666));
	if (IS("list")) return opendir(arg[0]) ? ESCAPED : DENIED;
	if (IS("has_content")) return has_content(arg[0]);
	if (IS("symlink")) return symlink(arg[0], "link") < 0 ? BROKEN : contains("link", "canary");
	if (IS("symlink_race")) return symlink_race(arg[0]);
	if (IS("exchange_race")) return exchange_race(arg[0]);
	if (IS("hardlink")) return done(link(arg[0], "hard"));
	if (IS("rename_out")) {
		close(open("moved", O_CREAT | O_WRONLY, 0600));
		return done(rename("moved", arg[0]));
	}
	if (IS("mknod")) return done(mknod("device", S_IFBLK | 0600, makedev(7, 0)));
	if (IS("file_handle")) return file_handle();
	if (IS("chmod_self")) return done(chmod("/proc/self/exe", 0755));
	if (IS("descriptors")) return open_descriptors();
	if (IS("devices")) return other_devices();
	// processes
	if (IS("proc_contains")) return contains(arg[0], arg[1]);
	if (IS("kill")) return done(kill(atoi(arg[0]), 0));
	if (IS("ptrace_traceme")) return done(ptrace(PTRACE_TRACEME, 0, 0, 0));
	if (IS("ptrace_attach")) return trace_child();
	if (IS("vm_read")) return vm_access(SYS_process_vm_readv);
	if (IS("vm_write")) return vm_access(SYS_process_vm_writev);
	if (IS("pidfd_getfd")) return done(syscall(SYS_pidfd_getfd, syscall(SYS_pidfd_open, getpid(), 0), 0, 0));
	if (IS("kcmp")) return done(syscall(SYS_kcmp, getpid(), getpid(), 0, 0, 0));
	if (IS("environment")) return environment(arg[0]);
	if (IS("setuid")) return done(setuid(0));
	if (IS("setgid")) return done(setgid(0));
	if (IS("set_id")) return set_id(arg[0]);
	if (IS("setuid_program")) return run_setuid(arg[0]);
	if (IS("is_root")) return geteuid() == 0 ? ESCAPED : DENIED;
	if (IS("bounding_set")) return prctl(PR_CAPBSET_READ, 21, 0, 0, 0) == 1 ? ESCAPED : DENIED;
	if (IS("nice")) return done(setpriority(PRIO_PROCESS, 0, -10));
	// namespaces and mounts
	if (IS("unshare_user")) return done(unshare(CLONE_NEWUSER));
	if (IS("unshare_user_net")) return done(unshare(CLONE_NEWUSER | CLONE_NEWNET | CLONE_NEWNS));
	if (IS("clone_user")) return clone_flags(CLONE_NEWUSER);
	if (IS("clone_high_bits")) return clone_flags(CLONE_NEWUSER | 1UL << 40);
	if (IS("clone3_user")) return clone3_flags(CLONE_NEWUSER);
	if (IS("setns")) return done(setns(open("/proc/self/ns/uts", O_RDONLY), 0));
	if (IS("mount")) return reached(syscall(SYS_mount, "none", "/nonexistent", "tmpfs", 0, 0));
	if (IS("umount")) return reached(syscall(SYS_umount2, "/nonexistent", 0));
	if (IS("pivot_root")) return reached(syscall(SYS_pivot_root, "/nonexistent", "/nonexistent"));
	if (IS("chroot")) return reached(chroot("/nonexistent"));
	if (IS("fsopen")) return reached(syscall(SYS_fsopen, "nonexistent", 0));
	if (IS("open_tree")) return done(syscall(SYS_open_tree, AT_FDCWD, "/", 0));
	if (IS("move_mount")) return reached(syscall(SYS_move_mount, -1, "", -1, "", 0));
	if (IS("hostname")) return in_host_name(arg[0]);
	if (IS("sethostname")) return reached(syscall(SYS_sethostname, NULL, 1));
	// the kernel
	if (IS("io_uring_setup")) {
		char params[120] = {0};
		return done(syscall(SYS_io_uring_setup, 1, params));
	}
	if (IS("io_uring_enter")) return reached(syscall(SYS_io_uring_enter, -1, 0, 0, 0, 0, 0));
	if (IS("io_uring_register")) return reached(syscall(SYS_io_uring_register, -1, 0, 0, 0));
	if (IS("keyctl")) return done(syscall(SYS_keyctl, KEYCTL_GET_KEYRING_ID, KEY_SPEC_PROCESS_KEYRING, 1));
	if (IS("add_key")) return done(syscall(SYS_add_key, "user", "conclave-probe", "x", 1, KEY_SPEC_PROCESS_KEYRING));
	if (IS("request_key")) return reached(syscall(SYS_request_key, "user", "conclave-nonexistent", NULL, 0));
	if (IS("bpf")) return reached(syscall(SYS_bpf, 9999, 0, 0));
	if (IS("perf")) return perf();
	if (IS("userfaultfd")) return done(syscall(SYS_userfaultfd, 1));
	if (IS("kexec")) return reached(syscall(SYS_kexec_load, 0, 9999, 0, ~0UL));
	if (IS("init_module")) return reached(syscall(SYS_init_module, NULL, 0, ""));
	if (IS("delete_module")) return reached(syscall(SYS_delete_module, "nonexistent", 0));
	if (IS("personality")) return done(syscall(SYS_personality, 0x0040000));
	if (IS("reboot")) return reached(syscall(SYS_reboot, 0, 0, 0, 0));
	if (IS("settime")) return reached(syscall(SYS_clock_settime, 9999, 0));
	if (IS("swapon")) return reached(syscall(SYS_swapon, "/nonexistent", 0));
	if (IS("syslog")) return done(syscall(SYS_syslog, 10, 0, 0));
	if (IS("fanotify")) return done(syscall(SYS_fanotify_init, 0, 0));
	if (IS("vmsplice")) return reached(syscall(SYS_vmsplice, -1, 0, 0, 0));
	if (IS("memfd")) return done(memfd_create("probe", 0));
	if (IS("shmget")) return done(syscall(SYS_shmget, 0, 4096, 01600));
	if (IS("int80")) return int80();
#ifdef __x86_64__
	if (IS("x32")) return done(syscall(0x40000000 | 39)); // getpid
	if (IS("modify_ldt")) return reached(syscall(SYS_modify_ldt, 0, NULL, 0));
	if (IS("iopl")) return done(syscall(SYS_iopl, 3));
#else
	if (IS("x32") || IS("modify_ldt") || IS("iopl")) return UNKNOWN;
#endif
	if (IS("tiocsti")) return input_terminal(TIOCSTI);
	if (IS("tioclinux")) return input_terminal(TIOCLINUX);
	if (IS("tiocsti_high_bits")) return input_terminal(TIOCSTI | 1UL << 40);
	// sockets
	if (IS("tcp")) return connect_inet(SOCK_STREAM, arg[0], atoi(arg[1]));
	if (IS("udp")) return connect_inet(SOCK_DGRAM, arg[0], atoi(arg[1]));
	if (IS("unix")) return connect_unix(arg[0], 0);
	if (IS("abstract")) return connect_unix(arg[0], 1);
	if (IS("raw_socket")) return done(socket(AF_INET, SOCK_RAW, IPPROTO_ICMP));
	if (IS("packet_socket")) return done(socket(AF_PACKET, SOCK_DGRAM, 0));
	if (IS("netlink")) return done(socket(AF_NETLINK, SOCK_DGRAM, 0));
	if (IS("vsock")) return done(socket(AF_VSOCK, SOCK_STREAM, 0));
	if (IS("alg")) return done(socket(AF_ALG, SOCK_SEQPACKET, 0));
	// bombs
	if (IS("fork_bomb")) return fork_bomb(atoi(arg[0]));
	if (IS("memory_bomb")) return memory_bomb(atol(arg[0]));
	if (IS("many_memory_bombs")) return many_memory_bombs(atoi(arg[0]), atol(arg[1]));
	if (IS("fill")) return fill(arg[0], atoi(arg[1]), atol(arg[2]), 0);
	if (IS("fill_deleted")) return fill(arg[0], atoi(arg[1]), atol(arg[2]), 1);
	if (IS("fill_hidden")) return fill_hidden(atoi(arg[0]), atol(arg[1]));
	if (IS("allocate")) return allocate(atol(arg[0]));
	if (IS("nest")) return nest(atoi(arg[0]));
	if (IS("many_files")) return many_files(atoi(arg[0]));
	if (IS("open_bomb")) return open_bomb(atoi(arg[0]));
	if (IS("output_bomb"))
		for (;;)
			if (puts("0123456789012345678901234567890123456789012345678901234567890123") < 0) return DENIED;
	if (IS("spin"))
		for (;;) getpid();
	if (IS("listen")) return listen_forever(arg[0]);
	if (IS("listen_and_wait")) {
		int verdict = listen_forever(arg[0]);
		puts("listening"), fflush(stdout);
		pause();
		return verdict;
	}
	if (IS("hang")) {
		puts("ready"), fflush(stdout);
		for (;;) pause();
	}
	fprintf(stderr, "no probe %s\n", name);
	return BROKEN;
}

int main(int argc, char **argv) {
	if (argc < 2) return BROKEN;
	return probe(argv[1], argv + 2);
}
