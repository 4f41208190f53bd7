/*
 * UCX behind the engine table, loaded when the first group spans nodes: a program on one machine never sees
 * it.
 *
 * Messages are UCX active messages, whose header says where the payload belongs. Compared with tag matching
 * that spares the posted receives; a large payload goes the same way, by rendezvous into its place.
 * Endpoints report the failure of their peer (UCP_ERR_HANDLING_MODE_PEER).
 *
 * Over TCP a rendezvous costs a trip and spares one copy out of a buffer that the cache holds. So where there
 * is no InfiniBand there are none, but messages as large as the receive buffer of a connection, which is made
 * large for that. What the user has set (UCX_*) stays.
 *
 * Shared memory is left out of the transports unless UCX_TLS says otherwise: ranks that could use it are in
 * one node and do so without UCX.
 */
#include "net/ucx.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucp/api/ucp.h>

#include "core/clock.h"
#include "net/fabric.h"

enum {
    AM_ID = 0x77,
    HEADER_ROOM = 4096,       /* of a segment, for headers */
    BUFFERED_PEERS_MAX = 256, /* more do without large buffers: each has its own */
};

#define FUNCTIONS(X)                                                                                         \
    X(ucp_init_version)                                                                                      \
    X(ucp_cleanup)                                                                                           \
    X(ucp_config_read)                                                                                       \
    X(ucp_config_modify)                                                                                     \
    X(ucp_config_release)                                                                                    \
    X(ucp_worker_create)                                                                                     \
    X(ucp_worker_destroy)                                                                                    \
    X(ucp_worker_get_address)                                                                                \
    X(ucp_worker_release_address)                                                                            \
    X(ucp_worker_get_efd)                                                                                    \
    X(ucp_worker_arm)                                                                                        \
    X(ucp_worker_progress)                                                                                   \
    X(ucp_worker_flush_nbx)                                                                                  \
    X(ucp_worker_set_am_recv_handler)                                                                        \
    X(ucp_ep_create)                                                                                         \
    X(ucp_ep_close_nbx)                                                                                      \
    X(ucp_am_send_nbx)                                                                                       \
    X(ucp_am_recv_data_nbx)                                                                                  \
    X(ucp_request_check_status)                                                                              \
    X(ucp_request_free)                                                                                      \
    X(ucs_status_string)

static struct {
#define MEMBER(name) __typeof__(&name) name;
    FUNCTIONS(MEMBER)
#undef MEMBER
    char why[256]; /* they are not there; "": they are */
} ucx;

static pthread_once_t once = PTHREAD_ONCE_INIT;

/* The library stays loaded. It reads its settings when it is loaded; those of its user have precedence, but
 * by itself it neither takes signals nor prints: errors come back as values here. */
