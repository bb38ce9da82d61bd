/* A writer that is more than 64 MiB ahead of its reader, all of it in the kernel's queues, when the
 * connection leaves TCP. Queues that large take a network namespace in which this program sets the
 * limits.
 *
 *   ahead SERVER_LIBRARY CLIENT_LIBRARY MIB     what to preload, "-" for nothing
 */
#include "common.h"
#include <net/if.h>

enum { MIB = 1 << 20, SEED = 11, ROUNDS = 5000 };

static void write_file(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY);
	if (fd < 0 || write(fd, text, strlen(text)) != (ssize_t)strlen(text))
		fail("%s", path);
	close(fd);
}

static void enter_namespace(void)
{
	uid_t user = getuid();
	char map[64];
	snprintf(map, sizeof(map), "%u %u 1", user, user);
	if (user == 0) {
		CHECK(unshare(CLONE_NEWNET) == 0);
	} else {
		CHECK(unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0);
		write_file("/proc/self/uid_map", map);
	}
	write_file("/proc/sys/net/ipv4/tcp_rmem", "4096 400000000 400000000");
	write_file("/proc/sys/net/ipv4/tcp_wmem", "4096 8000000 8000000");
	int fd = socket(AF_INET, SOCK_DGRAM, 0);
	struct ifreq lo = {.ifr_name = "lo", .ifr_flags = IFF_UP};
	CHECK(fd >= 0 && ioctl(fd, SIOCSIFFLAGS, &lo) == 0);
	close(fd);
}

static pid_t start(const char *library, const char *role, const char *mib, int port)
{
	char number[16];
	snprintf(number, sizeof(number), "%d", port);
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
		unsetenv("LD_PRELOAD");
		if (strcmp(library, "-"))
			setenv("LD_PRELOAD", library, 1);
		execl("/proc/self/exe", "ahead", role, mib, number, (char *)NULL);
		_exit(127);
	}
	return child;
}

static uint64_t total(const char *mib)
{
	return (uint64_t)atoi(mib) * MIB + ROUNDS + 2 * MIB;
}

static int receive(int fd, const char *mib)
{
	static unsigned char buf[MIB];
	uint64_t at = 0;
	hear(0);
	/* Reads what lies far behind the writer, and has it make calls meanwhile. */
	for (; at < ROUNDS; at++) {
		get(fd, buf, 1);
		check_stream(buf, 1, SEED, at);
		tell(fd);
	}
	ssize_t n;
	while ((n = read(fd, buf, sizeof(buf))) > 0) {
		check_stream(buf, (size_t)n, SEED, at);
		at += (uint64_t)n;
	}
	CHECK(n == 0 && at == total(mib));
	return 0;
}

static int transmit(int fd, const char *mib)
{
	static unsigned char buf[MIB];
	uint64_t at = 0, ahead = total(mib) - ROUNDS - 2 * MIB;
	for (; at < ahead; at += MIB) {
		fill_stream(buf, MIB, SEED, at);
		put(fd, buf, MIB);
	}
	tell(1);
	for (; at < ahead + ROUNDS; at++) {
		fill_stream(buf, 1, SEED, at);
		put(fd, buf, 1);
		hear(fd);
	}
	for (; at < total(mib); at += MIB) {
		fill_stream(buf, MIB, SEED, at);
		put(fd, buf, MIB);
	}
	return close(fd);
}

int main(int argc, char **argv)
{
	CHECK(argc == 4);
	if (!strcmp(argv[1], "server")) {
		int fd = accept(atoi(argv[3]), NULL, NULL);
		CHECK(fd >= 0);
		return receive(fd, argv[2]);
	}
	if (!strcmp(argv[1], "client")) {
		set_server((uint16_t)atoi(argv[3]));
		return transmit(connect_to_server(), argv[2]);
	}
	enter_namespace();
	int go[2];
	CHECK(pipe(go) == 0);
	int listening = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(listening >= 0 && listen(listening, 1) == 0);
	socklen_t len = sizeof(server_address);
	CHECK(getsockname(listening, (struct sockaddr *)&server_address, &len) == 0);
	CHECK(dup2(go[0], 0) == 0 && fcntl(go[1], F_SETFD, FD_CLOEXEC) == 0);
	pid_t server = start(argv[1], "server", argv[3], listening);
	int out = dup(1);
	CHECK(out >= 0 && dup2(go[1], 1) == 1);
	pid_t client = start(argv[2], "client", argv[3], ntohs(server_address.sin_port));
	CHECK(dup2(out, 1) == 1 && close(go[1]) == 0);
	int ends[2];
	CHECK(waitpid(server, &ends[0], 0) == server && waitpid(client, &ends[1], 0) == client);
	printf("server %d, client %d\n", ends[0], ends[1]);
	return 0;
}
