/* Signals: what handlers see and may do, and what interrupted calls answer. */
#include "common.h"
#include <sched.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <sys/syscall.h>

static volatile sig_atomic_t count;
static int stream = -1;

static void handle(int number)
{
	count += number > 0;
}

static void set_action(int number, void (*handler)(int), int flags)
{
	struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
	sigemptyset(&action.sa_mask);
	CHECK(sigaction(number, &action, NULL) == 0);
}

static void alarm_in(long usec, long every)
{
	struct itimerval t = {.it_value.tv_usec = usec, .it_interval.tv_usec = every};
	CHECK(setitimer(ITIMER_REAL, &t, NULL) == 0);
}

/* A peer that answers what it is told, until the end. */
static void patient_server(int fd)
{
	char c;
	long n = 0;
	while (read(fd, &c, 1) == 1) {
		put(fd, &c, 1);
		n++;
	}
	(void)n;
	printf("end\n");
}

/* A handler that did not ask for a restart ends a blocking call. */
static void interrupt_client(int fd)
{
	char c;
	struct iovec iov = {.iov_base = &c, .iov_len = 1};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
	set_action(SIGALRM, handle, 0);
	alarm_in(20000, 0);
	SHOW(recv(fd, &c, 1, 0));
	alarm_in(20000, 0);
	SHOW(read(fd, &c, 1));
	alarm_in(20000, 0);
	SHOW(readv(fd, &iov, 1));
	alarm_in(20000, 0);
	SHOW(recvmsg(fd, &msg, 0));
	alarm_in(20000, 0);
	SHOW(recv(fd, &c, 1, MSG_WAITALL));
	printf("%d handlers\n", (int)count);
	tell(fd);
	hear(fd);
}

/* poll and select end even for a handler that asked for a restart. */
static void interrupt_poll_client(int fd)
{
	struct pollfd p = {.fd = fd, .events = POLLIN, .revents = 7};
	fd_set rd;
	sigset_t none;
	sigemptyset(&none);
	set_action(SIGALRM, handle, SA_RESTART);
	alarm_in(20000, 0);
	SHOW(poll(&p, 1, -1));
	alarm_in(20000, 0);
	SHOW(ppoll(&p, 1, NULL, &none));
	FD_ZERO(&rd);
	FD_SET(fd, &rd);
	alarm_in(20000, 0);
	SHOW(select(fd + 1, &rd, NULL, NULL, NULL));
	alarm_in(20000, 0);
	SHOW(pselect(fd + 1, &rd, NULL, NULL, NULL, &none));
	printf("%d handlers\n", (int)count);
	/* The mask of ppoll holds only while it waits. */
	sigset_t blocked, before;
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGALRM);
	CHECK(sigprocmask(SIG_BLOCK, &blocked, &before) == 0);
	alarm_in(1000, 0);
	struct timespec limit = {.tv_nsec = 30000000};
	SHOW(ppoll(&p, 1, &limit, &blocked));
	printf("%d handlers\n", (int)count);
	SHOW(ppoll(&p, 1, NULL, &before));
	printf("%d handlers\n", (int)count);
	CHECK(sigprocmask(SIG_SETMASK, &before, NULL) == 0);
	tell(fd);
	hear(fd);
}

/* A handler that asked for a restart, and makes the peer answer, three times. */
static void ask(int number)
{
	count += number > 0;
	int saved = errno;
	CHECK(count > 3 || write(stream, "!", 1) == 1);
	errno = saved;
}

static void restart_client(int fd)
{
	char buf[2];
	stream = fd;
	set_action(SIGALRM, ask, SA_RESTART);
	alarm_in(20000, 0);
	SHOW(recv(fd, buf, 1, 0));
	alarm_in(20000, 0);
	SHOW(read(fd, buf, 1));
	alarm_in(20000, 20000);
	SHOW(recv(fd, buf, 2, MSG_WAITALL));
	alarm_in(0, 0);
	printf("%s handlers\n", count >= 4 ? "enough" : "few");
	set_action(SIGALRM, handle, SA_RESTART);
}

