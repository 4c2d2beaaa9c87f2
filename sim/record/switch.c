/* An Ethernet switch in user space: N full-duplex ports, each with a rate and a one-way delay of its own.
 *
 *   switch N RATE_MBIT DELAY_US QUEUE_KB PREFIX QUEUED [PORT RATE_MBIT]...
 *
 * Makes tap devices PREFIX0 .. PREFIX(N-1); port i has the address 02:00:00:00:00:(i + 1). It stands in for
 * `tc netem`, which many small kernels lack, and has no token bucket: every frame gets a departure time in
 * virtual time, so that waking up late adds latency but never loses capacity.
 *
 * Frames are TSO frames (IFF_VNET_HDR), charged as the wire frames they would become, each with 24 bytes of
 * preamble, gap and checksum. Cut-through: a frame may start on its way out one delay after it started on its
 * way in. Unless QUEUED is 1, frames of at most 256 bytes pass the queues, as sparse flows do under fq_codel.
 * A host is not read while more than a quarter of its queue is booked; a full output queue drops at its tail.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <linux/virtio_net.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define MAX_PORTS 32
#define MAX_FRAME (65536 + 64)
#define CAPACITY 4096
#define SMALL 256

typedef struct {
    int64_t due;
    uint32_t length, wire;
    uint8_t *bytes;
} frame_t;

typedef struct {
    frame_t frames[CAPACITY];
    unsigned head, tail;
} queue_t;

typedef struct {
    int tap;
    double ns_per_byte;
    int64_t delay, up_free, down_free, backlog;
    queue_t bulk, control;
} port_t;

static port_t ports[MAX_PORTS];
static int count, queued;
static int64_t limit;
static volatile sig_atomic_t stopped;

static void on_stop(int signal) { (void)signal; stopped = 1; }

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void set_rate(int port, double mbit) { ports[port].ns_per_byte = mbit > 0 ? 8e3 / mbit : 0; }

static uint32_t wire_bytes(const uint8_t *frame, uint32_t length) {
    const struct virtio_net_hdr *header = (const void *)frame;
    uint32_t inner = length - sizeof *header;
    if (header->gso_type != VIRTIO_NET_HDR_GSO_NONE && header->gso_size && inner > header->hdr_len) {
        uint32_t head = header->hdr_len ? header->hdr_len : 66, payload = inner - head;
        uint32_t segments = (payload + header->gso_size - 1) / header->gso_size;
        return payload + segments * (head + 24);
    }
    return (inner < 60 ? 60 : inner) + 24;
}

static void push(queue_t *queue, const uint8_t *frame, uint32_t length, uint32_t wire, int64_t due) {
    frame_t *place = &queue->frames[queue->tail % CAPACITY];
    place->bytes = malloc(length);
    if (!place->bytes) return;
    memcpy(place->bytes, frame, length);
    place->due = due;
    place->length = length;
    place->wire = wire;
    queue->tail++;
}

static int is_full(const queue_t *queue) { return queue->tail - queue->head >= CAPACITY; }

static int64_t later(int64_t a, int64_t b) { return a > b ? a : b; }

static void forward(int from, int to, const uint8_t *frame, uint32_t length, int64_t t) {
    port_t *in = &ports[from], *out = &ports[to];
    uint32_t wire = wire_bytes(frame, length);
    int64_t sending = (int64_t)(wire * in->ns_per_byte);
    if (!queued && length <= SMALL) {
        if (!is_full(&out->control)) push(&out->control, frame, length, wire, t + in->delay + out->delay + sending);
        return;
    }
    int64_t start = later(t, in->up_free), end = start + sending;
    in->up_free = end;
    if (out->backlog + wire > limit || is_full(&out->bulk)) return;
    int64_t out_start = later(start + in->delay, out->down_free);
    int64_t out_end = later(out_start + (int64_t)(wire * out->ns_per_byte), end + in->delay);
    out->down_free = out_end;
    out->backlog += wire;
    push(&out->bulk, frame, length, wire, out_end + out->delay);
}

/* Deliver what is due; returns when to come back, or -1. */
static int64_t deliver(port_t *port, queue_t *queue, int64_t t, int64_t next) {
    while (queue->head != queue->tail) {
        frame_t *frame = &queue->frames[queue->head % CAPACITY];
        if (frame->due > t) return next < 0 || frame->due < next ? frame->due : next;
        if (write(port->tap, frame->bytes, frame->length) < 0 && errno == EAGAIN) return t + 20000;
        if (queue == &port->bulk) port->backlog -= frame->wire;
        free(frame->bytes);
        queue->head++;
    }
    return next;
}

