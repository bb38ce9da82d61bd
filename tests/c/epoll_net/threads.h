/* Waits that go on while other threads make calls. Part of `epoll_net.c`. */
#ifndef EPOLL_NET_THREADS_H
#define EPOLL_NET_THREADS_H

enum phase { IDLE, ORDERED, INSIDE, DONE };

static struct thread {
	pthread_t thread;
	sem_t begin, end;
	_Atomic int tid;
	_Atomic int phase;
	int is_wait;
	int stat;
} threads[THREADS];
static struct order current;

static void run(const struct order *o);

static void *work(void *arg)
{
	struct thread *t = arg;
	t->tid = (int)bare(SYS_gettid, 0, 0, 0, 0, 0, 0);
	for (;;) {
		while (sem_wait(&t->begin) < 0)
			;
		if (t->is_wait) {
			t->phase = INSIDE;
			run_wait(&waits[t - threads]);
			t->phase = DONE;
		} else {
			run(&current);
			sem_post(&t->end);
		}
	}
	return NULL;
}

static int move_high(int fd)
{
	int high = (int)bare(SYS_fcntl, fd, F_DUPFD_CLOEXEC, HIGH, 0, 0, 0);
	CHECK(high >= HIGH && bare(SYS_close, fd, 0, 0, 0, 0, 0) == 0);
	return high;
}

static int is_asleep(struct thread *t)
{
	char text[256];
	if (t->stat < 0) {
		snprintf(text, sizeof(text), "/proc/self/task/%d/stat", t->tid);
		t->stat = move_high((int)bare(SYS_openat, AT_FDCWD, (long)text, O_RDONLY | O_CLOEXEC, 0, 0, 0));
	}
	long n = bare(SYS_pread64, t->stat, (long)text, sizeof(text) - 1, 0, 0, 0);
	CHECK(n > 0);
	text[n] = 0;
	return !strncmp(strrchr(text, ')'), ") S", 3);
}

static long long now_ms(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000ll + now.tv_nsec / 1000000;
}

/* Sets, by their places, in which a thread has returned. */
static long long returned(void)
{
	long long sets = 0;
	for (int i = 1; i < THREADS; i++)
		if (threads[i].phase == DONE)
			sets |= 1ll << waits[i].set;
	return sets;
}

/* Waits until every thread that waits has returned or sleeps. With the library a thread may sleep for another reason
 * for a moment: one that is expected to return gets time. */
static void quiet(long long expect)
{
	long long begin = 0;
	for (int i = 1; i < THREADS; i++)
		while (threads[i].phase == ORDERED || threads[i].phase == INSIDE) {
			if (threads[i].phase == INSIDE && is_asleep(&threads[i])) {
				long long missing = expect < 0 ? 0 : expect & ~returned();
				if (!(missing & (1ll << waits[i].set)) && threads[i].phase == INSIDE)
					break;
				if (!begin)
					begin = now_ms();
				if (missing && now_ms() - begin > 1000)
					break;
			}
			sched_yield();
		}
}

/* As `wait`, but the others go on meanwhile. */
static void do_begin(const struct order *o)
{
	struct thread *t = &threads[o->thread];
	struct wait *w = &waits[o->thread];
	CHECK(o->thread > 0 && t->phase == IDLE);
	await_kernels_turn();
	*w = (struct wait){.fd = place(o, 0)->fd,
			   .set = (int)o->a[0],
			   .api = (int)o->a[1],
			   .timeout_us = o->a[2],
			   .most = (int)o->a[3],
			   .watches = (int)o->a[4]};
	t->is_wait = 1;
	t->phase = ORDERED;
	sem_post(&t->begin);
	say("begun");
}

/* Interrupts the threads that still wait, and says what each set has reported. */
static void do_end(void)
{
	char all[sizeof(answer)] = "";
	for (int i = 1; i < THREADS; i++) {
		struct thread *t = &threads[i];
		while (t->phase == INSIDE || t->phase == ORDERED) {
			pthread_kill(t->thread, SIGUSR1);
			for (int tries = 0; tries < 200 && t->phase == INSIDE; tries++)
				sched_yield();
		}
	}
	for (int i = 1; i < THREADS; i++) {
		struct wait group = {.n = 0};
		int members = 0;
		for (int j = i; j < THREADS; j++) {
			if (threads[j].phase != DONE || waits[j].set != waits[i].set)
				continue;
			threads[j].phase = IDLE;
			members++;
			group.is_overrun |= waits[j].is_overrun;
			group.is_twice |= waits[j].is_twice;
			if (waits[j].error)
				group.error = waits[j].error;
			for (int k = 0; !waits[j].error && k < waits[j].n && group.n < (int)COUNT(group.events); k++)
				group.events[group.n++] = waits[j].events[k];
		}
		if (!members)
			continue;
		/* Of several threads in one set, those that were not needed are interrupted. */
		if (group.n)
			group.error = 0;
		group.n = merge(group.events, group.n);
		say_events(&group, "");
		char head[16];
		snprintf(head, sizeof(head), "[%d: ", waits[i].set);
		CHECK(strlen(all) + strlen(head) + strlen(answer) + 2 < sizeof(all));
		strcat(strcat(strcat(all, head), answer), "]");
	}
	memcpy(answer, all, sizeof(all));
}

#endif
