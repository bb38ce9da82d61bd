/* An echo over libuv, whose ends wait in epoll: every byte is compared.
 *
 *   uv_echo server                prints "port N", sends back what comes on each connection
 *   uv_echo client ROUNDS PORT    asks ROUNDS times on each of its connections, prints "asked", and
 *                                 goes on until the end of its standard input
 */
#include "common.h"
#include <uv.h>

#define CONNECTIONS 4
#define SIZE 3000
/* A server that goes back and forth between full and empty kernel buffers. */
#define LARGE 400000

static uv_loop_t *loop;
static long rounds;

#define OK(call) \
	do { \
		int ok_ = (call); \
		if (ok_ < 0) \
			fail("%s: %s", #call, uv_strerror(ok_)); \
	} while (0)

static void *allocated(size_t n)
{
	void *at = calloc(1, n);
	CHECK(at);
	return at;
}

static void allocate(uv_handle_t *handle, size_t n, uv_buf_t *buf)
{
	(void)handle;
	*buf = uv_buf_init(allocated(n), (unsigned)n);
}

static void free_handle(uv_handle_t *handle)
{
	free(handle);
}

static void free_write(uv_write_t *request, int status)
{
	OK(status);
	free(request->data);
	free(request);
}

static void send_back(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
	if (n == UV_EOF) {
		free(buf->base);
		uv_close((uv_handle_t *)stream, free_handle);
		return;
	}
	OK((int)n);
	if (n == 0) {
		free(buf->base);
		return;
	}
	uv_write_t *request = allocated(sizeof(*request));
	request->data = buf->base;
	uv_buf_t out = uv_buf_init(buf->base, (unsigned)n);
	OK(uv_write(request, stream, &out, 1, free_write));
}

static void on_connection(uv_stream_t *from, int status)
{
	OK(status);
	uv_tcp_t *stream = allocated(sizeof(*stream));
	OK(uv_tcp_init(loop, stream));
	OK(uv_accept(from, (uv_stream_t *)stream));
	OK(uv_tcp_nodelay(stream, 1));
	OK(uv_read_start((uv_stream_t *)stream, allocate, send_back));
}

static void serve(void)
{
	static uv_tcp_t from;
	set_server(0);
	OK(uv_tcp_init(loop, &from));
	OK(uv_tcp_bind(&from, (struct sockaddr *)&server_address, 0));
	OK(uv_listen((uv_stream_t *)&from, 16, on_connection));
	int len = sizeof(server_address);
	OK(uv_tcp_getsockname(&from, (struct sockaddr *)&server_address, &len));
	printf("port %d\n", ntohs(server_address.sin_port));
	fflush(stdout);
	OK(uv_run(loop, UV_RUN_DEFAULT));
}

/* A connection of the client. */
static struct asking {
	uv_tcp_t stream;
	uv_connect_t connecting;
	uv_write_t writing;
	unsigned char *out;
	uint64_t seed, sent, received;
	size_t last;
	long round;
} connections[CONNECTIONS];
static int n_asked, has_ended;

static void ask(struct asking *one)
{
	/* Now and then more than the kernel's buffers hold. */
	one->last = one->round % 64 == 63 ? LARGE : SIZE;
	fill_stream(one->out, one->last, one->seed, one->sent);
	one->sent += one->last;
	uv_buf_t buf = uv_buf_init((char *)one->out, (unsigned)one->last);
	OK(uv_write(&one->writing, (uv_stream_t *)&one->stream, &buf, 1, NULL));
}

static void on_answer(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
	struct asking *one = stream->data;
	OK((int)n);
	check_stream((unsigned char *)buf->base, (size_t)n, one->seed, one->received);
	free(buf->base);
	one->received += (uint64_t)n;
	CHECK(one->received <= one->sent);
	if (one->received < one->sent)
		return;
	one->round++;
	if (one->round == rounds && ++n_asked == CONNECTIONS) {
		printf("asked\n");
		fflush(stdout);
	}
	if (one->round >= rounds && has_ended)
		uv_close((uv_handle_t *)stream, NULL);
	else
		ask(one);
}

static void on_connect(uv_connect_t *request, int status)
{
	struct asking *one = request->data;
	OK(status);
	OK(uv_tcp_nodelay(&one->stream, 1));
	OK(uv_read_start((uv_stream_t *)&one->stream, allocate, on_answer));
	ask(one);
}

static void on_input(uv_stream_t *input, ssize_t n, const uv_buf_t *buf)
{
	CHECK(n == UV_EOF);
	free(buf->base);
	has_ended = 1;
	uv_close((uv_handle_t *)input, NULL);
}

/* The timer and the thread pool are other descriptors in the loop's set. */
static int n_ticks, n_files;
static void on_tick(uv_timer_t *timer)
{
	n_ticks++;
	if (has_ended)
		uv_close((uv_handle_t *)timer, NULL);
}

static void on_stat(uv_fs_t *request)
{
	OK((int)request->result);
	uv_fs_req_cleanup(request);
	n_files++;
	if (!has_ended)
		OK(uv_fs_stat(loop, request, "/proc/self/exe", on_stat));
}

static void talk(uint16_t port)
{
	static uv_pipe_t input;
	static uv_timer_t timer;
	static uv_fs_t file;
	set_server(port);
	for (int i = 0; i < CONNECTIONS; i++) {
		struct asking *one = &connections[i];
		one->out = allocated(LARGE);
		one->seed = (uint64_t)i + 1;
		one->stream.data = one->connecting.data = one;
		OK(uv_tcp_init(loop, &one->stream));
		OK(uv_tcp_connect(&one->connecting, &one->stream, (struct sockaddr *)&server_address,
				  on_connect));
	}
	OK(uv_pipe_init(loop, &input, 0));
	OK(uv_pipe_open(&input, 0));
	OK(uv_read_start((uv_stream_t *)&input, allocate, on_input));
	OK(uv_timer_init(loop, &timer));
	OK(uv_timer_start(&timer, on_tick, 1, 1));
	OK(uv_fs_stat(loop, &file, "/proc/self/exe", on_stat));
	OK(uv_run(loop, UV_RUN_DEFAULT));
	CHECK(n_ticks > 0 && n_files > 0);
	for (int i = 0; i < CONNECTIONS; i++)
		CHECK(connections[i].received == connections[i].sent && connections[i].round >= rounds);
	printf("done\n");
}

int main(int argc, char **argv)
{
	CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
	CHECK(argc >= 2);
	loop = uv_default_loop();
	if (!strcmp(argv[1], "server")) {
		serve();
	} else {
		CHECK(argc == 4);
		rounds = atol(argv[2]);
		talk((uint16_t)atoi(argv[3]));
	}
	return 0;
}
