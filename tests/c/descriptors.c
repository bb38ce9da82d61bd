/* Descriptors: copied, replaced, closed in bulk, inherited, passed on. */
#include "common.h"
#include "passed.h"
#include <linux/close_range.h>
#include <linux/sched.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "descriptors/numbers.h"
#include "descriptors/forks.h"
#include "descriptors/exec.h"
#include "descriptors/inherited.h"
#include "descriptors/stdio.h"
#include "descriptors/passing.h"
#include "descriptors/waits.h"

static const struct part PARTS[] = {
	{"dup", dup_client, echo_server},
	{"replace", replace_client, replace_server},
	{"reuse", reuse_client, reuse_server},
	{"raw_close", raw_close_client, two_server},
	{"raw_close_idle", raw_close_idle_client, raw_close_idle_server},
	{"close_range", close_range_client, four_server},
	{"limited", limited_client, limited_server},
	{"limited_few", limited_few_client, limited_few_server},
	{"fork_server", fork_server_client, fork_server},
	{"bare_fork", fork_server_client, bare_fork_server},
	{"clone", fork_server_client, clone_server},
	{"clone_number", fork_server_client, clone_number_server},
	{"clone3_number", fork_server_client, clone3_number_server},
	{"fork_both", fork_both_client, echo_server},
	{"prefork", prefork_client, prefork_server},
	{"vfork", vfork_client, echo_server},
	{"vfork_epoll", vfork_epoll_client, echo_server},
	{"exec", exec_client, exec_server},
	{"exec_unread", unread_client, exec_unread_server},
	{"exec_child", unread_client, exec_child_server},
	{"exec_vfork", unread_client, exec_vfork_server},
	{"spawn", unread_client, spawn_server},
	{"exec_system", unread_client, exec_system_server},
	{"exec_self", talk_client, exec_self_server},
	{"exec_late", talk_client, exec_late_server},
	{"exec_half_close", exec_half_close_client, exec_half_close_server},
	{"exec_killed", exec_killed_client, exec_killed_server},
	{"exec_reset", exec_reset_client, exec_reset_server},
	{"exec_fails", unread_client, exec_fails_server},
	{"exec_leak", unread_client, exec_leak_server},
	{"spawn_number", number_client, spawn_number_server},
	{"vfork_number", talk_client, vfork_number_server},
	{"vfork_chosen", talk_client, vfork_chosen_server},
	{"system_number", number_client, system_number_server},
	{"vfork_leak", unread_client, vfork_leak_server},
	{"system_leak", unread_client, system_leak_server},
	{"stdio", stdio_client, two_server},
	{"stdio_unread", unread_client, stdio_unread_server},
	{"stdin_unread", unread_client, stdin_unread_server},
	{"stdio_full", unread_client, stdio_full_server},
	{"stdio_idle", idle_client, stdio_idle_server},
	{"stdio_stopped", idle_client, stdio_stopped_server},
	{"stdio_shut", shut_client, stdio_shut_server},
	{"stdio_ended", ended_client, stdio_ended_server},
	{"stdio_threads", stdio_threads_client, echo_server},
	{"print", print_client, echo_server},
	{"pass", pass_client, echo_server},
	{"pass_unread", unread_client, pass_unread_server},
	{"pass_epoll", unread_client, pass_epoll_server},
	{"pass_idle", idle_client, pass_idle_server},
	{"epoll", epoll_client, two_server},
	{"epoll_full", epoll_full_client, epoll_full_server},
	{"select_most", select_most_client, select_most_server},
	{"poll_most", unread_client, poll_most_server},
	{"nonblocking", nonblocking_client, three_server},
	{"many", many_client, echo_server},
};

int main(int argc, char **argv)
{
	if (argc == 4 && !strcmp(argv[1], "resume"))
		return resume(argv[2], atoi(argv[3]));
	return play(argc, argv, PARTS, COUNT(PARTS));
}