static void load(void)
{
    static const char *const quiet[][2] = {{"UCX_HANDLE_ERRORS", "none"}, {"UCX_LOG_LEVEL", "fatal"}};
    bool set[2];
    void *library;

    for (int i = 0; i < 2; i++) {
        set[i] = !getenv(quiet[i][0]);
        if (set[i])
            setenv(quiet[i][0], quiet[i][1], 0);
    }
    library = dlopen("libucp.so.0", RTLD_NOW | RTLD_LOCAL);
    for (int i = 0; i < 2; i++)
        if (set[i])
            unsetenv(quiet[i][0]);
    if (!library) {
        snprintf(ucx.why, sizeof(ucx.why), "%s", dlerror());
        return;
    }
#define FIND(name)                                                                                           \
    *(void **)&ucx.name = dlsym(library, #name);                                                             \
    if (!ucx.name && !ucx.why[0])                                                                            \
        snprintf(ucx.why, sizeof(ucx.why), "libucp.so.0 has no %s", #name);
    FUNCTIONS(FIND)
#undef FIND
}

struct ucx_engine;

typedef struct ucx_peer {
    struct ucx_engine *engine;
    int number;
    bool lost;
    ucp_ep_h ep; /* NULL: not connected */
} ucx_peer;

typedef struct ucx_engine {
    weft_engine_events events;
    ucp_context_h context;
    ucp_worker_h worker;
    ucp_address_t *address;
    size_t address_bytes;
    int fd;
    bool tcp; /* set up for it */
    bool closing;
    int peer_count;
    ucx_peer peers[];
} ucx_engine;

static void lose(ucx_peer *peer, ucs_status_t status)
{
    if (peer->lost || peer->engine->closing)
        return;
    peer->lost = true;
    peer->engine->events.lost(peer->engine->events.context, peer->number, ucx.ucs_status_string(status));
}

static void on_error(void *argument, ucp_ep_h ep, ucs_status_t status)
{
    (void)ep;
    lose(argument, status);
}

/* ---- receiving ------------------------------------------------------------------------------------ */

typedef struct landing {
    ucx_engine *engine;
    void *token;
} landing;

static void on_landed(void *request, ucs_status_t status, size_t bytes, void *argument)
{
    landing *l = argument;

    (void)bytes;
    ucx.ucp_request_free(request);
    l->engine->events.landed(l->token, status == UCS_OK);
    free(l);
}

static ucs_status_t receive_large(ucx_engine *engine, void *description, void *into, size_t bytes,
                                  void *token)
{
    landing *l = malloc(sizeof(*l));
    ucp_request_param_t parameters = {
        .op_attr_mask =
            UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FLAG_NO_IMM_CMPL,
        .cb.recv_am = on_landed,
        .user_data = l,
    };
    ucs_status_ptr_t request;

    if (!l) {
        engine->events.landed(token, false);
        return UCS_ERR_NO_MEMORY;
    }
    *l = (landing){engine, token};
    request = ucx.ucp_am_recv_data_nbx(engine->worker, description, into, bytes, &parameters);
    if (UCS_PTR_IS_ERR(request)) {
        free(l);
        engine->events.landed(token, false);
    }
    return UCS_OK;
}

static ucs_status_t on_message(void *argument, const void *header, size_t header_bytes, void *data,
                               size_t bytes, const ucp_am_recv_param_t *about)
{
    ucx_engine *engine = argument;
    bool later = about->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV;
    void *token = NULL;
    void *into = engine->events.place(engine->events.context, header, header_bytes, bytes, !later, &token);

    if (!into)
        return UCS_OK;
    if (later)
        return receive_large(engine, data, into, bytes, token);
    memcpy(into, data, bytes);
    engine->events.landed(token, true);
    return UCS_OK;
}

/* ---- sending -------------------------------------------------------------------------------------- */

typedef struct sending {
    ucx_peer *peer;
    weft_engine_sent sent;
    void *argument;
} sending;

static void on_sent(void *request, ucs_status_t status, void *argument)
{
    sending *s = argument;

    ucx.ucp_request_free(request);
    if (status != UCS_OK)
        lose(s->peer, status);
    s->sent(s->argument, status == UCS_OK);
    free(s);
}

static void ucx_send(void *handle, int number, const void *header, size_t header_bytes, const void *data,
                     size_t bytes, weft_engine_sent sent, void *argument)
{
    ucx_engine *engine = handle;
    ucx_peer *peer = &engine->peers[number];
    sending *s = peer->lost || !peer->ep ? NULL : malloc(sizeof(*s));
    ucp_request_param_t parameters = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .cb.send = on_sent,
        .user_data = s,
    };
    ucs_status_ptr_t request;

    if (!s) {
        lose(peer, UCS_ERR_NO_MEMORY);
        sent(argument, false);
        return;
    }
    *s = (sending){peer, sent, argument};
    request = ucx.ucp_am_send_nbx(peer->ep, AM_ID, header, header_bytes, data, bytes, &parameters);
    if (UCS_PTR_IS_PTR(request))
        return;
    free(s);
    if (UCS_PTR_IS_ERR(request))
        lose(peer, UCS_PTR_STATUS(request));
    sent(argument, !UCS_PTR_IS_ERR(request));
}

static bool ucx_progress(void *handle)
{
    return ucx.ucp_worker_progress(((ucx_engine *)handle)->worker) != 0;
}

static int ucx_descriptor(const void *handle)
{
    return ((const ucx_engine *)handle)->fd;
}

static bool ucx_arm(void *handle)
{
    return ucx.ucp_worker_arm(((ucx_engine *)handle)->worker) == UCS_OK;
}

/* ---- opening and closing -------------------------------------------------------------------------- */

static const void *ucx_address(const void *handle, size_t *bytes)
{
    const ucx_engine *engine = handle;

    *bytes = engine->address_bytes;
    return engine->address;
}

static weft_status ucx_connect(void *handle, int number, const void *address, weft_error_text *error)
{
    ucx_engine *engine = handle;
    ucx_peer *peer = &engine->peers[number];
    ucp_ep_params_t parameters = {
        .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER,
        .address = address,
        .err_mode = UCP_ERR_HANDLING_MODE_PEER,
        .err_handler = {.cb = on_error, .arg = peer},
    };
    ucs_status_t status = ucx.ucp_ep_create(engine->worker, &parameters, &peer->ep);

    if (status == UCS_OK)
        return WEFT_OK;
    peer->ep = NULL;
    return weft_error_set(error, WEFT_ERR_SYSTEM, "UCX cannot connect to rank %d: %s", number,
                          ucx.ucs_status_string(status));
}

static void finish(ucx_engine *engine, ucs_status_ptr_t request, int64_t until_ns)
{
    while (UCS_PTR_IS_PTR(request) && ucx.ucp_request_check_status(request) == UCS_INPROGRESS &&
           weft_clock_ns() < until_ns)
        ucx.ucp_worker_progress(engine->worker);
    if (UCS_PTR_IS_PTR(request))
        ucx.ucp_request_free(request);
}

static void ucx_close(void *handle, int64_t linger_ns)
{
    ucx_engine *engine = handle;
    ucp_request_param_t flush = {0},
                        force = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS, .flags = UCP_EP_CLOSE_FLAG_FORCE};
    int64_t until = weft_clock_ns() + linger_ns;

    engine->closing = true;
    if (linger_ns > 0)
        finish(engine, ucx.ucp_worker_flush_nbx(engine->worker, &flush), until);
    for (int peer = 0; peer < engine->peer_count; peer++)
        if (engine->peers[peer].ep)
            finish(engine, ucx.ucp_ep_close_nbx(engine->peers[peer].ep, &force), until + 100000000);
    ucx.ucp_worker_release_address(engine->worker, engine->address);
    ucx.ucp_worker_destroy(engine->worker);
    ucx.ucp_cleanup(engine->context);
    free(engine);
}

