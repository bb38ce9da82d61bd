/* Calls on epoll sets, and waits of one thread. Part of `epoll_net.c`. */
#ifndef EPOLL_NET_SETS_H
#define EPOLL_NET_SETS_H

static void *bad_pointer(void)
{
	static void *page;
	if (!page) {
		page = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		CHECK(page != MAP_FAILED);
	}
	return page;
}

static void do_ctl(const struct order *o)
{
	struct epoll_event event = {.events = (uint32_t)o->a[3], .data.u64 = (uint64_t)o->a[4]};
	/* The target's number may be another place's by now. */
	for (struct place *p = places; p < places + PLACES; p++) {
		if (!p->is_open || p->fd != place(o, 1)->fd)
			continue;
		if (p->kind == FRESH)
			p->number = 1;
		if (p->kind == STREAM && !connection(p)->is_watched) {
			connection(p)->is_watched = 1;
			settle(connection(p));
		}
	}
	int op = (int)(o->a[2] & 0xff), is_bad = (o->a[2] & 0x100) != 0;
	errno = 4095;
	say_result(epoll_ctl(place(o, 0)->fd, op, place(o, 1)->fd, is_bad ? bad_pointer() : &event));
}

static void do_bad_create(const struct order *o)
{
	if (o->a[0])
		say_result(epoll_create((int)o->a[0] - 1));
	else
		say_result(epoll_create1(1));
}

/* What a thread that waits is asked for, and what came of it. */
struct wait {
	int fd;
	int set;
	int api;
	long long timeout_us;
	int most;
	/* How many watches the set has at most: so many are to be reported when a wait returns fewer at once. */
	int watches;
	int n;
	int error;
	int is_overrun;
	int is_early;
	/* Whether one call has reported a watch twice. */
	int is_twice;
	struct epoll_event events[64];
};

static int one_wait(const struct wait *w, int api, long long timeout_us, struct epoll_event *events, int most)
{
	struct timespec limit = {timeout_us / 1000000, timeout_us % 1000000 * 1000};
	int ms = timeout_us < 0 ? -1 : (int)((timeout_us + 999) / 1000);
	sigset_t none;
	sigemptyset(&none);
	switch (api) {
	case 1: return epoll_pwait(w->fd, events, most, ms, NULL);
	case 2: return epoll_pwait(w->fd, events, most, ms, &none);
	case 3: return epoll_pwait2(w->fd, events, most, timeout_us < 0 ? NULL : &limit, NULL);
	default: return epoll_wait(w->fd, events, most, ms);
	}
}

static int compare_events(const void *a, const void *b)
{
	const struct epoll_event *x = a, *y = b;
	if (x->data.u64 != y->data.u64)
		return x->data.u64 < y->data.u64 ? -1 : 1;
	return x->events < y->events ? -1 : x->events > y->events;
}

/* Data of a watch that is reported once for each of its events has this bit. */
#define IS_ONCE (1ull << 55)

/* Sorted, each watch's report once: in which order the kernel reports is not specified. */
static int merge(struct epoll_event *events, int n)
{
	int kept = 0;
	qsort(events, (size_t)n, sizeof(*events), compare_events);
	for (int i = 0; i < n; i++)
		if (i == 0 || (events[i].data.u64 & IS_ONCE) || compare_events(&events[i], &events[kept - 1]))
			events[kept++] = events[i];
	return kept;
}

/* Whether no other watch has this data: in some programs all have the same, without their places. */
static int has_own_data(uint64_t data)
{
	return (data & 0xffffffff) != 0;
}

/* Waits until every ready watch has been reported: with room for fewer, as often as that takes. */
static void run_wait(struct wait *w)
{
	struct epoll_event got[MOST_EVENTS];
	struct timespec begin, end;
	/* Rings and the kernel have turns of their own, so some are reported twice before others. */
	int total = 0, rounds = 3 * ((w->watches + w->most - 1) / w->most);
	w->error = w->is_overrun = w->is_early = w->is_twice = 0;
	clock_gettime(CLOCK_MONOTONIC, &begin);
	for (int round = 0; round < rounds || round == 0; round++) {
		memset(got, 0xee, sizeof(got));
		int n = one_wait(w, round ? 0 : w->api, round ? 0 : w->timeout_us, got, w->most);
		if (round == 0 && n == 0 && w->timeout_us > 0) {
			clock_gettime(CLOCK_MONOTONIC, &end);
			long long took = (end.tv_sec - begin.tv_sec) * 1000000ll + (end.tv_nsec - begin.tv_nsec) / 1000;
			w->is_early = took < w->timeout_us;
		}
		if (n < 0 && round == 0)
			w->error = errno;
		if (n < 0)
			break;
		CHECK(n <= w->most);
		/* A wait may use all of its room. */
		const unsigned char *rest = (const unsigned char *)(got + w->most);
		for (size_t i = 0; i < sizeof(got) - (size_t)w->most * sizeof(got[0]); i++)
			w->is_overrun |= rest[i] != 0xee;
		for (int i = 0; i < n; i++)
			for (int j = 0; j < i; j++)
				w->is_twice |= got[i].data.u64 == got[j].data.u64 && has_own_data(got[i].data.u64);
		for (int i = 0; i < n && total < (int)COUNT(w->events); i++)
			w->events[total++] = got[i];
		if (n < w->most)
			break;
	}
	w->n = merge(w->events, total);
}

