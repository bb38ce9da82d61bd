/* Processes: orders, answers, children. Part of `epoll_net.c`. */
#ifndef EPOLL_NET_PROCESSES_H
#define EPOLL_NET_PROCESSES_H

static char input[1 << 16];
static size_t input_at, input_end;
static int input_fd = 0, output_fd = 1;
static char output[1 << 16];
static size_t output_end;

static void flush(void)
{
	for (size_t at = 0; at < output_end;) {
		long n = bare(SYS_write, output_fd, (long)(output + at), (long)(output_end - at), 0, 0, 0);
		if (n == -EINTR)
			continue;
		CHECK(n > 0);
		at += (size_t)n;
	}
	output_end = 0;
}

static int get_line(int fd, char *line, size_t room_)
{
	for (;;) {
		char *end = memchr(input + input_at, '\n', input_end - input_at);
		if (end) {
			size_t n = (size_t)(end - (input + input_at));
			CHECK(n < room_);
			memcpy(line, input + input_at, n);
			line[n] = 0;
			input_at += n + 1;
			return 1;
		}
		flush();
		memmove(input, input + input_at, input_end - input_at);
		input_end -= input_at;
		input_at = 0;
		long n = bare(SYS_read, fd, (long)(input + input_end), (long)(sizeof(input) - input_end), 0, 0, 0);
		if (n == -EINTR)
			continue;
		if (n <= 0)
			return 0;
		input_end += (size_t)n;
	}
}

static void parse(const char *line, struct order *o)
{
	char *at;
	size_t n = strcspn(line, " ");
	CHECK(n < sizeof(o->word));
	memcpy(o->word, line, n);
	o->word[n] = 0;
	long long numbers[8];
	at = (char *)line + n;
	for (int i = 0; i < 8; i++)
		numbers[i] = strtoll(at, &at, 0);
	o->child = (int)numbers[0];
	o->thread = (int)numbers[1];
	memcpy(o->a, numbers + 2, sizeof(o->a));
	o->expect = numbers[7];
}

static void serve(void);

static void do_fork(void)
{
	int down[2], up[2];
	CHECK(bare(SYS_pipe2, (long)down, O_CLOEXEC, 0, 0, 0, 0) == 0);
	CHECK(bare(SYS_pipe2, (long)up, O_CLOEXEC, 0, 0, 0, 0) == 0);
	for (int i = 0; i < 2; i++) {
		down[i] = move_high(down[i]);
		up[i] = move_high(up[i]);
	}
	for (struct place *p = places; p < places + PLACES; p++)
		if (p->is_open)
			hold(p, 1);
	flush();
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		bare(SYS_close, down[1], 0, 0, 0, 0, 0);
		bare(SYS_close, up[0], 0, 0, 0, 0, 0);
		input_fd = down[0];
		output_fd = up[1];
		input_at = input_end = output_end = 0;
		diag = (int)bare(SYS_socket, AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG, 0, 0, 0);
		diag = move_high(diag);
		serve();
		_exit(1);
	}
	bare(SYS_close, down[0], 0, 0, 0, 0, 0);
	bare(SYS_close, up[1], 0, 0, 0, 0, 0);
	child_orders = down[1];
	child_answers = up[0];
	child_pid = pid;
	say("forked");
}

/* The child ends, and its descriptors with it. */
static void do_exit(void)
{
	for (struct place *p = places; p < places + PLACES; p++)
		if (p->is_open)
			hold(p, -1);
	_exit(0);
}

static void reap(void)
{
	CHECK(waitpid(child_pid, NULL, 0) == child_pid);
	bare(SYS_close, child_orders, 0, 0, 0, 0, 0);
	bare(SYS_close, child_answers, 0, 0, 0, 0, 0);
	child_orders = child_answers = -1;
	child_pid = 0;
	settle_all();
	say("0");
}

static void order_child(const char *line)
{
	char text[256];
	int n = snprintf(text, sizeof(text), "%s\n", line);
	CHECK(bare(SYS_write, child_orders, (long)text, n, 0, 0, 0) == n);
	if (!strncmp(line, "exit ", 5)) {
		reap();
		return;
	}
	for (size_t got = 0;;) {
		long one = bare(SYS_read, child_answers, (long)(answer + got), 1, 0, 0, 0);
		if (one == -EINTR)
			continue;
		if (one != 1) {
			int status;
			waitpid(child_pid, &status, 0);
			fail("the child has died: %x", (unsigned)status);
		}
		if (answer[got] == '\n') {
			answer[got] = 0;
			return;
		}
		got++;
	}
}

/* Ends a program: closes everything. */
static void do_reset(void)
{
	struct linger now = {.l_onoff = 1};
	for (struct place *p = places; p < places + PLACES; p++) {
		if (p->is_open && p->kind == STREAM)
			/* So that no connection waits out its time. */
			setsockopt(p->fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
		if (p->is_open)
			CHECK(close(p->fd) == 0);
		*p = (struct place){.fd = -1};
	}
	int lowest = (int)bare(SYS_fcntl, output_fd, F_DUPFD, 3, 0, 0, 0);
	CHECK(bare(SYS_close, lowest, 0, 0, 0, 0, 0) == 0);
	/* A descriptor that was left open below the program's has a number that the program would have got. */
	say("%d", lowest);
}

/* Acknowledges what another process sends, until it has made as many calls that end streams as a says. */
static void do_ack(const struct order *o)
{
	for (int tries = 0; shared->ends < (unsigned long)o->a[0]; tries++) {
		sched_yield();
		if (tries > 20)
			nap();
	}
	settle_all();
	say("0");
}

/* Until the kernel's clock has ticked, which a writer on a ring looks at the socket after. */
static void do_tick(void)
{
	struct timespec first, now;
	CHECK(clock_gettime(CLOCK_MONOTONIC_COARSE, &first) == 0);
	do {
		nap();
		CHECK(clock_gettime(CLOCK_MONOTONIC_COARSE, &now) == 0);
	} while (now.tv_sec * 1000 + now.tv_nsec / 1000000 == first.tv_sec * 1000 + first.tv_nsec / 1000000);
	say("0");
}

#endif