/* Sizes of TCP's buffers are read from the environment alone, when context and worker are made: by one thread
 * at a time, for another would take them for the user's and find them gone. */
static pthread_mutex_t environment = PTHREAD_MUTEX_INITIALIZER;

static const char *const tcp_settings[][2] = {{"UCX_RNDV_THRESH", "inf"}, {"UCX_TCP_RX_SEG_SIZE", "256k"}};

enum { TCP_SETTINGS = sizeof(tcp_settings) / sizeof(tcp_settings[0]) };

static void set_up_for_tcp(bool set[TCP_SETTINGS])
{
    for (int i = 0; i < TCP_SETTINGS; i++) {
        set[i] = !getenv(tcp_settings[i][0]);
        if (set[i])
            setenv(tcp_settings[i][0], tcp_settings[i][1], 0);
    }
}

static void restore(const bool set[TCP_SETTINGS])
{
    for (int i = 0; i < TCP_SETTINGS; i++)
        if (set[i])
            unsetenv(tcp_settings[i][0]);
}

static size_t ucx_piece(const void *handle)
{
    return ((const ucx_engine *)handle)->tcp ? (256 << 10) - HEADER_ROOM : SIZE_MAX;
}

static ucs_status_t open_context(ucp_context_h *context)
{
    ucp_params_t parameters = {
        .field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME,
        .features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP,
        .name = "weft",
    };
    ucp_config_t *config;
    ucs_status_t status = ucx.ucp_config_read(NULL, NULL, &config);

    if (status != UCS_OK)
        return status;
    if (!getenv("UCX_TLS"))
        status = ucx.ucp_config_modify(config, "TLS", "^shm");
    if (status == UCS_OK)
        status = ucx.ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &parameters, config, context);
    ucx.ucp_config_release(config);
    return status;
}