static int open_tap(const char *prefix, int port) {
    struct ifreq request = {0};
    int tap = open("/dev/net/tun", O_RDWR | O_NONBLOCK), size = sizeof(struct virtio_net_hdr);
    snprintf(request.ifr_name, IFNAMSIZ, "%s%d", prefix, port);
    request.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR;
    if (tap < 0 || ioctl(tap, TUNSETIFF, &request) || ioctl(tap, TUNSETVNETHDRSZ, &size) ||
        ioctl(tap, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6)) {
        perror("tap device");
        return -1;
    }
    return tap;
}

static void receive(int port, int64_t t) {
    static uint8_t buffer[MAX_FRAME];
    for (int k = 0; k < 8; k++) {
        ssize_t length = read(ports[port].tap, buffer, sizeof buffer);
        if (length <= (ssize_t)sizeof(struct virtio_net_hdr) + 14) return;
        const uint8_t *address = buffer + sizeof(struct virtio_net_hdr);
        if (address[0] & 1) {
            for (int other = 0; other < count; other++)
                if (other != port) forward(port, other, buffer, length, t);
        } else if (address[0] == 2 && address[5] >= 1 && address[5] <= count) {
            forward(port, address[5] - 1, buffer, length, t);
        }
    }
}

int main(int argc, char **argv) {
    if (argc < 7) return fprintf(stderr, "usage: switch N RATE DELAY QUEUE_KB PREFIX QUEUED [PORT RATE]...\n"), 2;
    count = atoi(argv[1]);
    if (count < 1 || count > MAX_PORTS) return 2;
    limit = atol(argv[4]) * 1024;
    queued = atoi(argv[6]);
    for (int i = 0; i < count; i++) {
        if ((ports[i].tap = open_tap(argv[5], i)) < 0) return 1;
        ports[i].delay = atof(argv[3]) * 1000;
        set_rate(i, atof(argv[2]));
    }
    for (int k = 7; k + 1 < argc; k += 2)
        if (atoi(argv[k]) >= 0 && atoi(argv[k]) < count) set_rate(atoi(argv[k]), atof(argv[k + 1]));
    struct sigaction action = {.sa_handler = on_stop};
    sigaction(SIGTERM, &action, 0);
    sigaction(SIGINT, &action, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    struct sched_param priority = {.sched_priority = 30};
    sched_setscheduler(0, SCHED_FIFO, &priority); /* where that is allowed */
    prctl(PR_SET_TIMERSLACK, 1UL);
    mlockall(MCL_CURRENT);
    puts("ready");
    fflush(stdout);
    struct pollfd watched[MAX_PORTS];
    while (!stopped) {
        int64_t t = now(), next = -1;
        for (int i = 0; i < count; i++) {
            next = deliver(&ports[i], &ports[i].control, t, next);
            next = deliver(&ports[i], &ports[i].bulk, t, next);
        }
        for (int i = 0; i < count; i++) {
            int64_t ahead = ports[i].up_free - t;
            int64_t most = ports[i].ns_per_byte > 0 ? (int64_t)(limit / 4 * ports[i].ns_per_byte) : INT64_MAX;
            watched[i] = (struct pollfd){.fd = ports[i].tap, .events = ahead > most ? 0 : POLLIN};
            if (ahead > most && (next < 0 || t + ahead - most < next)) next = t + ahead - most;
        }
        int64_t wait = next < 0 ? 200000000 : later(next - now(), 0);
        struct timespec timeout = {wait / 1000000000, wait % 1000000000};
        if (ppoll(watched, count, &timeout, NULL) <= 0) continue;
        t = now();
        for (int i = 0; i < count; i++)
            if (watched[i].revents & POLLIN) receive(i, t);
    }
    return 0;
}
