/* Streams that libc's own streams read and write. Part of `descriptors.c`. */
#ifndef DESCRIPTORS_STDIO_H
#define DESCRIPTORS_STDIO_H

/* Standard streams without a fork. */
static void stdio_client(int fd)
{
	exchange(fd, fd, 100000, 1);
	FILE *file = fdopen(fd, "r+");
	CHECK(file != NULL);
	for (int i = 0; i < 1000; i++)
		fprintf(file, "line %d\n", i);
	fflush(file);
	char line[100], want[100];
	for (int i = 0; i < 1000; i++) {
		CHECK(fgets(line, sizeof(line), file) != NULL);
		snprintf(want, sizeof(want), "line %d\n", i);
		CHECK(!strcmp(line, want));
	}
	printf("1000 lines\n");
	SHOW(fclose(file));
	SHOW(write(fd, "x", 1));
	int again = connect_to_server();
	CHECK(again == fd);
	exchange(again, again, 300000, 2);
}

static void read_stdio(FILE *in, size_t n, uint64_t seed)
{
	static unsigned char buf[LATER];
	CHECK(fread(buf, 1, n, in) == n);
	check_stream(buf, n, seed, 0);
}

static void write_stdio(FILE *out, size_t n, uint64_t seed)
{
	static unsigned char buf[LATER];
	fill_stream(buf, n, seed, 0);
	CHECK(fwrite(buf, 1, n, out) == n);
	CHECK(fflush(out) == 0);
}

/* The other side of `unread_client`, by way of libc's streams. */
static void answer_stdio(FILE *in, FILE *out)
{
	read_stdio(in, UNREAD, 1);
	read_stdio(in, LATER, 2);
	write_stdio(out, UNREAD, 1);
	write_stdio(out, LATER, 2);
	for (int i = 0; i < 10; i++) {
		read_stdio(in, 30000, (uint64_t)i);
		write_stdio(out, 30000, (uint64_t)i);
	}
	int last = getc(in);
	printf("then %d, end %d, error %d\n", last, feof(in) != 0, ferror(in) != 0);
}

static void stdio_unread_server(int fd)
{
	await_unread(fd);
	int other = dup(fd);
	FILE *in = fdopen(fd, "r"), *out = fdopen(other, "w");
	CHECK(in != NULL && out != NULL);
	answer_stdio(in, out);
	SHOW(fclose(in));
	SHOW(fclose(out));
	SHOW(write(fd, "x", 1));
	SHOW(waitpid(-1, NULL, 0));
}

/* libc's standard input reads what another number of the stream has left, without being told. */
static void stdin_unread_server(int fd)
{
	await_unread(fd);
	CHECK(dup2(fd, 0) == 0);
	FILE *out = fdopen(fd, "a");
	CHECK(out != NULL);
	answer_stdio(stdin, out);
	SHOW(fclose(out));
}

/* From now on there is no descriptor left for anything. */
static void use_up_descriptors(void)
{
	int null;
	struct rlimit limit;
	CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
	/* Some of those in use may lie above. */
	limit.rlim_cur = 64;
	CHECK(limit.rlim_max >= 1024);
	CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
	while ((null = open("/dev/null", O_RDONLY)) >= 0)
		CHECK(null < 64);
	CHECK(errno == EMFILE);
}

static void stdio_full_server(int fd)
{
	await_unread(fd);
	int other = dup(fd);
	use_up_descriptors();
	FILE *in = fdopen(fd, "r"), *out = fdopen(other, "w");
	CHECK(in != NULL && out != NULL);
	printf("open %d\n", open("/dev/null", O_RDONLY));
	answer_stdio(in, out);
}

/* The peer does nothing while the stream goes over to libc, and then writes. */
static void idle_client(int fd)
{
	introduce(fd);
	for (int i = 0; i < 3; i++) {
		await_signal();
		put_stream(fd, LATER, 2);
		get_stream(fd, LATER, 3);
	}
	SHOW(shutdown(fd, SHUT_WR));
	show_end(fd);
}