static ucs_status_t open_worker(ucx_engine *engine)
{
    ucp_worker_params_t parameters = {
        .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
        .thread_mode = UCS_THREAD_MODE_SERIALIZED,
    };
    ucp_am_handler_param_t handler = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                      UCP_AM_HANDLER_PARAM_FIELD_ARG | UCP_AM_HANDLER_PARAM_FIELD_FLAGS,
        .id = AM_ID,
        .flags = UCP_AM_FLAG_WHOLE_MSG,
        .cb = on_message,
        .arg = engine,
    };
    ucs_status_t status = ucx.ucp_worker_create(engine->context, &parameters, &engine->worker);

    if (status != UCS_OK)
        return status;
    status = ucx.ucp_worker_set_am_recv_handler(engine->worker, &handler);
    if (status == UCS_OK)
        status = ucx.ucp_worker_get_efd(engine->worker, &engine->fd);
    if (status == UCS_OK)
        status = ucx.ucp_worker_get_address(engine->worker, &engine->address, &engine->address_bytes);
    if (status != UCS_OK)
        ucx.ucp_worker_destroy(engine->worker);
    return status;
}

static weft_status ucx_open(int peers, const weft_engine_events *events, void **handle,
                            weft_error_text *error)
{
    ucx_engine *engine = calloc(1, sizeof(*engine) + sizeof(ucx_peer) * (size_t)peers);
    bool set[TCP_SETTINGS] = {false};
    ucs_status_t status;

    if (!engine)
        return weft_error_set(error, WEFT_ERR_MEMORY, "out of memory for %d connections", peers);
    engine->events = *events;
    engine->peer_count = peers;
    for (int peer = 0; peer < peers; peer++)
        engine->peers[peer] = (ucx_peer){.engine = engine, .number = peer};
    engine->tcp = peers <= BUFFERED_PEERS_MAX && !weft_fabric_infiniband();
    pthread_mutex_lock(&environment);
    if (engine->tcp)
        set_up_for_tcp(set);
    status = open_context(&engine->context);
    if (status == UCS_OK) {
        status = open_worker(engine);
        if (status != UCS_OK)
            ucx.ucp_cleanup(engine->context);
    }
    if (engine->tcp)
        restore(set);
    pthread_mutex_unlock(&environment);
    if (status != UCS_OK) {
        free(engine);
        return weft_error_set(error, WEFT_ERR_SYSTEM, "UCX cannot start: %s", ucx.ucs_status_string(status));
    }
    *handle = engine;
    return WEFT_OK;
}

weft_status weft_engine_ucx(const weft_engine **engine, weft_error_text *error)
{
    static const weft_engine table = {
        .name = "UCX",
        .open = ucx_open,
        .address = ucx_address,
        .connect = ucx_connect,
        .send = ucx_send,
        .piece = ucx_piece,
        .forget = NULL, /* a rendezvous may be written by the peer's card, and is not taken back */
        .progress = ucx_progress,
        .descriptor = ucx_descriptor,
        .arm = ucx_arm,
        .close = ucx_close,
    };

    pthread_once(&once, load);
    if (ucx.why[0])
        return weft_error_set(
            error, WEFT_ERR_UNSUPPORTED,
            "messages between nodes go by UCX here, which cannot be loaded (%s; Debian: libucx0)", ucx.why);
    *engine = &table;
    return WEFT_OK;
}