/* With a time-out of the socket's own, nothing is restarted. */
static void restart_timeout_client(int fd)
{
	char c;
	struct timeval limit = {.tv_sec = 100};
	CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) == 0);
	set_action(SIGALRM, handle, SA_RESTART);
	alarm_in(20000, 0);
	SHOW(recv(fd, &c, 1, 0));
	printf("%d handlers\n", (int)count);
}

/* Until nothing more fits, here nor at a peer that does not read. */
static void fill_up(int fd)
{
	static char buf[65536];
	do {
		while (send(fd, buf, sizeof(buf), MSG_DONTWAIT) > 0)
			continue;
		while (send(fd, buf, 1, MSG_DONTWAIT) > 0)
			continue;
		usleep(50000);
	} while (send(fd, buf, 1, MSG_DONTWAIT) > 0);
	CHECK(errno == EAGAIN);
}

/* The same of a send. */
static void restart_timeout_send_client(int fd)
{
	pid_t reader;
	struct timeval limit = {.tv_sec = 100};
	get(fd, &reader, sizeof(reader));
	CHECK(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)) == 0);
	set_action(SIGALRM, handle, SA_RESTART);
	fill_up(fd);
	alarm_in(20000, 20000);
	SHOW(send(fd, "x", 1, 0));
	alarm_in(0, 0);
	CHECK(kill(reader, SIGUSR1) == 0);
}

static void restart_timeout_send_server(int fd)
{
	char buf[4096];
	introduce(fd);
	await_signal();
	while (read(fd, buf, sizeof(buf)) > 0)
		continue;
	printf("end\n");
}

/* A handler that leaves by longjmp, over and over; then the stream goes on. */
static sigjmp_buf back;

static void leave(int number)
{
	siglongjmp(back, number);
}

static void longjmp_client(int fd)
{
	static volatile int rounds;
	char c;
	set_action(SIGALRM, leave, 0);
	while (rounds < 20) {
		if (sigsetjmp(back, 1) == 0) {
			alarm_in(2000, 0);
			recv(fd, &c, 1, 0);
			fail("received");
		}
		rounds++;
		tell(fd);
		hear(fd);
	}
	printf("%d rounds\n", rounds);
	CHECK(shutdown(fd, SHUT_WR) == 0);
	show_end(fd);
	SHOW(close(fd));
}

/* Out of a call that moves bytes, at any moment: none may be lost or come twice to the peer,
 * though how many this end thinks it wrote is unknown. */
static volatile int jumping;

static void leave_if_jumping(int number)
{
	count += number > 0;
	if (jumping) {
		jumping = 0;
		siglongjmp(back, 1);
	}
}

static void longjmp_write_client(int fd)
{
	static unsigned char zeros[5000];
	static volatile int rounds;
	set_action(SIGALRM, leave_if_jumping, SA_RESTART);
	alarm_in(300, 300);
	while (rounds < 300) {
		if (sigsetjmp(back, 1) == 0) {
			jumping = 1;
			for (;;)
				put(fd, zeros, sizeof(zeros));
		}
		rounds++;
	}
	alarm_in(0, 0);
	put(fd, "E", 1);
	CHECK(shutdown(fd, SHUT_WR) == 0);
	show_end(fd);
}

static void longjmp_write_server(int fd)
{
	static unsigned char buf[65536];
	ssize_t n;
	unsigned char last = 0;
	while ((n = read(fd, buf, sizeof(buf))) > 0) {
		for (ssize_t i = 0; i < n; i++) {
			CHECK(last == 0);
			last = buf[i];
		}
	}
	printf("%zd after %c\n", n, last);
}

/* A storm of signals while checked bytes move both ways. */
static void *recv_thread(void *fd)
{
	sigset_t all;
	sigemptyset(&all);
	get_stream(*(int *)fd, 8u << 20, 2);
	return NULL;
}

static void storm_client(int fd)
{
	pthread_t thread;
	set_action(SIGALRM, handle, SA_RESTART);
	set_action(SIGUSR1, handle, SA_RESTART | SA_NODEFER);
	alarm_in(150, 150);
	CHECK(pthread_create(&thread, NULL, recv_thread, &fd) == 0);
	for (int i = 0; i < 800; i++) {
		unsigned char part[10486];
		fill_stream(part, sizeof(part), 1, (uint64_t)i * sizeof(part));
		int before = (int)count;
		pthread_kill(thread, SIGUSR1);
		put(fd, part, sizeof(part));
		/* However fast the bytes move: the alarm rings on. */
		while (i % 4 == 0 && (int)count == before)
			sched_yield();
	}
	CHECK(pthread_join(thread, NULL) == 0);
	alarm_in(0, 0);
	printf("%s\n", count > 100 ? "storm" : "calm");
	CHECK(shutdown(fd, SHUT_WR) == 0);
	show_end(fd);
}

