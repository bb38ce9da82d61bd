/* Numbers, and files that are no streams. Part of `epoll_net.c`. */
#ifndef EPOLL_NET_DESCRIPTORS_H
#define EPOLL_NET_DESCRIPTORS_H

static void do_close(const struct order *o)
{
	struct place *p = place(o, 0);
	CHECK(p->is_open);
	say_result(close(p->fd));
	hold(p, -1);
	p->is_open = 0;
	shared->ends++;
	settle_place(p);
}

static void do_dup(const struct order *o)
{
	struct place *p = place(o, 0);
	int fd = o->a[2] ? fcntl(p->fd, F_DUPFD_CLOEXEC, 0) : dup(p->fd);
	CHECK(p->is_open);
	put_at(o->a[1], fd, p->kind, p->number, p->end);
	say("%d", fd);
}

static void do_dup2(const struct order *o)
{
	struct place *p = place(o, 0), *q = place(o, 1), before = *q;
	CHECK(p->is_open && q->is_open);
	say_result(dup2(p->fd, q->fd));
	hold(q, -1);
	*q = *p;
	q->fd = before.fd;
	hold(q, 1);
	shared->ends++;
	settle_place(&before);
}

/* Files that are no streams. */

static void do_make(const struct order *o)
{
	int fd, pipes[2];
	if (!strcmp(o->word, "pipe")) {
		CHECK(pipe2(pipes, O_NONBLOCK) == 0);
		put_at(o->a[0], pipes[0], PIPE, 0, 0);
		put_at(o->a[1], pipes[1], PIPE, 0, 1);
		say("%d %d", pipes[0], pipes[1]);
		return;
	}
	if (!strcmp(o->word, "eventfd")) {
		fd = eventfd((unsigned)o->a[1], EFD_NONBLOCK);
		put_at(o->a[0], fd, EVENT, 0, 0);
	} else if (!strcmp(o->word, "timerfd")) {
		fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
		put_at(o->a[0], fd, TIMER, 0, 0);
	} else {
		fd = o->a[1] ? epoll_create(1) : epoll_create1(EPOLL_CLOEXEC);
		put_at(o->a[0], fd, SET, 0, 0);
	}
	say("%d", fd);
}

/* Writes to an eventfd or a pipe; b: reads. */
static void do_put(const struct order *o)
{
	uint64_t number = 1;
	struct place *p = place(o, 0);
	size_t n = p->kind == PIPE ? 1 : sizeof(number);
	if (!strcmp(o->word, "put"))
		say_result(write(p->fd, &number, n));
	else {
		long got = read(p->fd, &number, n);
		say_result(got);
		if (got == sizeof(number))
			say("%ld: %llu", got, (unsigned long long)number);
	}
}

/* Sets a timer and waits until it has expired; b: stops it. */
static void do_arm(const struct order *o)
{
	struct itimerspec at = {.it_value.tv_nsec = o->a[1] ? 0 : 1};
	struct pollfd p = {.fd = place(o, 0)->fd, .events = POLLIN};
	say_result(timerfd_settime(p.fd, 0, &at, NULL));
	while (!o->a[1] && bare(SYS_ppoll, (long)&p, 1, 0, 0, 0, 0) != 1)
		sched_yield();
}

#endif