static void say_events(const struct wait *w, const char *more)
{
	size_t at;
	if (w->error)
		say("%s%s", why(w->error), more);
	else
		say("%d%s%s%s%s", w->n, w->is_early ? " early" : "", w->is_overrun ? " overrun" : "",
		    w->is_twice ? " twice" : "", more);
	for (int i = 0; !w->error && i < w->n; i++) {
		at = strlen(answer);
		snprintf(answer + at, sizeof(answer) - at, " %llx:%x", (unsigned long long)w->events[i].data.u64,
			 w->events[i].events);
	}
}

static struct wait waits[THREADS];

/* Set, API, timeout, maxevents and watches. API 2 waits with a signal pending that the mask of the wait lets through,
 * 4 with a bad pointer. */
/* While rings have events, the library asks the kernel every 50 us, not in each wait. */
static void await_kernels_turn(void)
{
	usleep(60);
}

static void do_wait(const struct order *o)
{
	await_kernels_turn();
	struct wait *w = &waits[o->thread];
	*w = (struct wait){.fd = place(o, 0)->fd,
			   .set = (int)o->a[0],
			   .api = (int)o->a[1],
			   .timeout_us = o->a[2],
			   .most = (int)o->a[3],
			   .watches = (int)o->a[4]};
	if (w->most <= 0 || w->api == 4) {
		struct epoll_event *at = w->api == 4 ? bad_pointer() : w->events;
		say_result(one_wait(w, 0, w->timeout_us, at, w->most));
		return;
	}
	if (w->api != 2) {
		run_wait(w);
		say_events(w, "");
		return;
	}
	sigset_t one, before;
	sigemptyset(&one);
	sigaddset(&one, SIGUSR2);
	CHECK(pthread_sigmask(SIG_BLOCK, &one, &before) == 0);
	handled = 0;
	CHECK(pthread_kill(pthread_self(), SIGUSR2) == 0);
	run_wait(w);
	int inside = handled;
	CHECK(pthread_sigmask(SIG_SETMASK, &before, NULL) == 0);
	say_events(w, inside ? " handled" : handled ? " pending" : " lost");
}

static void do_poll(const struct order *o)
{
	enum { MANY = 80 };
	struct pollfd p[MANY];
	nfds_t n = 0;
	for (; n < 3 && o->a[n] >= 0; n++)
		p[n] = (struct pollfd){.fd = place(o, (int)n)->fd, .events = (short)o->a[3]};
	/* The others are passed over. */
	for (nfds_t i = n; i < MANY; i++)
		p[i] = (struct pollfd){.fd = -1};
	int is_many = (o->a[3] & 0x10000) != 0;
	int result = poll(p, is_many ? MANY : n, (int)o->a[4]);
	if (result < 0) {
		say_result(result);
		return;
	}
	say("%d", result);
	for (nfds_t i = 0; i < n; i++)
		snprintf(answer + strlen(answer), 16, " %x", (unsigned)(unsigned short)p[i].revents);
}

static void do_select(const struct order *o)
{
	fd_set sets[3];
	struct timeval limit = {.tv_usec = o->a[4]};
	int most = 0;
	for (int i = 0; i < 3; i++) {
		FD_ZERO(&sets[i]);
		for (int j = 0; j < 3 && o->a[j] >= 0; j++) {
			int fd = place(o, j)->fd;
			if (o->a[3] & (1 << i))
				FD_SET(fd, &sets[i]);
			most = fd > most ? fd : most;
		}
	}
	int n = select(most + 1, &sets[0], &sets[1], &sets[2], &limit);
	say_result(n);
	for (int j = 0; n >= 0 && j < 3 && o->a[j] >= 0; j++)
		snprintf(answer + strlen(answer), 16, " %d%d%d", FD_ISSET(place(o, j)->fd, &sets[0]) != 0,
			 FD_ISSET(place(o, j)->fd, &sets[1]) != 0, FD_ISSET(place(o, j)->fd, &sets[2]) != 0);
}

#endif
