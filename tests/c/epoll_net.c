/* One process of a random program of epoll calls in lock step: makes calls as it is ordered to, and says what each
 * returned.
 *
 *   epoll_net CPU FILE       FILE is memory that the processes of a program share
 *
 * Reads lines `WORD CHILD THREAD A B C D E EXPECT` and answers each with a line. A program's descriptors have *places*,
 * small numbers that mean the same in every run. All threads run on one processor: what the kernel does within one
 * system call or one packet is then one step for a thread that waits. After each call everything that is on its way is
 * waited for (`settle`), and every thread that waits has either returned or sleeps again (`quiet`), so that what kernel
 * TCP returns does not depend on time. What the driver itself needs of the kernel it gets by system calls that the
 * preload library does not see. */
#include "common.h"
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>

#include "epoll_net/state.h"
#include "epoll_net/kernel_view.h"
#include "epoll_net/places.h"
#include "epoll_net/sockets.h"
#include "epoll_net/descriptors.h"
#include "epoll_net/sets.h"
#include "epoll_net/threads.h"
#include "epoll_net/processes.h"

static void run(const struct order *o)
{
	static const struct {
		const char *word;
		void (*run)(const struct order *o);
	} ORDERS[] = {
		{"listen", do_listen},   {"socket", do_socket}, {"connect", do_connect}, {"refuse", do_refuse},
		{"accept", do_accept},   {"send", do_send},     {"recv", do_recv},       {"peek", do_peek},
		{"empty", do_empty},     {"urgent", do_urgent}, {"error", do_error},     {"shutdown", do_shutdown},
		{"fill", do_fill},       {"drain", do_drain},   {"warm", do_warm},       {"close", do_close},
		{"dup", do_dup},         {"dup2", do_dup2},     {"pipe", do_make},       {"eventfd", do_make},
		{"timerfd", do_make},    {"create", do_make},   {"put", do_put},         {"take", do_put},
		{"arm", do_arm},         {"ctl", do_ctl},       {"badcreate", do_bad_create},
		{"wait", do_wait},       {"poll", do_poll},     {"select", do_select},   {"begin", do_begin},
		{"ack", do_ack},
	};
	for (size_t i = 0; i < COUNT(ORDERS); i++)
		if (!strcmp(ORDERS[i].word, o->word)) {
			ORDERS[i].run(o);
			return;
		}
	if (!strcmp(o->word, "end"))
		do_end();
	else if (!strcmp(o->word, "fork"))
		do_fork();
	else if (!strcmp(o->word, "exit"))
		do_exit();
	else if (!strcmp(o->word, "reset"))
		do_reset();
	else if (!strcmp(o->word, "tick"))
		do_tick();
	else if (!strcmp(o->word, "quiet"))
		say("0");
	else if (!strcmp(o->word, "past")) {
		say("%d", shared->past_kernel);
		memset(shared, 0, sizeof(*shared));
	} else
		fail("what is %s?", o->word);
}

static int is_on_stream(const char *word)
{
	char padded[20];
	snprintf(padded, sizeof(padded), " %s ", word);
	return strstr(" send recv empty urgent shutdown fill drain ", padded) != NULL;
}

/* Nothing waits for ever: a call that takes so long ends the process. */
static void limit_time(unsigned seconds)
{
	bare(SYS_setitimer, ITIMER_REAL, (long)&(struct itimerval){.it_value.tv_sec = seconds}, 0, 0, 0, 0);
}

static void on_alarm(int number)
{
	char text[300];
	(void)number;
	int n = snprintf(text, sizeof(text), "epoll_net: too long: %s %d %d %lld %lld %lld %lld %lld, threads %d %d %d\n",
			 current.word, current.child, current.thread, current.a[0], current.a[1], current.a[2],
			 current.a[3], current.a[4], threads[1].phase, threads[2].phase, threads[3].phase);
	bare(SYS_write, 2, (long)text, n, 0, 0, 0);
	_exit(99);
}

static void serve(void)
{
	char line[256];
	for (;;) {
		limit_time(0);
		if (!get_line(input_fd, line, sizeof(line)))
			return;
		limit_time(30);
		parse(line, &current);
		CHECK(current.thread >= 0 && current.thread < THREADS);
		if (current.child && input_fd == 0)
			order_child(line);
		else if (current.thread && input_fd == 0 && strcmp(current.word, "begin")) {
			struct thread *t = &threads[current.thread];
			CHECK(t->phase == IDLE);
			t->is_wait = 0;
			sem_post(&t->begin);
			while (sem_wait(&t->end) < 0)
				;
		} else
			run(&current);
		if (is_on_stream(current.word) && places[current.a[0]].kind == STREAM)
			settle(&shared->connections[places[current.a[0]].number]);
		if (input_fd == 0) {
			quiet(current.expect);
			long long sets = returned();
			if (sets) {
				size_t at = strlen(answer);
				snprintf(answer + at, sizeof(answer) - at, " +%llx", (unsigned long long)sets);
			}
		}
		size_t n = strlen(answer);
		if (output_end + n + 1 > sizeof(output))
			flush();
		memcpy(output + output_end, answer, n);
		output_end += n;
		output[output_end++] = '\n';
	}
}

static void on_signal(int number)
{
	(void)number;
	handled++;
}

int main(int argc, char **argv)
{
	struct sigaction action = {.sa_handler = on_signal}, alarm_action = {.sa_handler = on_alarm};
	CHECK(argc == 3 && prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
	signal(SIGPIPE, SIG_IGN);
	CHECK(sigaction(SIGUSR1, &action, NULL) == 0 && sigaction(SIGUSR2, &action, NULL) == 0);
	CHECK(sigaction(SIGALRM, &alarm_action, NULL) == 0);
	cpu_set_t may, one;
	CHECK(sched_getaffinity(0, sizeof(may), &may) == 0);
	int nth = atoi(argv[1]) % CPU_COUNT(&may), cpu = 0;
	for (;; cpu++)
		if (CPU_ISSET(cpu, &may) && nth-- == 0)
			break;
	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	CHECK(sched_setaffinity(0, sizeof(one), &one) == 0);
	int file = open(argv[2], O_RDWR);
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	CHECK(file >= 0 && shared != MAP_FAILED && close(file) == 0);
	diag = move_high((int)bare(SYS_socket, AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG, 0, 0, 0));
	for (struct place *p = places; p < places + PLACES; p++)
		p->fd = -1;
	for (int i = 0; i < THREADS; i++) {
		threads[i].stat = -1;
		CHECK(sem_init(&threads[i].begin, 0, 0) == 0 && sem_init(&threads[i].end, 0, 0) == 0);
		if (i)
			CHECK(pthread_create(&threads[i].thread, NULL, work, &threads[i]) == 0);
	}
	for (int i = 1; i < THREADS; i++)
		while (!threads[i].tid)
			sched_yield();
	serve();
	return 0;
}