static void storm_server(int fd)
{
	set_action(SIGALRM, handle, SA_RESTART);
	alarm_in(170, 170);
	pthread_t thread;
	(void)thread;
	static unsigned char buf[65536];
	uint64_t in = 0, out = 0;
	while (in < 800 * 10486u || out < 8u << 20) {
		struct pollfd p = {.fd = fd, .events = (short)((in < 800 * 10486u ? POLLIN : 0) | (out < 8u << 20 ? POLLOUT : 0))};
		if (poll(&p, 1, -1) < 0) {
			CHECK(errno == EINTR);
			continue;
		}
		if (p.revents & POLLIN) {
			ssize_t n = recv(fd, buf, sizeof(buf), 0);
			CHECK(n > 0);
			check_stream(buf, (size_t)n, 1, in);
			in += (uint64_t)n;
		}
		if (p.revents & POLLOUT) {
			size_t len = (8u << 20) - out < 20000 ? (8u << 20) - (size_t)out : 20000;
			fill_stream(buf, len, 2, out);
			ssize_t n = send(fd, buf, len, MSG_DONTWAIT);
			CHECK(n > 0 || errno == EAGAIN);
			out += n > 0 ? (uint64_t)n : 0;
		}
	}
	alarm_in(0, 0);
	show_end(fd);
}

/* A handler that writes to the very stream that the interrupted code is working on. Records of
 * fixed length and kind may be mixed, but never torn or lost. */
enum { RECORD = 16 };
static volatile int handler_records;

static void write_record(int fd, char kind)
{
	char record[RECORD];
	memset(record, kind, sizeof(record));
	/* So short a write is never cut: there is room, or it waits. */
	ssize_t n = send(fd, record, sizeof(record), 0);
	if (n != sizeof(record))
		fail("record: %zd", n);
}

static void handler_write(int number)
{
	int saved = errno;
	count += number > 0;
	write_record(stream, 'h');
	handler_records++;
	errno = saved;
}

static void writing_handler_client(int fd)
{
	stream = fd;
	set_action(SIGALRM, handler_write, SA_RESTART);
	alarm_in(200, 200);
	uint32_t wrote[2] = {0};
	while (handler_records < 30) {
		write_record(fd, 'm');
		wrote[0]++;
	}
	alarm_in(0, 0);
	set_action(SIGALRM, handle, SA_RESTART);
	wrote[1] = (uint32_t)handler_records;
	char end[RECORD] = "e";
	memcpy(end + 4, wrote, sizeof(wrote));
	put(fd, end, sizeof(end));
	hear(fd);
}

static void writing_handler_server(int fd)
{
	uint32_t of_main = 0, of_handler = 0;
	char record[RECORD];
	for (;;) {
		get(fd, record, sizeof(record));
		if (record[0] == 'e')
			break;
		for (int i = 1; i < RECORD; i++)
			CHECK(record[i] == record[0]);
		CHECK(record[0] == 'm' || record[0] == 'h');
		(record[0] == 'm' ? of_main++ : of_handler++);
	}
	uint32_t wrote[2];
	memcpy(wrote, record + 4, sizeof(wrote));
	printf("%s of main, %s of the handler\n", wrote[0] == of_main ? "all" : "not all",
	       wrote[1] == of_handler ? "all" : "not all");
	tell(fd);
}

/* Threads are cancelled: where they wait, where they never wait, and where they do not allow it. */
static void cleaned(void *what)
{
	printf("clean-up %s\n", (char *)what);
}

static void *cancel_in_recv(void *fd)
{
	char c;
	pthread_cleanup_push(cleaned, "recv");
	recv(*(int *)fd, &c, 1, 0);
	pthread_cleanup_pop(0);
	return NULL;
}