static void stdio_idle_server(int fd)
{
	pid_t peer;
	get(fd, &peer, sizeof(peer));
	FILE *in = fdopen(dup(fd), "r"), *out = fdopen(fd, "w");
	CHECK(in != NULL && out != NULL);
	for (int i = 0; i < 3; i++) {
		CHECK(kill(peer, SIGUSR1) == 0);
		read_stdio(in, LATER, 2);
		write_stdio(out, LATER, 3);
	}
	printf("then %d\n", getc(in));
}

/* The peer is stopped meanwhile. */
static void stdio_stopped_server(int fd)
{
	pid_t peer;
	get(fd, &peer, sizeof(peer));
	CHECK(kill(peer, SIGSTOP) == 0);
	FILE *in = fdopen(dup(fd), "r"), *out = fdopen(fd, "w");
	CHECK(in != NULL && out != NULL);
	CHECK(kill(peer, SIGCONT) == 0);
	for (int i = 0; i < 3; i++) {
		CHECK(kill(peer, SIGUSR1) == 0);
		read_stdio(in, LATER, 2);
		write_stdio(out, LATER, 3);
	}
	printf("then %d\n", getc(in));
}

/* This end has said that it is done before; then the other has. */
static void stdio_shut_server(int fd)
{
	await_unread(fd);
	SHOW(shutdown(fd, SHUT_WR));
	FILE *in = fdopen(fd, "r");
	CHECK(in != NULL);
	SHOW(send(fd, "x", 1, MSG_NOSIGNAL));
	read_stdio(in, UNREAD, 1);
	read_stdio(in, LATER, 2);
	printf("then %d\n", getc(in));
	SHOW(fclose(in));
}

static void shut_client(int fd)
{
	put_stream(fd, UNREAD, 1);
	show_end(fd);
	put_stream(fd, LATER, 2);
	SHOW(shutdown(fd, SHUT_WR));
}

static void stdio_ended_server(int fd)
{
	await_unread(fd);
	await_end(fd);
	FILE *in = fdopen(fd, "r"), *out = fdopen(dup(fd), "w");
	CHECK(in != NULL && out != NULL);
	read_stdio(in, UNREAD, 1);
	printf("then %d\n", getc(in));
	write_stdio(out, LATER, 2);
	SHOW(fclose(in));
	SHOW(fclose(out));
}

static void ended_client(int fd)
{
	put_stream(fd, UNREAD, 1);
	SHOW(shutdown(fd, SHUT_WR));
	get_stream(fd, LATER, 2);
	show_end(fd);
}

/* A thread goes on reading while the stream becomes one that libc writes to. */
static void *read_lines(void *fd)
{
	for (int i = 0; i < 1000; i++) {
		char got[20], want[20];
		int n = snprintf(want, sizeof(want), "line %d\n", i);
		get((int)(intptr_t)fd, got, (size_t)n);
		CHECK(!memcmp(got, want, (size_t)n));
	}
	return NULL;
}

static void stdio_threads_client(int fd)
{
	pthread_t thread;
	exchange(fd, fd, 100000, 1);
	CHECK(pthread_create(&thread, NULL, read_lines, (void *)(intptr_t)fd) == 0);
	FILE *out = fdopen(dup(fd), "w");
	CHECK(out != NULL && setvbuf(out, NULL, _IOLBF, 0) == 0);
	for (int i = 0; i < 1000; i++)
		fprintf(out, "line %d\n", i);
	CHECK(pthread_join(thread, NULL) == 0);
	SHOW(fclose(out));
	exchange(fd, fd, 100000, 2);
}

/* libc's own writes in the midst of others; and numbers of every kind, to see the arguments pass. */
static void print_client(int fd)
{
	char got[200];
	for (int i = 0; i < 40; i++) {
		exchange(fd, fd, 500, (uint64_t)i);
		int n = dprintf(fd, "%d %s %.3f %.3f %ld %c %.2f %d %d %d %.1f\n", i, "text", i * 0.5, 2.25,
				123456789012L, 'c', 3.5, 7, 8, 9, 0.5);
		CHECK(n > 0 && n < (int)sizeof(got));
		get(fd, got, (size_t)n);
		got[n] = 0;
		if (i % 20 == 0)
			fputs(got, stdout);
	}
}

#endif
