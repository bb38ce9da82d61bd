/* What the processes of a program share, and how a process answers. Part of `epoll_net.c`. */
#ifndef EPOLL_NET_STATE_H
#define EPOLL_NET_STATE_H

enum {
	PLACES = 40,
	CONNECTIONS = 8,
	LISTENERS = 4,
	THREADS = 4,
	MOST = 1 << 16,
	MOST_EVENTS = 8,
	/* Descriptors of the driver are above the program's. */
	HIGH = 600,
};

enum kind { NONE, STREAM, LISTENER, PIPE, EVENT, TIMER, SET, FRESH };

struct place {
	int fd;
	int is_open;
	enum kind kind;
	/* Of a stream: its connection and end. Of a listener: its number. Of a socket that is not connected: whether it has
	 * been in a set. */
	int number;
	int end;
};

/* End 0 connects, end 1 accepts. */
struct connection {
	int is_used;
	uint16_t ports[2];
	uint64_t sent[2];
	uint64_t read[2];
	/* Where each end's bytes begin anew: how many it takes to fill a stream is not compared. */
	uint64_t base[2];
	/* Descriptors of each end, in all processes. One that waits to be accepted counts. */
	int holders[2];
	int is_full;
	/* Whether an end has been in a set. */
	int is_watched;
};

struct listening {
	uint16_t port;
	int holders;
	int queue[CONNECTIONS];
	int waiting;
};

/* What the processes of a program share. */
struct shared {
	struct connection connections[CONNECTIONS];
	struct listening listeners[LISTENERS];
	/* Calls so far that may have ended a stream, which the other process acknowledges. */
	_Atomic unsigned long ends;
	/* Whether bytes went past the kernel. */
	int past_kernel;
};

struct order {
	char word[16];
	int child;
	int thread;
	long long a[5];
	/* For each set, by its place, whether a thread that waits in it is to return; -1 if that is not known. */
	long long expect;
};

static struct place places[PLACES];
static struct shared *shared;
static unsigned char room[MOST];
static char answer[4096];
static int diag = -1;
static int child_orders = -1, child_answers = -1;
static pid_t child_pid;
static volatile sig_atomic_t handled;

static void say(const char *format, ...)
{
	va_list args;
	va_start(args, format);
	vsnprintf(answer, sizeof(answer), format, args);
	va_end(args);
}

static const char *why(int e)
{
	switch (e) {
	case EEXIST: return "EEXIST";
	case ENOENT: return "ENOENT";
	case EPERM: return "EPERM";
	case ELOOP: return "ELOOP";
	}
	return errno_name(e);
}

static void say_result(long n)
{
	if (n < 0)
		say("%s", why(errno));
	else
		say("%ld", n);
}

static void say_bytes(long n)
{
	uint32_t digest = 2166136261u;
	for (long i = 0; i < n && i < MOST; i++)
		digest = (digest ^ room[i]) * 16777619u;
	if (n <= 0)
		say_result(n);
	else
		say("%ld:%08x", n, digest);
}

static long bare(long number, long a, long b, long c, long d, long e, long f)
{
	return bare_syscall(number, a, b, c, d, e, f);
}

/* For what only the kernel's clock brings. */
static void nap(void)
{
	struct timespec some = {.tv_nsec = 200000};
	bare(SYS_nanosleep, (long)&some, 0, 0, 0, 0, 0);
}

#endif