static void *cancel_in_poll(void *fd)
{
	struct pollfd p = {.fd = *(int *)fd, .events = POLLIN};
	pthread_cleanup_push(cleaned, "poll");
	poll(&p, 1, -1);
	pthread_cleanup_pop(0);
	return NULL;
}

static void *cancel_in_select(void *fd)
{
	fd_set rd;
	FD_ZERO(&rd);
	FD_SET(*(int *)fd, &rd);
	pthread_cleanup_push(cleaned, "select");
	select(*(int *)fd + 1, &rd, NULL, NULL, NULL);
	pthread_cleanup_pop(0);
	return NULL;
}

static void *cancel_busy(void *fd)
{
	char c;
	pthread_cleanup_push(cleaned, "busy");
	for (;;)
		recv(*(int *)fd, &c, 1, MSG_DONTWAIT);
	pthread_cleanup_pop(0);
	return NULL;
}

static void *cancel_asynchronous(void *fd)
{
	char c;
	pthread_cleanup_push(cleaned, "asynchronous");
	/* Acts at once on a cancellation that a slow start was too late for. */
	pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
	recv(*(int *)fd, &c, 1, 0);
	pthread_cleanup_pop(0);
	return NULL;
}

static void *cancel_disabled(void *fd)
{
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
	hear(*(int *)fd);
	printf("heard all the same\n");
	return NULL;
}

static atomic_int entered;

static void *enter_recv(void *fd)
{
	char c;
	entered = 1;
	recv(*(int *)fd, &c, 1, 0);
	return NULL;
}

/* Whether the thread has been cancelled by now. */
static atomic_int cancelled;

static void *cancel_before(void *fd)
{
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
	struct pollfd never = {.fd = -1};
	while (!cancelled)
		poll(&never, 1, 10);
	pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
	pthread_cleanup_push(cleaned, "before");
	ssize_t n = write(*(int *)fd, "!", 1);
	printf("not reached: %zd\n", n);
	pthread_cleanup_pop(0);
	return NULL;
}

static void cancel_one(void *(*run)(void *), int fd, int answer)
{
	pthread_t thread;
	void *result;
	struct pollfd never = {.fd = -1};
	cancelled = 0;
	CHECK(pthread_create(&thread, NULL, run, &fd) == 0);
	poll(&never, 1, 50);
	CHECK(pthread_cancel(thread) == 0);
	cancelled = 1;
	if (answer) {
		poll(&never, 1, 20);
		tell(fd);
	}
	CHECK(pthread_join(thread, &result) == 0);
	printf("%s\n", result == PTHREAD_CANCELED ? "cancelled" : "ended");
}

static void cancel_client(int fd)
{
	cancel_one(cancel_in_recv, fd, 0);
	cancel_one(cancel_in_poll, fd, 0);
	cancel_one(cancel_in_select, fd, 0);
	cancel_one(cancel_busy, fd, 0);
	cancel_one(cancel_asynchronous, fd, 0);
	cancel_one(cancel_disabled, fd, 1);
	cancel_one(cancel_before, fd, 0);
	/* The stream is as it was. */
	for (int i = 0; i < 100; i++) {
		tell(fd);
		hear(fd);
	}
	CHECK(shutdown(fd, SHUT_WR) == 0);
	show_end(fd);
	SHOW(close(fd));
}

/* A cancellation that comes while the thread is about to wait is not missed. */
static void cancel_early_client(int fd)
{
	for (int i = 0; i < 200; i++) {
		pthread_t thread;
		void *result;
		entered = 0;
		CHECK(pthread_create(&thread, NULL, enter_recv, &fd) == 0);
		while (!entered)
			sched_yield();
		for (volatile int spin = i % 200 * 10; spin > 0; spin--)
			;
		CHECK(pthread_cancel(thread) == 0);
		CHECK(pthread_join(thread, &result) == 0);
		CHECK(result == PTHREAD_CANCELED);
	}
	tell(fd);
	hear(fd);
	CHECK(shutdown(fd, SHUT_WR) == 0);
	show_end(fd);
}

static void *exchange_for_ever(void *fd)
{
	pthread_cleanup_push(cleaned, "exchange");
	pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
	for (;;) {
		tell(*(int *)fd);
		hear(*(int *)fd);
	}
	pthread_cleanup_pop(0);
	return NULL;
}

/* A thread that can be cancelled between any two instructions is, while bytes go to and fro. */
static void cancel_exchange_client(int fd)
{
	char c;
	cancel_one(exchange_for_ever, fd, 0);
	CHECK(shutdown(fd, SHUT_WR) == 0);
	while (read(fd, &c, 1) == 1)
		;
	SHOW(close(fd));
}

/* What the program asked for is what it is told, and what happens. */
static siginfo_t seen_info;
static sigset_t seen_mask;
static char *seen_stack;
static char alternate[65536];

static void inform(int number, siginfo_t *info, void *context)
{
	char here;
	count += number > 0 && context != NULL;
	seen_info = *info;
	seen_stack = &here;
	sigprocmask(SIG_BLOCK, NULL, &seen_mask);
}

static void show_action(int number)
{
	struct sigaction action;
	CHECK(sigaction(number, NULL, &action) == 0);
	void (*handler)(int) = action.sa_handler;
	printf("%d: %s flags %x mask %d %d %d\n", number,
	       handler == SIG_DFL ? "default" : handler == SIG_IGN ? "ignored" :
	       handler == handle ? "handle" : action.sa_sigaction == inform ? "inform" : "other",
	       (unsigned)action.sa_flags & ~0x04000000u, sigismember(&action.sa_mask, number),
	       sigismember(&action.sa_mask, SIGUSR1), sigismember(&action.sa_mask, SIGUSR2));
}

static void actions_client(int fd)
{
	struct sigaction action = {.sa_sigaction = inform};
	action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
	sigaddset(&action.sa_mask, SIGUSR2);
	stack_t stack = {.ss_sp = alternate, .ss_size = sizeof(alternate)};
	CHECK(sigaltstack(&stack, NULL) == 0);
	SHOW(sigaction(SIGUSR1, &action, NULL));
	show_action(SIGUSR1);
	union sigval value = {.sival_int = 42};
	SHOW(sigqueue(getpid(), SIGUSR1, value));
	printf("code %d value %d pid %d, on stack %d, blocked %d %d %d\n", seen_info.si_code,
	       seen_info.si_value.sival_int, seen_info.si_pid == getpid(),
	       seen_stack > alternate && seen_stack < alternate + sizeof(alternate),
	       sigismember(&seen_mask, SIGUSR1), sigismember(&seen_mask, SIGUSR2),
	       sigismember(&seen_mask, SIGALRM));
	action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_RESETHAND;
	SHOW(sigaction(SIGUSR1, &action, NULL));
	show_action(SIGUSR1);
	SHOW(raise(SIGUSR1));
	printf("blocked %d\n", sigismember(&seen_mask, SIGUSR1));
	show_action(SIGUSR1);
	printf("%d\n", signal(SIGUSR1, handle) == SIG_DFL);
	show_action(SIGUSR1);
	printf("%d\n", signal(SIGUSR1, SIG_IGN) == handle);
	show_action(SIGUSR1);
	printf("%d\n", signal(SIGUSR1, SIG_DFL) == SIG_IGN);
	SHOW(signal(SIGKILL, handle) == SIG_ERR);
	SHOW(sigaction(99, &action, NULL));
	SHOW(sigaction(0, NULL, NULL));
	SHOW(signal(SIGUSR2, SIG_ERR) == SIG_ERR);
	SHOW(sysv_signal(SIGUSR2, handle) == SIG_DFL);
	show_action(SIGUSR2);
	SHOW(raise(SIGUSR2));
	show_action(SIGUSR2);
	SHOW(sigset(SIGUSR2, handle) == SIG_DFL);
	show_action(SIGUSR2);
	SHOW(sigset(SIGUSR2, SIG_HOLD) == handle);
	SHOW(sigset(SIGUSR2, SIG_DFL) == SIG_HOLD);
	show_action(SIGUSR2);
	signal(SIGUSR2, handle);
	SHOW(siginterrupt(SIGUSR2, 1));
	show_action(SIGUSR2);
	signal(SIGUSR2, handle);
	show_action(SIGUSR2);
	SHOW(siginterrupt(SIGUSR2, 0));
	show_action(SIGUSR2);
	sighandler_t before = signal(SIGSEGV, handle);
	printf("%d %d\n", before == SIG_DFL, (int)count);
	show_action(SIGSEGV);
	tell(fd);
	hear(fd);
}

/* A fault of the program's own, caught. */
static void fault(int number, siginfo_t *info, void *context)
{
	(void)context;
	count += number == SIGSEGV && info->si_code > 0;
	siglongjmp(back, 1);
}

static void fault_client(int fd)
{
	struct sigaction action = {.sa_sigaction = fault, .sa_flags = SA_SIGINFO};
	CHECK(sigaction(SIGSEGV, &action, NULL) == 0);
	if (sigsetjmp(back, 1) == 0) {
		char *volatile nowhere = NULL;
		*nowhere = 1;
	}
	printf("%d faults\n", (int)count);
	tell(fd);
	hear(fd);
}

/* A handler of a parent is its forked child's too. */
static void fork_client(int fd)
{
	set_action(SIGUSR1, handle, 0);
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		raise(SIGUSR1);
		_exit(count == 1 ? 0 : 1);
	}
	int status;
	CHECK(waitpid(child, &status, 0) == child);
	printf("child %x, here %d\n", (unsigned)status, (int)count);
	tell(fd);
	hear(fd);
}

/* A byte of the peer's comes with a signal, and lies in the kernel's socket: a stream with O_ASYNC is on
 * TCP. */
static void await_sigio(int fd)
{
	sigset_t only;
	int got = 0;
	sigemptyset(&only);
	sigaddset(&only, SIGIO);
	tell(fd);
	do {
		CHECK(sigwaitinfo(&only, NULL) == SIGIO);
		CHECK(bare_syscall(SYS_ioctl, fd, FIONREAD, (long)&got, 0, 0, 0) == 0);
	} while (got == 0);
	printf("SIGIO, %d in the kernel\n", got);
	hear(fd);
}

static void block_sigio(void)
{
	sigset_t only;
	sigemptyset(&only);
	sigaddset(&only, SIGIO);
	CHECK(sigprocmask(SIG_BLOCK, &only, NULL) == 0);
}

static void sigio_client(int fd)
{
	block_sigio();
	CHECK(fcntl(fd, F_SETOWN, getpid()) == 0);
	CHECK(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_ASYNC) == 0);
	for (int i = 0; i < 50; i++)
		await_sigio(fd);
}

/* By ioctl, before the socket is connected; by then nothing is known of it. */
static void sigio_early_client(int fd)
{
	int on = 1, early = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(early >= 0);
	block_sigio();
	CHECK(ioctl(early, FIOASYNC, &on) == 0);
	CHECK(fcntl(early, F_SETOWN, getpid()) == 0);
	CHECK(connect(early, (struct sockaddr *)&server_address, sizeof(server_address)) == 0);
	warm_up(early, 0);
	for (int i = 0; i < 50; i++)
		await_sigio(early);
	close(early);
	tell(fd);
	hear(fd);
}

static void sigio_early_server(int fd)
{
	int early = accept_client();
	warm_up(early, 1);
	patient_server(early);
	close(early);
	patient_server(fd);
}

static const struct part PARTS[] = {
	{"interrupt", interrupt_client, patient_server},
	{"interrupt_poll", interrupt_poll_client, patient_server},
	{"restart", restart_client, patient_server},
	{"restart_timeout", restart_timeout_client, patient_server},
	{"restart_timeout_send", restart_timeout_send_client, restart_timeout_send_server},
	{"longjmp", longjmp_client, patient_server},
	{"longjmp_write", longjmp_write_client, longjmp_write_server},
	{"storm", storm_client, storm_server},
	{"writing_handler", writing_handler_client, writing_handler_server},
	{"actions", actions_client, patient_server},
	{"fault", fault_client, patient_server},
	{"fork", fork_client, patient_server},
	{"cancel", cancel_client, patient_server},
	{"cancel_early", cancel_early_client, patient_server},
	{"cancel_exchange", cancel_exchange_client, patient_server},
	{"sigio", sigio_client, patient_server},
	{"sigio_early", sigio_early_client, sigio_early_server},
};

int main(int argc, char **argv)
{
	return play(argc, argv, PARTS, COUNT(PARTS));
}
