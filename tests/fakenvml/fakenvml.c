/*
 * fakenvml.c -- a pretend NVIDIA driver library (libnvidia-ml.so.1) for machines without a GPU.
 *
 * Programs that read GPUs through NVML (nvidia-ml-py, nvitop, gpustat, nvtop, our own tool) load
 * this library instead of the driver's and see the machine that a text file describes.
 *
 * Build (one line, no Makefile):
 *     cc -O2 -Wall -Wextra -shared -fPIC -fvisibility=hidden -Wl,-soname,libnvidia-ml.so.1 \
 *        -o libnvidia-ml.so.1 fakenvml.c -lm -lpthread
 * Use:
 *     FAKENVML_STATE=state.txt LD_LIBRARY_PATH=<dir of the .so> nvitop
 * To imitate an older driver, hide newer entry points by adding
 *     -Wl,--version-script=old.map     where old.map is   { local: nvmlDeviceGetTemperatureV; };
 * (`fakenvml.py build --hide NAME...` does that.) -DWIDE_PROCESSES gives the _v3 process lists the
 * entries of driver 535.43, eight bytes wider than callers of any other driver expect.
 *
 * Environment
 *   FAKENVML_STATE    the state file. Unset or unreadable: nvmlInit fails with DRIVER_NOT_LOADED.
 *   FAKENVML_POLL_MS  how often, at most, the file's mtime is looked at (default 20).
 *   FAKENVML_COUNTS   a file that receives live call counters (binary rows of 56-byte name + u64;
 *                     read with `fakenvml.py counts FILE`). "%p" becomes the process id.
 *   FAKENVML_DEBUG    a file to which parse errors are appended.
 *
 * State file: one statement a line; '#' starts a comment line. Global statements come first.
 *   driver 570.133.20 | nvml 12.570.133.20 | cuda 12080
 *   epoch SECONDS            time zero of the moving values (unix time; default: the file's mtime)
 *   init_error ERR           nvmlInit fails with ERR
 *   latency PATTERN USEC     each call of a function matching PATTERN takes this much longer
 *   serialize 1              the latency is spent holding one library-wide lock
 *   spin 1                   the latency burns CPU instead of sleeping
 *   null_segv 1              a NULL device handle crashes the caller (SIGSEGV), as users of the real
 *                            library report (nvitop issues 139 and 145), instead of INVALID_ARGUMENT
 *   fault PATTERN ERR [P]    functions matching PATTERN fail with ERR (with probability P)
 *   event SEQ GPU TYPE DATA  delivered once to event sets registered before SEQ appeared here;
 *                            TYPE: xid sbe dbe pstate clock power mig, or a number
 *   topo I LEVEL LEVEL ...   row I of the topology matrix: SELF PIX PXB PHB NODE SYS
 *   p2p I J CAP STATUS       I,J an index or *; CAP READ WRITE NVLINK ATOMICS PCI or *;
 *                            STATUS OK CNS GNS TNS DR NS U
 *   [gpu *]                  defaults for the GPUs that follow
 *   [gpu N]                  one GPU; its statements are "field VALUE" (see FIELDS and STRINGS
 *                            below), and also: latency, fault (for this GPU only), and
 *   proc KIND PID MEM [sm=V] [mem=V] [enc=V] [dec=V] [gi=N] [ci=N]    KIND compute graphics mps
 *   nvlink_state 1101...     one digit a link
 *   nvlink_err LINK|* KIND V KIND replay recovery crc_flit crc_data ecc
 *   nvlink_remote LINK|* gpu|switch|unknown PCI
 *   gpm METRIC_ID V          GPM metric (NVML_GPM_METRIC_*)
 *   part GI CI UUID USED TOTAL   a MIG device, in bytes; its processes are those with its gi= and ci=
 * A value V is one of
 *   123                a constant
 *   N/A                the call (or field) answers NOT_SUPPORTED
 *   !ERR               the call answers ERR (a name without NVML_ERROR_, or a number)
 *   ~LO:HI:PERIOD[:PH] a sine between LO and HI; PERIOD in seconds, PH 0..1
 *   ^LO:HI:PERIOD:DUTY[:PH]  HI for DUTY of each period, else LO (training steps, stalls)
 *   ?LO:HI:PERIOD[:SEED]  a new pseudo-random number each PERIOD
 *   +BASE:RATE         a counter: BASE + RATE a second since epoch
 * Fields that a file does not name are N/A.
 *
 * lost V (a field): 1 = every call on the GPU, handle look-ups included, answers GPU_IS_LOST;
 *   2 = look-ups and identity (name, uuid, pci, index, minor, serial) still work, the rest is
 *   lost; 3 = the handle look-up answers UNKNOWN, the rest is lost.
 *
 * Struct layouts follow nvidia-ml-py 13.x; `fakenvml.py abi` compares them with ctypes.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int ret_t; /* nvmlReturn_t */

enum { OK = 0, E_UNINIT = 1, E_ARG = 2, E_NOTSUP = 3, E_PERM = 4, E_NOTFOUND = 6, E_SIZE = 7,
       E_NODRIVER = 9, E_TIMEOUT = 10, E_LOST = 15, E_VERSION = 25, E_UNKNOWN = 999 };

static const struct { int code; const char *name, *text; } ERRORS[] = {
    {0, "SUCCESS", "Success"},
    {1, "UNINITIALIZED", "Uninitialized"},
    {2, "INVALID_ARGUMENT", "Invalid Argument"},
    {3, "NOT_SUPPORTED", "Not Supported"},
    {4, "NO_PERMISSION", "Insufficient Permissions"},
    {5, "ALREADY_INITIALIZED", "Already Initialized"},
    {6, "NOT_FOUND", "Not Found"},
    {7, "INSUFFICIENT_SIZE", "Insufficient Size"},
    {8, "INSUFFICIENT_POWER", "Insufficient External Power"},
    {9, "DRIVER_NOT_LOADED", "Driver Not Loaded"},
    {10, "TIMEOUT", "Timeout"},
    {11, "IRQ_ISSUE", "Interrupt Request Issue"},
    {12, "LIBRARY_NOT_FOUND", "NVML Shared Library Not Found"},
    {13, "FUNCTION_NOT_FOUND", "Function Not Found"},
    {14, "CORRUPTED_INFOROM", "Corrupted infoROM"},
    {15, "GPU_IS_LOST", "GPU is lost"},
    {16, "RESET_REQUIRED", "GPU requires reset"},
    {17, "OPERATING_SYSTEM", "The operating system has blocked the request"},
    {18, "LIB_RM_VERSION_MISMATCH", "Driver/library version mismatch"},
    {19, "IN_USE", "In use by another client"},
    {20, "MEMORY", "Insufficient Memory"},
    {21, "NO_DATA", "No data"},
    {23, "INSUFFICIENT_RESOURCES", "Insufficient Resources"},
    {25, "ARGUMENT_VERSION_MISMATCH", "Version mismatch between NVML and the caller"},
    {27, "NOT_READY", "System is not ready for the request"},
    {28, "GPU_NOT_FOUND", "No GPUs were found"},
    {29, "INVALID_STATE", "Resource not in correct state"},
    {999, "UNKNOWN", "Unknown Error"},
};

/* ------------------------------------------------------------------ ABI structs (13.x layout) */
typedef struct FakeDevice { u32 magic; int index; } *nvmlDevice_t;
typedef struct EventSet *nvmlEventSet_t;
typedef struct { char busIdLegacy[16]; u32 domain, bus, device, pciDeviceId, pciSubSystemId;
                 char busId[32]; } nvmlPciInfo_t;
typedef struct { char busId[16]; u32 domain, bus, device, pciDeviceId, pciSubSystemId,
                 reserved0, reserved1, reserved2, reserved3; } nvmlPciInfo_v2_t;
typedef struct { u32 version, domain, bus, device, pciDeviceId, pciSubSystemId, baseClass, subClass;
                 char busId[32]; } nvmlPciInfoExt_v1_t;
typedef struct { u64 total, free, used; } nvmlMemory_t;
typedef struct { u32 version; u64 total, reserved, free, used; } nvmlMemory_v2_t;
typedef struct { u64 bar1Total, bar1Free, bar1Used; } nvmlBAR1Memory_t;
typedef struct { u32 gpu, memory; } nvmlUtilization_t;
typedef struct { u32 pid; u64 usedGpuMemory; } nvmlProcessInfo_v1_t;
typedef struct { u32 pid; u64 usedGpuMemory; u32 gpuInstanceId, computeInstanceId; } nvmlProcessInfo_v2_t;
typedef struct { u32 pid; u64 usedGpuMemory; u32 gpuInstanceId, computeInstanceId;
                 u64 usedGpuCcProtectedMemory; } nvmlProcessDetail_v1_t;
typedef struct { u32 version, mode, numProcArrayEntries; nvmlProcessDetail_v1_t *procArray; }
    nvmlProcessDetailList_v1_t;
typedef struct { u32 pid; u64 timeStamp; u32 smUtil, memUtil, encUtil, decUtil; }
    nvmlProcessUtilizationSample_t;
typedef struct { u64 timeStamp; u32 pid, smUtil, memUtil, encUtil, decUtil, jpgUtil, ofaUtil; }
    nvmlProcessUtilizationInfo_v1_t;
typedef struct { u32 version, processSamplesCount; u64 lastSeenTimeStamp;
                 nvmlProcessUtilizationInfo_v1_t *procUtilArray; } nvmlProcessesUtilizationInfo_v1_t;
typedef union { double dVal; u32 uiVal; unsigned long ulVal; u64 ullVal; long long sllVal; int siVal;
                unsigned short usVal; } nvmlValue_t;
typedef struct { u32 fieldId, scopeId; int64_t timestamp, latencyUsec; u32 valueType; ret_t nvmlReturn;
                 nvmlValue_t value; } nvmlFieldValue_t;
typedef struct { u64 timeStamp; nvmlValue_t sampleValue; } nvmlSample_t;
typedef struct { u64 referenceTime, violationTime; } nvmlViolationTime_t;
typedef struct { u64 l1Cache, l2Cache, deviceMemory, registerFile; } nvmlEccErrorCounts_t;
typedef struct { u32 max, high, partial, low, none; } nvmlRowRemapperHistogramValues_t;
typedef struct { u32 version; u64 aggregateUncParity, aggregateUncSecDed, aggregateCor,
                 volatileUncParity, volatileUncSecDed, volatileCor, aggregateUncBucketL2,
                 aggregateUncBucketSm, aggregateUncBucketPcie, aggregateUncBucketMcu,
                 aggregateUncBucketOther; u32 bThresholdExceeded; } nvmlEccSramErrorStatus_v1_t;
typedef struct { nvmlDevice_t device; u64 eventType, eventData; u32 gpuInstanceId,
                 computeInstanceId; } nvmlEventData_t;
typedef struct { u32 version, sensorType; int temperature; } nvmlTemperature_v1_t;
typedef struct { u32 version; int marginTemperature; } nvmlMarginTemperature_v1_t;
typedef struct { u32 version, fan, speed; } nvmlFanSpeedInfo_t;
typedef struct { unsigned char clusterUuid[16]; ret_t status; u32 cliqueId, state; } nvmlGpuFabricInfo_t;
typedef struct { u32 version; unsigned char clusterUuid[16]; ret_t status; u32 cliqueId, state,
                 healthMask; unsigned char healthSummary; } nvmlGpuFabricInfo_v3_t;
typedef struct { u32 version, isSupportedDevice; } nvmlGpmSupport_t;
typedef struct { u32 metricId; ret_t nvmlReturn; double value;
                 struct { char *shortName, *longName, *unit; } metricInfo; } nvmlGpmMetric_t;
typedef struct { u32 version, numMetrics; void *sample1, *sample2; nvmlGpmMetric_t metrics[]; }
    nvmlGpmMetricsGet_t;
typedef struct { u32 multiprocessorCount, sharedCopyEngineCount, sharedDecoderCount,
                 sharedEncoderCount, sharedJpegCount, sharedOfaCount, gpuInstanceSliceCount,
                 computeInstanceSliceCount; u64 memorySizeMB; } nvmlDeviceAttributes_t;

/* sizes and offsets for `fakenvml.py abi` */
EXPORT const char *fakenvml_abi(void) {
    static char buf[4096];
    char *p = buf;
#define S(t) p += sprintf(p, "%s %zu\n", #t, sizeof(t));
#define O(t, f) p += sprintf(p, "%s.%s %zu\n", #t, #f, offsetof(t, f));
    S(nvmlPciInfo_t) O(nvmlPciInfo_t, domain) O(nvmlPciInfo_t, busId)
    S(nvmlPciInfo_v2_t) O(nvmlPciInfo_v2_t, reserved0) S(nvmlPciInfoExt_v1_t)
    S(nvmlMemory_t) S(nvmlMemory_v2_t) O(nvmlMemory_v2_t, total) O(nvmlMemory_v2_t, used)
    S(nvmlBAR1Memory_t) S(nvmlUtilization_t)
    S(nvmlProcessInfo_v2_t) O(nvmlProcessInfo_v2_t, usedGpuMemory) O(nvmlProcessInfo_v2_t, computeInstanceId)
    S(nvmlProcessDetail_v1_t) S(nvmlProcessDetailList_v1_t) O(nvmlProcessDetailList_v1_t, procArray)
    S(nvmlProcessUtilizationSample_t) O(nvmlProcessUtilizationSample_t, smUtil)
    S(nvmlProcessUtilizationInfo_v1_t) S(nvmlProcessesUtilizationInfo_v1_t)
    S(nvmlFieldValue_t) O(nvmlFieldValue_t, nvmlReturn) O(nvmlFieldValue_t, value)
    S(nvmlSample_t) S(nvmlViolationTime_t) S(nvmlEccErrorCounts_t) S(nvmlRowRemapperHistogramValues_t)
    S(nvmlEccSramErrorStatus_v1_t) O(nvmlEccSramErrorStatus_v1_t, bThresholdExceeded)
    S(nvmlEventData_t) O(nvmlEventData_t, computeInstanceId) S(nvmlTemperature_v1_t)
    S(nvmlMarginTemperature_v1_t) S(nvmlFanSpeedInfo_t) S(nvmlGpuFabricInfo_t) S(nvmlGpuFabricInfo_v3_t)
    S(nvmlGpmSupport_t) S(nvmlGpmMetric_t) O(nvmlGpmMetricsGet_t, metrics) S(nvmlDeviceAttributes_t)
#undef S
#undef O
    return buf;
}

/* --------------------------------------------------------------------------- the pretend state */
/* every numeric field of a GPU; units in the comment, NVML's own unless said */
#define FIELDS(X)                                                                                  \
    X(mem_total) X(mem_used) X(mem_reserved) X(bar1_total) X(bar1_used)        /* bytes */         \
    X(util_gpu) X(util_mem) X(util_enc) X(util_dec) X(util_jpg) X(util_ofa)    /* percent */       \
    X(temp) X(temp_mem) X(temp_shutdown) X(temp_slowdown) X(temp_mem_max) X(temp_gpu_max) /* C */  \
    X(temp_margin)                                                                                 \
    X(power) X(power_avg) X(power_limit) X(power_enforced) X(power_default) X(power_min)           \
    X(power_max) /* mW */ X(energy) /* mJ */ X(power_source)                                       \
    X(clk_gr) X(clk_sm) X(clk_mem) X(clk_video) X(max_gr) X(max_sm) X(max_mem) X(max_video)        \
    X(app_gr) X(app_mem) /* MHz */                                                                 \
    X(fan) X(fan_count) X(fan_rpm) X(pstate)                                                       \
    X(throttle) X(throttle_supported) /* bit masks nvmlClocksEventReason* */                       \
    X(viol_power) X(viol_thermal) X(viol_sync) X(viol_board) X(viol_lowutil) X(viol_reliab)        \
    X(viol_app) X(viol_base) /* ns */ X(viol_hw_thermal) X(viol_power_brake)                       \
    X(ecc_mode) X(ecc_pending)                                                                     \
    X(ecc_vol_corr_dram) X(ecc_vol_corr_sram) X(ecc_vol_unc_dram) X(ecc_vol_unc_sram)              \
    X(ecc_agg_corr_dram) X(ecc_agg_corr_sram) X(ecc_agg_unc_dram) X(ecc_agg_unc_sram)              \
    X(sram_threshold)                                                                              \
    X(retired_sbe) X(retired_dbe) X(retired_pending)                                               \
    X(remap_corr) X(remap_unc) X(remap_pending) X(remap_failure)                                   \
    X(remap_max) X(remap_high) X(remap_partial) X(remap_low) X(remap_none)                         \
    X(pcie_gen) X(pcie_width) X(pcie_gen_max) X(pcie_width_max) X(pcie_gen_gpu_max)                \
    X(pcie_tx) X(pcie_rx) /* KB/s */ X(pcie_replay) X(pcie_corr_errors) X(pcie_fatal_errors)       \
    X(nvlinks) X(nvlink_version) X(nvlink_speed) /* MB/s */                                        \
    X(nvlink_tx) X(nvlink_rx) /* KiB, counters over all links */                                   \
    X(mig_mode) X(mig_pending) X(compute_mode) X(persistence) X(display_mode) X(display_active)    \
    X(cc_major) X(cc_minor) X(arch) X(brand) X(cores) X(bus_width) X(minor) X(numa_node)           \
    X(board_id) X(module_id) X(multi_gpu_board) X(virt_mode) X(recovery_action)                    \
    X(fabric_state) X(fabric_status) X(fabric_clique) X(fabric_health)                             \
    X(gpm_supported) X(pci_device_id) X(pci_subsystem_id) X(lost)

#define STRINGS(X) X(name) X(uuid) X(pci) X(serial) X(vbios) X(part_number) X(inforom) X(cpus) X(gsp)

typedef struct { char kind; int err; double a, b, p, ph; } Val;
enum {
#define X(n) F_##n,
    FIELDS(X)
#undef X
    F_COUNT
};
static const char *FIELD_NAMES[] = {
#define X(n) #n,
    FIELDS(X)
#undef X
};
enum {
#define X(n) S_##n,
    STRINGS(X)
#undef X
    S_COUNT
};
static const char *STRING_NAMES[] = {
#define X(n) #n,
    STRINGS(X)
#undef X
};

#define MAXGPU 64
#define MAXLINK 36
#define MAXRULE 64
#define MAXGPM 64
#define MAXEVENT 256
#define MAXPART 8

typedef struct { int kind; u32 pid; Val mem, sm, mu, enc, dec; u32 gi, ci; } Proc;
typedef struct { u32 gi, ci; char uuid[96]; Val used, total; } Part;
typedef struct { int gpu; char pattern[64]; int err; double prob, usec; } Rule; /* gpu -1: all */
typedef struct {
    Val v[F_COUNT];
    char s[S_COUNT][96];
    int nproc; Proc *proc;
    char link_state[MAXLINK + 1];
    Val link_err[MAXLINK][5];
    int remote_type[MAXLINK]; char remote_pci[MAXLINK][32];
    int ngpm; struct { u32 id; Val v; } gpm[MAXGPM];
    int npart; Part part[MAXPART];
} Gpu;
typedef struct { u64 seq; int gpu; u64 type, data; } Event;
typedef struct {
    char driver[80], nvml[80];
    int cuda, init_error, serialize, spin, null_segv, ngpu, nrule, nevent;
    double epoch;
    Gpu *gpu[MAXGPU];
    int topo[MAXGPU][MAXGPU];
    unsigned char p2p[MAXGPU][MAXGPU][5];
    Rule rule[MAXRULE];
    Event event[MAXEVENT];
} State;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static State *cur;               /* latest good state; guarded by lock */
static struct timespec cur_mtime;
static ino_t cur_ino;
static int refs;                 /* nvmlInit calls minus nvmlShutdown calls */
static double last_poll;
static struct FakeDevice handles[MAXGPU];
static struct FakeDevice parts[MAXGPU * MAXPART]; /* MIG devices */
/* a MIG handle stands for its GPU, of which *p is then the part, else -1 */
static nvmlDevice_t whole(nvmlDevice_t d, int *p) {
    if (d < parts || d >= parts + MAXGPU * MAXPART) { *p = -1; return d; }
    *p = (int)(d - parts) % MAXPART;
    return &handles[(d - parts) / MAXPART];
}
static char last_error[256];

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

/* ------------------------------------------------------------------------- state file parsing */
static int err_code(const char *s) {
    char *end;
    if (!strncasecmp(s, "NVML_ERROR_", 11)) s += 11;
    for (size_t i = 0; i < sizeof ERRORS / sizeof *ERRORS; i++)
        if (!strcasecmp(s, ERRORS[i].name)) return ERRORS[i].code;
    long n = strtol(s, &end, 0);
    return *end || end == s ? -1 : (int)n;
}

static Val parse_val(const char *s, int *bad) {
    Val v = {.kind = 'e', .err = E_NOTSUP};
    int n = 0;
    if (!strcasecmp(s, "N/A")) return v;
    if (*s == '!') {
        v.err = err_code(s + 1);
        if (v.err < 0) *bad = 1;
        return v;
    }
    if (*s && strchr("~^?+", *s)) {
        v.kind = *s;
        n = sscanf(s + 1, "%lf:%lf:%lf:%lf", &v.a, &v.b, &v.p, &v.ph);
        if (*s == '^') { /* LO:HI:PERIOD:DUTY[:PH]; the duty goes to err, in millionths */
            double ph = 0;
            n = sscanf(s + 1, "%lf:%lf:%lf:%lf:%lf", &v.a, &v.b, &v.p, &v.ph, &ph);
            v.err = (int)(v.ph * 1e6);
            v.ph = ph;
            if (n < 4) *bad = 1;
        }
        if (n < (*s == '+' ? 2 : 3) || (*s != '+' && v.p <= 0)) *bad = 1;
        return v;
    }
    char *end;
    v.kind = 'c';
    v.a = (s[0] == '0' && (s[1] | 32) == 'x') ? (double)strtoull(s, &end, 16) : strtod(s, &end);
    if (end == s || *end) *bad = 1;
    return v;
}

static ret_t eval_at(const State *st, const Val *v, double t, double *out) {
    double dt = t - st->epoch, x;
    switch (v->kind) {
    case 'c': *out = v->a; return OK;
    case '+': *out = floor(v->a + v->b * dt); return OK;
    case '~': *out = (v->a + v->b) / 2 + (v->b - v->a) / 2 * sin(2 * M_PI * (dt / v->p + v->ph)); return OK;
    case '^': x = dt / v->p + v->ph; *out = x - floor(x) < v->err * 1e-6 ? v->b : v->a; return OK;
    case '?': { /* splitmix64 of (bucket, address-free salt) */
        u64 z = (u64)(int64_t)floor(dt / v->p) * 0x9E3779B97F4A7C15ull + (u64)(int64_t)(v->a * 1000) +
                (u64)(int64_t)(v->ph * 1e6) * 0x94D049BB133111EBull;
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
        *out = v->a + (v->b - v->a) * ((z ^ (z >> 31)) >> 11) / 9007199254740992.0;
        return OK;
    }
    }
    return v->err ? v->err : E_NOTSUP;
}
static ret_t eval(const Val *v, double *out) { return eval_at(cur, v, now(), out); }

static int lookup(const char *s, const char *const *names, int n) {
    for (int i = 0; i < n; i++)
        if (!strcasecmp(s, names[i])) return i;
    return -1;
}

static void free_state(State *st) {
    if (!st) return;
    for (int i = 0; i < MAXGPU; i++)
        if (st->gpu[i]) { free(st->gpu[i]->proc); free(st->gpu[i]); }
    free(st);
}

static Gpu *new_gpu(const Gpu *from) {
    Gpu *g = calloc(1, sizeof *g);
    if (from) {
        *g = *from;
        g->proc = NULL;
        g->nproc = 0;
        for (int i = 0; i < from->nproc; i++) {
            g->proc = realloc(g->proc, (i + 1) * sizeof *g->proc);
            g->proc[g->nproc++] = from->proc[i];
        }
        return g;
    }
    for (int i = 0; i < F_COUNT; i++) g->v[i] = (Val){.kind = 'e', .err = E_NOTSUP};
    g->v[F_lost] = (Val){.kind = 'c'};
    for (int i = 0; i < MAXLINK; i++) {
        g->remote_type[i] = 0xFF;
        for (int k = 0; k < 5; k++) g->link_err[i][k] = (Val){.kind = 'c'};
    }
    return g;
}

/* one statement; returns NULL or a complaint */
static const char *statement(State *st, Gpu **g, Gpu **dflt, int *gi, char *line) {
    static const char *const LEVELS[] = {"SELF", "PIX", "PXB", "PHB", "NODE", "SYS"};
    static const char *const CAPS[] = {"READ", "WRITE", "NVLINK", "ATOMICS", "PCI"};
    static const char *const P2PS[] = {"OK", "CNS", "GNS", "TNS", "DR", "NS", "U"};
    static const char *const LERR[] = {"replay", "recovery", "crc_flit", "crc_data", "ecc"};
    char *save, *key, *rest, *a[80];
    int n = 0, bad = 0;
    if (*line == '[') {
        char which[16];
        if (sscanf(line, "[gpu %15[^]]]", which) != 1) return "expected [gpu N] or [gpu *]";
        if (!strcmp(which, "*")) {
            if (!*dflt) *dflt = new_gpu(NULL);
            *g = *dflt;
            *gi = -1;
            return NULL;
        }
        *gi = atoi(which);
        if (*gi < 0 || *gi >= MAXGPU) return "GPU index out of range";
        if (!st->gpu[*gi]) st->gpu[*gi] = new_gpu(*dflt);
        *g = st->gpu[*gi];
        if (*gi >= st->ngpu) st->ngpu = *gi + 1;
        return NULL;
    }
    key = strtok_r(line, " \t", &save);
    rest = save ? save + strspn(save, " \t") : "";
    if (*g) {
        int i = lookup(key, STRING_NAMES, S_COUNT);
        if (i >= 0) { snprintf((*g)->s[i], sizeof (*g)->s[i], "%s", rest); return NULL; }
    }
    char *copy = rest;
    for (char *w; n < 80 && (w = strtok_r(copy, " \t", &save)); copy = NULL) a[n++] = w;
    if (!strcmp(key, "latency") || !strcmp(key, "fault")) {
        Rule *r = &st->rule[st->nrule];
        if (n < 2 || st->nrule == MAXRULE) return "latency PATTERN USEC / fault PATTERN ERR [P]";
        *r = (Rule){.gpu = *g ? *gi : -1, .err = -1, .prob = 1};
        snprintf(r->pattern, sizeof r->pattern, "%s", a[0]);
        if (*key == 'l') r->usec = atof(a[1]);
        else {
            if ((r->err = err_code(a[1])) < 0) return "unknown error name";
            if (n > 2) r->prob = atof(a[2]);
        }
        st->nrule++;
        return NULL;
    }
    if (!*g) {
        if (n < 1) return "missing value";
        if (!strcmp(key, "fakenvml")) return NULL;
        if (!strcmp(key, "driver")) { snprintf(st->driver, 80, "%s", a[0]); return NULL; }
        if (!strcmp(key, "nvml")) { snprintf(st->nvml, 80, "%s", a[0]); return NULL; }
        if (!strcmp(key, "cuda")) { st->cuda = atoi(a[0]); return NULL; }
        if (!strcmp(key, "epoch")) { st->epoch = atof(a[0]); return NULL; }
        if (!strcmp(key, "serialize")) { st->serialize = atoi(a[0]); return NULL; }
        if (!strcmp(key, "spin")) { st->spin = atoi(a[0]); return NULL; }
        if (!strcmp(key, "null_segv")) { st->null_segv = atoi(a[0]); return NULL; }
        if (!strcmp(key, "init_error")) return (st->init_error = err_code(a[0])) < 0 ? "unknown error" : NULL;
        if (!strcmp(key, "event")) {
            static const struct { const char *n; u64 t; } T[] = {{"xid", 8}, {"sbe", 1}, {"dbe", 2},
                {"pstate", 4}, {"clock", 16}, {"power", 0x80}, {"mig", 0x100}};
            if (n < 4 || st->nevent == MAXEVENT) return "event SEQ GPU TYPE DATA";
            Event *e = &st->event[st->nevent++];
            *e = (Event){strtoull(a[0], 0, 0), atoi(a[1]), strtoull(a[2], 0, 0), strtoull(a[3], 0, 0)};
            for (size_t i = 0; i < sizeof T / sizeof *T; i++)
                if (!strcasecmp(a[2], T[i].n)) e->type = T[i].t;
            return NULL;
        }
        if (!strcmp(key, "topo")) {
            int i = atoi(a[0]), l;
            if (i < 0 || i >= MAXGPU) return "index out of range";
            for (int j = 1; j < n && j <= MAXGPU; j++) {
                if ((l = lookup(a[j], LEVELS, 6)) < 0) return "unknown topology level";
                st->topo[i][j - 1] = l * 10;
            }
            return NULL;
        }
        if (!strcmp(key, "p2p")) {
            int cap, status;
            if (n < 4) return "p2p I J CAP STATUS";
            cap = *a[2] == '*' ? -1 : lookup(a[2], CAPS, 5);
            status = lookup(a[3], P2PS, 7);
            if ((cap < 0 && *a[2] != '*') || status < 0) return "unknown p2p capability or status";
            for (int i = 0; i < MAXGPU; i++)
                for (int j = 0; j < MAXGPU; j++)
                    if ((*a[0] == '*' || atoi(a[0]) == i) && (*a[1] == '*' || atoi(a[1]) == j))
                        for (int c = 0; c < 5; c++)
                            if (cap < 0 || cap == c) st->p2p[i][j][c] = status;
            return NULL;
        }
        return "unknown global statement";
    }
    if (!strcmp(key, "proc")) {
        static const char *const KINDS[] = {"compute", "graphics", "mps"};
        if (n < 3) return "proc KIND PID MEM ...";
        Gpu *x = *g;
        Proc p = {.kind = lookup(a[0], KINDS, 3), .pid = strtoul(a[1], 0, 0),
                  .mem = parse_val(a[2], &bad), .gi = 0xFFFFFFFF, .ci = 0xFFFFFFFF};
        Val zero = {.kind = 'c'}, na = {.kind = 'e', .err = E_NOTSUP};
        p.sm = na; p.mu = p.enc = p.dec = zero;
        for (int i = 3; i < n; i++) {
            char *eq = strchr(a[i], '=');
            if (!eq) return "expected key=value";
            *eq++ = 0;
            if (!strcmp(a[i], "sm")) p.sm = parse_val(eq, &bad);
            else if (!strcmp(a[i], "mem")) p.mu = parse_val(eq, &bad);
            else if (!strcmp(a[i], "enc")) p.enc = parse_val(eq, &bad);
            else if (!strcmp(a[i], "dec")) p.dec = parse_val(eq, &bad);
            else if (!strcmp(a[i], "gi")) p.gi = strtoul(eq, 0, 0);
            else if (!strcmp(a[i], "ci")) p.ci = strtoul(eq, 0, 0);
            else return "unknown proc key";
        }
        if (p.kind < 0) return "unknown proc kind";
        x->proc = realloc(x->proc, (x->nproc + 1) * sizeof *x->proc);
        x->proc[x->nproc++] = p;
        return bad ? "bad value" : NULL;
    }
    if (n < 1) return "missing value";
    if (!strcmp(key, "nvlink_state")) { snprintf((*g)->link_state, MAXLINK + 1, "%s", a[0]); return NULL; }
    if (!strcmp(key, "nvlink_err") || !strcmp(key, "nvlink_remote")) {
        if (n < 3) return "nvlink_err LINK KIND V / nvlink_remote LINK TYPE PCI";
        int all = *a[0] == '*', l0 = all ? 0 : atoi(a[0]), l1 = all ? MAXLINK : l0 + 1;
        if (l0 < 0 || l1 > MAXLINK) return "link out of range";
        for (int l = l0; l < l1; l++)
            if (key[7] == 'e') {
                int k = lookup(a[1], LERR, 5);
                if (k < 0) return "unknown link error kind";
                (*g)->link_err[l][k] = parse_val(a[2], &bad);
            } else {
                (*g)->remote_type[l] = !strcmp(a[1], "gpu") ? 0 : !strcmp(a[1], "switch") ? 2 : 0xFF;
                snprintf((*g)->remote_pci[l], 32, "%s", a[2]);
            }
        return bad ? "bad value" : NULL;
    }
    if (!strcmp(key, "part")) {
        if (n < 5 || (*g)->npart == MAXPART) return "part GI CI UUID USED TOTAL";
        Part *p = &(*g)->part[(*g)->npart++];
        *p = (Part){.gi = atoi(a[0]), .ci = atoi(a[1]), .used = parse_val(a[3], &bad), .total = parse_val(a[4], &bad)};
        snprintf(p->uuid, sizeof p->uuid, "%s", a[2]);
        return bad ? "bad value" : NULL;
    }
    if (!strcmp(key, "gpm")) {
        if (n < 2 || (*g)->ngpm == MAXGPM) return "gpm ID V";
        (*g)->gpm[(*g)->ngpm].id = atoi(a[0]);
        (*g)->gpm[(*g)->ngpm++].v = parse_val(a[1], &bad);
        return bad ? "bad value" : NULL;
    }
    int i = lookup(key, FIELD_NAMES, F_COUNT);
    if (i < 0) return "unknown field";
    (*g)->v[i] = parse_val(a[0], &bad);
    return bad ? "bad value" : NULL;
}

static void complain(int lineno, const char *what, const char *line) {
    snprintf(last_error, sizeof last_error, "line %d: %s: %.120s", lineno, what, line);
    const char *path = getenv("FAKENVML_DEBUG");
    FILE *f = path ? fopen(path, "a") : NULL;
    if (f) { fprintf(f, "fakenvml: %s\n", last_error); fclose(f); }
}

static State *parse_file(const char *path, double mtime) {
    FILE *f = fopen(path, "re");
    if (!f) return NULL;
    State *st = calloc(1, sizeof *st);
    Gpu *g = NULL, *dflt = NULL;
    char line[2048], orig[160];
    int gi = -1, lineno = 0;
    strcpy(st->driver, "570.133.20");
    strcpy(st->nvml, "12.570.133.20");
    st->cuda = 12080;
    st->epoch = mtime;
    memset(st->p2p, 5, sizeof st->p2p);
    for (int i = 0; i < MAXGPU; i++)
        for (int j = 0; j < MAXGPU; j++) st->topo[i][j] = i == j ? 0 : 50;
    *last_error = 0;
    while (fgets(line, sizeof line, f)) {
        lineno++;
        char *p = line + strspn(line, " \t");
        p[strcspn(p, "\r\n")] = 0;
        for (size_t k = strlen(p); k && (p[k - 1] == ' ' || p[k - 1] == '\t');) p[--k] = 0;
        if (!*p || *p == '#') continue;
        snprintf(orig, sizeof orig, "%s", p);
        const char *e = statement(st, &g, &dflt, &gi, p);
        if (e) complain(lineno, e, orig);
    }
    fclose(f);
    if (dflt) { free(dflt->proc); free(dflt); }
    for (int i = 0; i < st->ngpu; i++)
        if (!st->gpu[i]) st->gpu[i] = new_gpu(NULL);
    return st;
}

/* look at the file if it is time to; called with the lock held */
static void refresh(int force) {
    static double interval = -1;
    double t = now();
    if (interval < 0) {
        const char *s = getenv("FAKENVML_POLL_MS");
        interval = (s ? atof(s) : 20) / 1000;
    }
    if (!force && cur && t - last_poll < interval && t >= last_poll) return;
    last_poll = t;
    const char *path = getenv("FAKENVML_STATE");
    struct stat sb;
    if (!path || stat(path, &sb)) return;
    if (cur && sb.st_ino == cur_ino && sb.st_mtim.tv_sec == cur_mtime.tv_sec &&
        sb.st_mtim.tv_nsec == cur_mtime.tv_nsec)
        return;
    State *st = parse_file(path, sb.st_mtim.tv_sec);
    if (!st) return;
    free_state(cur);
    cur = st;
    cur_ino = sb.st_ino;
    cur_mtime = sb.st_mtim;
}
EXPORT const char *fakenvml_check(void) { /* for `fakenvml.py check`: reparse, return the last complaint */
    pthread_mutex_lock(&lock);
    refresh(1);
    pthread_mutex_unlock(&lock);
    return cur ? last_error : "no readable FAKENVML_STATE";
}

/* -------------------------------------------------------------- per-call entry: count, delay, fail */
typedef struct { char name[56]; u64 n; } Slot;
#define MAXSLOT 512
static Slot *slots;
static void open_counts(void) {
    const char *p = getenv("FAKENVML_COUNTS");
    char path[512], *at;
    if (!p || slots) return;
    if ((at = strstr((char *)p, "%p"))) snprintf(path, sizeof path, "%.*s%d%s", (int)(at - p), p, getpid(), at + 2);
    else snprintf(path, sizeof path, "%s", p);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0 || ftruncate(fd, MAXSLOT * sizeof(Slot))) { if (fd >= 0) close(fd); return; }
    void *m = mmap(NULL, MAXSLOT * sizeof(Slot), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (m != MAP_FAILED) slots = m;
}
static void count(const char *fn) { /* lock held */
    if (!slots) return;
    for (int i = 0; i < MAXSLOT; i++) {
        if (!slots[i].name[0]) strncpy(slots[i].name, fn, sizeof slots[i].name - 1);
        if (!strcmp(slots[i].name, fn)) { slots[i].n++; return; }
    }
}

static void delay(double usec, int spin) {
    if (!spin) {
        struct timespec ts = {(time_t)(usec / 1e6), (long)(fmod(usec, 1e6) * 1e3)};
        nanosleep(&ts, NULL);
        return;
    }
    for (double end = now() + usec * 1e-6; now() < end;) {}
}

/* latency and faults for (fn, gpu); lock held on entry and exit, though released while sleeping */
static ret_t rules(const char *fn, int gpu) {
    double usec = 0;
    int err = 0;
    for (int i = 0; i < cur->nrule; i++) {
        Rule *r = &cur->rule[i];
        if ((r->gpu >= 0 && r->gpu != gpu) || fnmatch(r->pattern, fn, 0)) continue;
        if (r->err < 0) usec = r->usec; /* the last matching line wins */
        else if (r->prob >= 1 || drand48() < r->prob) err = r->err;
    }
    if (usec > 0) {
        int hold = cur->serialize, spin = cur->spin; /* cur may change once the lock is open */
        if (!hold) pthread_mutex_unlock(&lock);
        delay(usec, spin);
        if (!hold) pthread_mutex_lock(&lock);
    }
    return err;
}

static ret_t enter(const char *fn, int need_init) {
    pthread_mutex_lock(&lock);
    open_counts();
    count(fn);
    refresh(0);
    if (need_init && !refs) return E_UNINIT;
    if (!cur) return need_init ? E_UNINIT : OK;
    return need_init ? rules(fn, -1) : OK;
}

static ret_t lost_code(const char *fn, const Gpu *g) {
    static const char *IDENTITY[] = {"nvmlDeviceGetIndex", "nvmlDeviceGetUUID", "nvmlDeviceGetName",
        "nvmlDeviceGetPciInfo", "nvmlDeviceGetPciInfo_v2", "nvmlDeviceGetPciInfo_v3",
        "nvmlDeviceGetMinorNumber", "nvmlDeviceGetSerial", "nvmlDeviceGetBrand"};
    double d = 0;
    eval(&g->v[F_lost], &d);
    if (!d) return OK;
    if (!strncmp(fn, "nvmlDeviceGetHandleBy", 21)) return d == 2 ? OK : d == 3 ? E_UNKNOWN : E_LOST;
    if (d == 2)
        for (size_t i = 0; i < sizeof IDENTITY / sizeof *IDENTITY; i++)
            if (!strcmp(fn, IDENTITY[i])) return OK;
    return E_LOST;
}

static ret_t enter_dev(const char *fn, nvmlDevice_t dev, Gpu **g, int *index) {
    pthread_mutex_lock(&lock);
    count(fn);
    refresh(0);
    if (!refs || !cur) return E_UNINIT;
    if (!dev && cur->null_segv) raise(SIGSEGV);
    if (dev < handles || dev >= handles + MAXGPU || dev->magic != 0xFA4E) return E_ARG;
    int i = dev->index;
    ret_t r = rules(fn, i);
    if (r) return r;
    if (i >= cur->ngpu) return E_LOST; /* the file now describes fewer GPUs */
    *g = cur->gpu[i];
    *index = i;
    return lost_code(fn, *g);
}
static void leave(int *held) { if (*held) pthread_mutex_unlock(&lock); }

#define GUARD __attribute__((cleanup(leave), unused)) int held_ = 1
#define SYS() GUARD; do { ret_t r_ = enter(__func__, 1); if (r_) return r_; } while (0)
#define DEV(d) GUARD; Gpu *g = NULL; int gi = 0; (void)gi; (void)g; \
    do { ret_t r_ = enter_dev(__func__, d, &g, &gi); if (r_) return r_; } while (0)
#define PARTED(d) int part_; d = whole(d, &part_); DEV(d); \
    const Part *part = part_ >= 0 && part_ < g->npart ? &g->part[part_] : NULL; (void)part
#define NEED(p) do { if (!(p)) return E_ARG; } while (0)
#define ALIAS(new, old) EXPORT __typeof__(old) new __attribute__((alias(#old)));

static ret_t put_u32(const Gpu *g, int f, u32 *out) {
    double d;
    ret_t r = eval(&g->v[f], &d);
    if (r) return r;
    NEED(out);
    *out = (u32)llround(d);
    return OK;
}
static ret_t put_val(const Val *v, u64 *out) {
    double d;
    ret_t r = eval(v, &d);
    if (r) return r;
    NEED(out);
    *out = (u64)d;
    return OK;
}
static ret_t put_u64(const Gpu *g, int f, u64 *out) { return put_val(&g->v[f], out); }
static ret_t put_str(const char *s, char *out, u32 len) {
    if (!*s) return E_NOTSUP;
    NEED(out);
    if (strlen(s) + 1 > len) return E_SIZE;
    strcpy(out, s);
    return OK;
}
static double num(const Gpu *g, int f) { double d = 0; eval(&g->v[f], &d); return d; }

#define GET_U32(fn, field) EXPORT ret_t fn(nvmlDevice_t d, u32 *out) { DEV(d); return put_u32(g, field, out); }
#define GET_U64(fn, field) EXPORT ret_t fn(nvmlDevice_t d, u64 *out) { DEV(d); return put_u64(g, field, out); }
#define GET_STR(fn, str) EXPORT ret_t fn(nvmlDevice_t d, char *out, u32 len) { DEV(d); return put_str(g->s[str], out, len); }

/* ------------------------------------------------------------------------------ init and system */
EXPORT ret_t nvmlInitWithFlags(u32 flags) {
    (void)flags;
    GUARD;
    ret_t r = enter(__func__, 0);
    if (r) return r;
    refresh(1);
    if (!cur) return E_NODRIVER;
    if ((r = rules("nvmlInit_v2", -1))) return r;
    if (cur->init_error) return cur->init_error;
    for (int i = 0; i < MAXGPU; i++) handles[i] = (struct FakeDevice){0xFA4E, i};
    refs++;
    return OK;
}
EXPORT ret_t nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
EXPORT ret_t nvmlInit(void) { return nvmlInitWithFlags(0); }
EXPORT ret_t nvmlShutdown(void) { SYS(); refs--; return OK; }
EXPORT const char *nvmlErrorString(ret_t e) {
    for (size_t i = 0; i < sizeof ERRORS / sizeof *ERRORS; i++)
        if (ERRORS[i].code == e) return ERRORS[i].text;
    return "Unknown Error";
}
EXPORT ret_t nvmlSystemGetDriverVersion(char *v, u32 n) { SYS(); return put_str(cur->driver, v, n); }
EXPORT ret_t nvmlSystemGetNVMLVersion(char *v, u32 n) { SYS(); return put_str(cur->nvml, v, n); }
EXPORT ret_t nvmlSystemGetCudaDriverVersion_v2(int *v) { SYS(); NEED(v); *v = cur->cuda; return OK; }
ALIAS(nvmlSystemGetCudaDriverVersion, nvmlSystemGetCudaDriverVersion_v2)
EXPORT ret_t nvmlSystemGetProcessName(u32 pid, char *name, u32 len) {
    SYS();
    NEED(name && len);
    char path[64];
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    FILE *f = fopen(path, "re");
    if (!f) return E_NOTFOUND;
    size_t n = fread(name, 1, len - 1, f);
    fclose(f);
    name[n] = 0; /* argv[0] ends at its own NUL */
    return OK;
}
EXPORT ret_t nvmlUnitGetCount(u32 *n) { SYS(); NEED(n); *n = 0; return OK; }
EXPORT ret_t nvmlGetExcludedDeviceCount(u32 *n) { SYS(); NEED(n); *n = 0; return OK; }

/* ---------------------------------------------------------------------------- device look-up */
EXPORT ret_t nvmlDeviceGetCount_v2(u32 *n) { SYS(); NEED(n); *n = cur->ngpu; return OK; }
ALIAS(nvmlDeviceGetCount, nvmlDeviceGetCount_v2)

static ret_t hand_out(const char *fn, int i, nvmlDevice_t *d) {
    ret_t r = lost_code(fn, cur->gpu[i]);
    if (!r) for (int k = 0; k < cur->nrule; k++) /* per-GPU faults on the look-up */
        if (cur->rule[k].gpu == i && cur->rule[k].err >= 0 && !fnmatch(cur->rule[k].pattern, fn, 0)) r = cur->rule[k].err;
    if (r) return r;
    NEED(d);
    *d = &handles[i];
    return OK;
}
EXPORT ret_t nvmlDeviceGetHandleByIndex_v2(u32 i, nvmlDevice_t *d) {
    SYS();
    return i >= (u32)cur->ngpu ? E_ARG : hand_out(__func__, i, d);
}
ALIAS(nvmlDeviceGetHandleByIndex, nvmlDeviceGetHandleByIndex_v2)
EXPORT ret_t nvmlDeviceGetHandleByUUID(const char *s, nvmlDevice_t *d) {
    SYS();
    NEED(s);
    for (int i = 0; i < cur->ngpu; i++)
        if (!strcmp(s, cur->gpu[i]->s[S_uuid])) return hand_out(__func__, i, d);
    return E_NOTFOUND;
}
EXPORT ret_t nvmlDeviceGetHandleBySerial(const char *s, nvmlDevice_t *d) {
    SYS();
    NEED(s);
    for (int i = 0; i < cur->ngpu; i++)
        if (!strcmp(s, cur->gpu[i]->s[S_serial])) return hand_out(__func__, i, d);
    return E_NOTFOUND;
}
static int bdf(const char *s, u32 *p) { return sscanf(s, "%x:%x:%x.%x", &p[0], &p[1], &p[2], &p[3]) >= 3; }
EXPORT ret_t nvmlDeviceGetHandleByPciBusId_v2(const char *s, nvmlDevice_t *d) {
    SYS();
    u32 a[4] = {0}, b[4] = {0};
    NEED(s && bdf(s, a));
    for (int i = 0; i < cur->ngpu; i++)
        if (bdf(cur->gpu[i]->s[S_pci], b) && !memcmp(a, b, 12)) return hand_out(__func__, i, d);
    return E_NOTFOUND;
}
ALIAS(nvmlDeviceGetHandleByPciBusId, nvmlDeviceGetHandleByPciBusId_v2)

/* ------------------------------------------------------------------------------- identity */
GET_STR(nvmlDeviceGetName, S_name)
EXPORT ret_t nvmlDeviceGetUUID(nvmlDevice_t d, char *out, u32 len) { PARTED(d); return put_str(part ? part->uuid : g->s[S_uuid], out, len); }
GET_STR(nvmlDeviceGetSerial, S_serial)
GET_STR(nvmlDeviceGetVbiosVersion, S_vbios)
GET_STR(nvmlDeviceGetBoardPartNumber, S_part_number)
GET_STR(nvmlDeviceGetInforomImageVersion, S_inforom)
EXPORT ret_t nvmlDeviceGetGspFirmwareVersion(nvmlDevice_t d, char *v) { DEV(d); return put_str(g->s[S_gsp], v, 64); }
EXPORT ret_t nvmlDeviceGetIndex(nvmlDevice_t d, u32 *i) { DEV(d); NEED(i); *i = gi; return OK; }
GET_U32(nvmlDeviceGetMinorNumber, F_minor)
GET_U32(nvmlDeviceGetBrand, F_brand)
GET_U32(nvmlDeviceGetBoardId, F_board_id)
GET_U32(nvmlDeviceGetModuleId, F_module_id)
GET_U32(nvmlDeviceGetMultiGpuBoard, F_multi_gpu_board)
GET_U32(nvmlDeviceGetArchitecture, F_arch)
GET_U32(nvmlDeviceGetNumGpuCores, F_cores)
GET_U32(nvmlDeviceGetMemoryBusWidth, F_bus_width)
GET_U32(nvmlDeviceGetVirtualizationMode, F_virt_mode)
GET_U32(nvmlDeviceGetPersistenceMode, F_persistence)
GET_U32(nvmlDeviceGetDisplayMode, F_display_mode)
GET_U32(nvmlDeviceGetDisplayActive, F_display_active)
GET_U32(nvmlDeviceGetComputeMode, F_compute_mode)
EXPORT ret_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t d, int *maj, int *min) {
    DEV(d);
    NEED(maj && min);
    ret_t r = put_u32(g, F_cc_major, (u32 *)maj);
    return r ? r : put_u32(g, F_cc_minor, (u32 *)min);
}
EXPORT ret_t nvmlDeviceGetBusType(nvmlDevice_t d, u32 *t) { DEV(d); NEED(t); *t = 2; return OK; }

static void fill_pci(const char *s, u32 devid, u32 subid, nvmlPciInfo_t *p) {
    u32 a[4] = {0};
    bdf(s, a);
    memset(p, 0, sizeof *p);
    snprintf(p->busIdLegacy, 16, "%04X:%02X:%02X.%X", a[0] & 0xFFFF, a[1] & 0xFF, a[2] & 0xFF, a[3] & 0xF);
    snprintf(p->busId, 32, "%08X:%02X:%02X.%X", a[0], a[1] & 0xFF, a[2] & 0xFF, a[3] & 0xF);
    p->domain = a[0]; p->bus = a[1]; p->device = a[2];
    p->pciDeviceId = devid; p->pciSubSystemId = subid;
}
EXPORT ret_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t d, nvmlPciInfo_t *p) {
    DEV(d);
    NEED(p);
    if (!*g->s[S_pci]) return E_NOTSUP;
    fill_pci(g->s[S_pci], num(g, F_pci_device_id), num(g, F_pci_subsystem_id), p);
    return OK;
}
EXPORT ret_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t d, nvmlPciInfo_v2_t *p) {
    DEV(d);
    NEED(p);
    nvmlPciInfo_t x;
    fill_pci(g->s[S_pci], num(g, F_pci_device_id), num(g, F_pci_subsystem_id), &x);
    memset(p, 0, sizeof *p);
    memcpy(p, &x, 16 + 5 * sizeof(u32));
    return OK;
}
EXPORT ret_t nvmlDeviceGetPciInfo(nvmlDevice_t d, void *p) { /* v1: ends after pciDeviceId */
    DEV(d);
    NEED(p);
    nvmlPciInfo_t x;
    fill_pci(g->s[S_pci], num(g, F_pci_device_id), num(g, F_pci_subsystem_id), &x);
    memcpy(p, &x, 16 + 4 * sizeof(u32));
    return OK;
}
EXPORT ret_t nvmlDeviceGetPciInfoExt(nvmlDevice_t d, nvmlPciInfoExt_v1_t *p) {
    DEV(d);
    NEED(p);
    if (p->version != 0x1000040) return E_VERSION;
    nvmlPciInfo_t x;
    fill_pci(g->s[S_pci], num(g, F_pci_device_id), num(g, F_pci_subsystem_id), &x);
    p->domain = x.domain; p->bus = x.bus; p->device = x.device;
    p->pciDeviceId = x.pciDeviceId; p->pciSubSystemId = x.pciSubSystemId;
    p->baseClass = 3; p->subClass = 2;
    memcpy(p->busId, x.busId, 32);
    return OK;
}

/* ------------------------------------------------------------- memory, utilization, processes */
/* mem_used excludes mem_reserved, as in v2; v1 counts the reserved part as used. */
EXPORT ret_t nvmlDeviceGetMemoryInfo(nvmlDevice_t d, nvmlMemory_t *m) {
    PARTED(d);
    NEED(m);
    ret_t r = put_val(part ? &part->total : &g->v[F_mem_total], &m->total);
    if (r || (r = put_val(part ? &part->used : &g->v[F_mem_used], &m->used))) return r;
    m->used += part ? 0 : (u64)num(g, F_mem_reserved);
    m->free = m->total > m->used ? m->total - m->used : 0;
    return OK;
}
EXPORT ret_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t d, nvmlMemory_v2_t *m) {
    PARTED(d);
    NEED(m);
    if (m->version != 0x02000028) return E_VERSION;
    ret_t r = put_val(part ? &part->total : &g->v[F_mem_total], &m->total);
    if (r || (r = put_val(part ? &part->used : &g->v[F_mem_used], &m->used))) return r;
    m->reserved = part ? 0 : (u64)num(g, F_mem_reserved);
    m->free = m->total > m->used + m->reserved ? m->total - m->used - m->reserved : 0;
    return OK;
}
EXPORT ret_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t d, nvmlBAR1Memory_t *m) {
    DEV(d);
    NEED(m);
    ret_t r = put_u64(g, F_bar1_total, &m->bar1Total);
    if (r || (r = put_u64(g, F_bar1_used, &m->bar1Used))) return r;
    m->bar1Free = m->bar1Total - m->bar1Used;
    return OK;
}
EXPORT ret_t nvmlDeviceGetUtilizationRates(nvmlDevice_t d, nvmlUtilization_t *u) {
    DEV(d);
    NEED(u);
    ret_t r = put_u32(g, F_util_gpu, &u->gpu);
    return r ? r : put_u32(g, F_util_mem, &u->memory);
}
#define GET_CODEC(fn, field) EXPORT ret_t fn(nvmlDevice_t d, u32 *util, u32 *period) { \
    DEV(d); NEED(util && period); *period = 167000; return put_u32(g, field, util); }
GET_CODEC(nvmlDeviceGetEncoderUtilization, F_util_enc)
GET_CODEC(nvmlDeviceGetDecoderUtilization, F_util_dec)
GET_CODEC(nvmlDeviceGetJpgUtilization, F_util_jpg)
GET_CODEC(nvmlDeviceGetOfaUtilization, F_util_ofa)

static u64 proc_mem(const Proc *p) { /* N/A becomes NVML_VALUE_NOT_AVAILABLE */
    double m;
    return eval(&p->mem, &m) ? ~0ull : (u64)m;
}
/* the list calls: *n is the room; too little room answers INSUFFICIENT_SIZE and the need in *n */
enum { NOW, V1, WIDE };
#ifdef WIDE_PROCESSES
#define V3 WIDE
#else
#define V3 NOW
#endif
static int is_on(const Proc *p, const Part *part) { return !part || (p->gi == part->gi && p->ci == part->ci); }
static ret_t list_procs(const Gpu *g, const Part *part, int kind, u32 *n, void *out, int shape) {
    NEED(n);
    u32 need = 0, room = *n;
    for (int i = 0; i < g->nproc; i++) need += g->proc[i].kind == kind && is_on(&g->proc[i], part);
    *n = need;
    if (!need) return OK;
    if (room < need || !out) return E_SIZE;
    for (int i = 0, k = 0; i < g->nproc; i++) {
        const Proc *p = &g->proc[i];
        if (p->kind != kind || !is_on(p, part)) continue;
        if (shape == V1) ((nvmlProcessInfo_v1_t *)out)[k++] = (nvmlProcessInfo_v1_t){p->pid, proc_mem(p)};
        else if (shape == WIDE) ((nvmlProcessDetail_v1_t *)out)[k++] = (nvmlProcessDetail_v1_t){p->pid, proc_mem(p), p->gi, p->ci, 0};
        else ((nvmlProcessInfo_v2_t *)out)[k++] = (nvmlProcessInfo_v2_t){p->pid, proc_mem(p), p->gi, p->ci};
    }
    return OK;
}
#define PROCS(fn, kind) \
    EXPORT ret_t fn(nvmlDevice_t d, u32 *n, void *out) { PARTED(d); return list_procs(g, part, kind, n, out, V1); } \
    EXPORT ret_t fn##_v2(nvmlDevice_t d, u32 *n, void *out) { PARTED(d); return list_procs(g, part, kind, n, out, NOW); } \
    EXPORT ret_t fn##_v3(nvmlDevice_t d, u32 *n, void *out) { PARTED(d); return list_procs(g, part, kind, n, out, V3); }
PROCS(nvmlDeviceGetComputeRunningProcesses, 0)
PROCS(nvmlDeviceGetGraphicsRunningProcesses, 1)
PROCS(nvmlDeviceGetMPSComputeRunningProcesses, 2)
EXPORT ret_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t d, nvmlProcessDetailList_v1_t *l) {
    DEV(d);
    NEED(l);
    if (l->version != 0x1000018) return E_VERSION;
    u32 need = 0, room = l->numProcArrayEntries;
    for (int i = 0; i < g->nproc; i++) need += l->mode == 3 || (int)l->mode == g->proc[i].kind;
    l->numProcArrayEntries = need;
    if (!need) return OK;
    if (room < need || !l->procArray) return E_SIZE;
    for (int i = 0, k = 0; i < g->nproc; i++) {
        const Proc *p = &g->proc[i];
        if (l->mode == 3 || (int)l->mode == p->kind)
            l->procArray[k++] = (nvmlProcessDetail_v1_t){p->pid, proc_mem(p), p->gi, p->ci, 0};
    }
    return OK;
}
static u32 pct(const Val *v) { double d = 0; return eval(v, &d) ? 0 : (u32)llround(d); }
/* one sample per process that has sm=, stamped now; NOT_FOUND when there is none, as the driver does */
EXPORT ret_t nvmlDeviceGetProcessUtilization(nvmlDevice_t d, nvmlProcessUtilizationSample_t *out, u32 *n, u64 since) {
    DEV(d);
    NEED(n);
    double x;
    u64 ts = (u64)(now() * 1e6);
    u32 need = 0, room = *n;
    for (int i = 0; i < g->nproc; i++) need += !eval(&g->proc[i].sm, &x);
    *n = need;
    if (!need || since >= ts) return E_NOTFOUND;
    if (!out || room < need) return E_SIZE;
    for (int i = 0, k = 0; i < g->nproc; i++) {
        const Proc *p = &g->proc[i];
        if (eval(&p->sm, &x)) continue;
        out[k++] = (nvmlProcessUtilizationSample_t){p->pid, ts, pct(&p->sm), pct(&p->mu), pct(&p->enc), pct(&p->dec)};
    }
    return OK;
}
EXPORT ret_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t d, nvmlProcessesUtilizationInfo_v1_t *l) {
    DEV(d);
    NEED(l);
    if (l->version != 0x01000018) return E_VERSION;
    double x;
    u64 ts = (u64)(now() * 1e6);
    u32 need = 0, room = l->processSamplesCount;
    for (int i = 0; i < g->nproc; i++) need += !eval(&g->proc[i].sm, &x);
    l->processSamplesCount = need;
    if (!need) return E_NOTFOUND;
    if (!l->procUtilArray || room < need) return E_SIZE;
    for (int i = 0, k = 0; i < g->nproc; i++) {
        const Proc *p = &g->proc[i];
        if (eval(&p->sm, &x)) continue;
        l->procUtilArray[k++] = (nvmlProcessUtilizationInfo_v1_t){ts, p->pid, pct(&p->sm), pct(&p->mu), pct(&p->enc), pct(&p->dec), 0, 0};
    }
    return OK;
}

/* ------------------------------------------------------- temperature, power, clocks, fan, pstate */
EXPORT ret_t nvmlDeviceGetTemperature(nvmlDevice_t d, u32 sensor, u32 *t) { DEV(d); return sensor ? E_ARG : put_u32(g, F_temp, t); }
EXPORT ret_t nvmlDeviceGetTemperatureV(nvmlDevice_t d, nvmlTemperature_v1_t *t) {
    DEV(d);
    NEED(t);
    if (t->version != 0x100000C) return E_VERSION;
    return t->sensorType ? E_ARG : put_u32(g, F_temp, (u32 *)&t->temperature);
}
EXPORT ret_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t d, u32 kind, u32 *t) {
    DEV(d);
    static const int F[] = {F_temp_shutdown, F_temp_slowdown, F_temp_mem_max, F_temp_gpu_max};
    return kind > 3 ? E_NOTSUP : put_u32(g, F[kind], t);
}
EXPORT ret_t nvmlDeviceGetMarginTemperature(nvmlDevice_t d, nvmlMarginTemperature_v1_t *m) {
    DEV(d);
    NEED(m);
    if (m->version != 0x1000008) return E_VERSION;
    return put_u32(g, F_temp_margin, (u32 *)&m->marginTemperature);
}
GET_U32(nvmlDeviceGetPowerUsage, F_power)
GET_U32(nvmlDeviceGetPowerManagementLimit, F_power_limit)
GET_U32(nvmlDeviceGetEnforcedPowerLimit, F_power_enforced)
GET_U32(nvmlDeviceGetPowerManagementDefaultLimit, F_power_default)
GET_U32(nvmlDeviceGetPowerSource, F_power_source)
GET_U64(nvmlDeviceGetTotalEnergyConsumption, F_energy)
EXPORT ret_t nvmlDeviceGetPowerManagementMode(nvmlDevice_t d, u32 *m) { DEV(d); NEED(m); u32 x; ret_t r = put_u32(g, F_power_limit, &x); *m = 1; return r; }
EXPORT ret_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t d, u32 *lo, u32 *hi) {
    DEV(d);
    ret_t r = put_u32(g, F_power_min, lo);
    return r ? r : put_u32(g, F_power_max, hi);
}
EXPORT ret_t nvmlDeviceGetClockInfo(nvmlDevice_t d, u32 t, u32 *mhz) { DEV(d); return t > 3 ? E_ARG : put_u32(g, F_clk_gr + t, mhz); }
EXPORT ret_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t d, u32 t, u32 *mhz) { DEV(d); return t > 3 ? E_ARG : put_u32(g, F_max_gr + t, mhz); }
EXPORT ret_t nvmlDeviceGetMaxCustomerBoostClock(nvmlDevice_t d, u32 t, u32 *mhz) { DEV(d); return t > 3 ? E_ARG : put_u32(g, F_max_gr + t, mhz); }
EXPORT ret_t nvmlDeviceGetApplicationsClock(nvmlDevice_t d, u32 t, u32 *mhz) { DEV(d); return t > 3 ? E_ARG : put_u32(g, t == 2 ? F_app_mem : F_app_gr, mhz); }
ALIAS(nvmlDeviceGetDefaultApplicationsClock, nvmlDeviceGetApplicationsClock)
EXPORT ret_t nvmlDeviceGetClock(nvmlDevice_t d, u32 t, u32 id, u32 *mhz) {
    DEV(d);
    if (t > 3 || id > 3) return E_ARG;
    return put_u32(g, id == 0 ? F_clk_gr + (int)t : id == 3 ? F_max_gr + (int)t : t == 2 ? F_app_mem : F_app_gr, mhz);
}
GET_U32(nvmlDeviceGetFanSpeed, F_fan)
EXPORT ret_t nvmlDeviceGetFanSpeed_v2(nvmlDevice_t d, u32 fan, u32 *s) { DEV(d); return fan >= num(g, F_fan_count) ? E_ARG : put_u32(g, F_fan, s); }
EXPORT ret_t nvmlDeviceGetTargetFanSpeed(nvmlDevice_t d, u32 fan, u32 *s) { DEV(d); return fan >= num(g, F_fan_count) ? E_ARG : put_u32(g, F_fan, s); }
EXPORT ret_t nvmlDeviceGetFanSpeedRPM(nvmlDevice_t d, nvmlFanSpeedInfo_t *f) { DEV(d); NEED(f); return f->version != 0x100000C ? E_VERSION : put_u32(g, F_fan_rpm, &f->speed); }
GET_U32(nvmlDeviceGetNumFans, F_fan_count)
GET_U32(nvmlDeviceGetPerformanceState, F_pstate)
ALIAS(nvmlDeviceGetPowerState, nvmlDeviceGetPerformanceState)
GET_U64(nvmlDeviceGetCurrentClocksEventReasons, F_throttle)
GET_U64(nvmlDeviceGetCurrentClocksThrottleReasons, F_throttle)
GET_U64(nvmlDeviceGetSupportedClocksEventReasons, F_throttle_supported)
GET_U64(nvmlDeviceGetSupportedClocksThrottleReasons, F_throttle_supported)
EXPORT ret_t nvmlDeviceGetViolationStatus(nvmlDevice_t d, u32 policy, nvmlViolationTime_t *t) {
    DEV(d);
    NEED(t);
    int f = policy <= 5 ? F_viol_power + (int)policy : policy == 10 ? F_viol_app : policy == 11 ? F_viol_base : -1;
    if (f < 0) return E_ARG;
    t->referenceTime = (u64)(now() * 1e6);
    return put_u64(g, f, &t->violationTime);
}

/* ----------------------------------------------------------------------- ECC, retired, remapped */
EXPORT ret_t nvmlDeviceGetEccMode(nvmlDevice_t d, u32 *now_, u32 *next) {
    DEV(d);
    ret_t r = put_u32(g, F_ecc_mode, now_);
    return r ? r : put_u32(g, F_ecc_pending, next);
}
GET_U32(nvmlDeviceGetDefaultEccMode, F_ecc_mode)
static ret_t ecc_ready(const Gpu *g) { u32 m; ret_t r = put_u32(g, F_ecc_mode, &m); return r ? r : m ? OK : E_NOTSUP; }
static int ecc_field(u32 type, u32 counter) { return F_ecc_vol_corr_dram + (counter ? 4 : 0) + (type ? 2 : 0); }
EXPORT ret_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t d, u32 type, u32 counter, u64 *n) {
    DEV(d);
    NEED(n);
    ret_t r = ecc_ready(g);
    if (r) return r;
    u64 a, b = 0;
    int f = ecc_field(type, counter);
    if ((r = put_u64(g, f, &a))) return r;
    put_u64(g, f + 1, &b);
    *n = a + b;
    return OK;
}
EXPORT ret_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t d, u32 type, u32 counter, u32 where, u64 *n) {
    DEV(d);
    NEED(n);
    ret_t r = ecc_ready(g);
    if (r) return r;
    int f = ecc_field(type, counter);
    return where == 2 ? put_u64(g, f, n) : where == 7 ? put_u64(g, f + 1, n) : where > 7 ? E_ARG : E_NOTSUP;
}
EXPORT ret_t nvmlDeviceGetDetailedEccErrors(nvmlDevice_t d, u32 type, u32 counter, nvmlEccErrorCounts_t *c) {
    DEV(d);
    NEED(c);
    ret_t r = ecc_ready(g);
    if (r) return r;
    memset(c, 0, sizeof *c);
    return put_u64(g, ecc_field(type, counter), &c->deviceMemory);
}
EXPORT ret_t nvmlDeviceGetSramEccErrorStatus(nvmlDevice_t d, nvmlEccSramErrorStatus_v1_t *s) {
    DEV(d);
    NEED(s);
    if (s->version != 0x1000068) return E_VERSION;
    ret_t r = put_u32(g, F_sram_threshold, &s->bThresholdExceeded);
    if (r) return r;
    s->aggregateUncParity = 0; s->aggregateUncSecDed = num(g, F_ecc_agg_unc_sram); s->aggregateCor = num(g, F_ecc_agg_corr_sram);
    s->volatileUncParity = 0; s->volatileUncSecDed = num(g, F_ecc_vol_unc_sram); s->volatileCor = num(g, F_ecc_vol_corr_sram);
    s->aggregateUncBucketL2 = s->aggregateUncSecDed;
    s->aggregateUncBucketSm = s->aggregateUncBucketPcie = s->aggregateUncBucketMcu = s->aggregateUncBucketOther = 0;
    return OK;
}
static ret_t retired(const Gpu *g, u32 cause, u32 *n, u64 *addr, u64 *stamp) {
    NEED(n && cause < 2);
    u32 have, room = *n;
    ret_t r = put_u32(g, cause ? F_retired_dbe : F_retired_sbe, &have);
    if (r) return r;
    *n = have;
    if (room < have) return E_SIZE;
    for (u32 i = 0; i < have && addr; i++) { addr[i] = 0x1000ull * (i + 1); if (stamp) stamp[i] = (u64)(cur->epoch * 1e6); }
    return OK;
}
EXPORT ret_t nvmlDeviceGetRetiredPages(nvmlDevice_t d, u32 cause, u32 *n, u64 *addr) { DEV(d); return retired(g, cause, n, addr, NULL); }
EXPORT ret_t nvmlDeviceGetRetiredPages_v2(nvmlDevice_t d, u32 cause, u32 *n, u64 *addr, u64 *ts) { DEV(d); return retired(g, cause, n, addr, ts); }
GET_U32(nvmlDeviceGetRetiredPagesPendingStatus, F_retired_pending)
EXPORT ret_t nvmlDeviceGetRemappedRows(nvmlDevice_t d, u32 *corr, u32 *unc, u32 *pending, u32 *failed) {
    DEV(d);
    ret_t r = put_u32(g, F_remap_corr, corr);
    if (r || (r = put_u32(g, F_remap_unc, unc)) || (r = put_u32(g, F_remap_pending, pending))) return r;
    return put_u32(g, F_remap_failure, failed);
}
EXPORT ret_t nvmlDeviceGetRowRemapperHistogram(nvmlDevice_t d, nvmlRowRemapperHistogramValues_t *h) {
    DEV(d);
    NEED(h);
    u32 *out = &h->max;
    for (int i = 0; i < 5; i++) { ret_t r = put_u32(g, F_remap_max + i, out + i); if (r) return r; }
    return OK;
}

/* ------------------------------------------------------------------------------ PCIe */
GET_U32(nvmlDeviceGetCurrPcieLinkGeneration, F_pcie_gen)
GET_U32(nvmlDeviceGetCurrPcieLinkWidth, F_pcie_width)
GET_U32(nvmlDeviceGetMaxPcieLinkGeneration, F_pcie_gen_max)
GET_U32(nvmlDeviceGetMaxPcieLinkWidth, F_pcie_width_max)
GET_U32(nvmlDeviceGetGpuMaxPcieLinkGeneration, F_pcie_gen_gpu_max)
GET_U32(nvmlDeviceGetPcieReplayCounter, F_pcie_replay)
EXPORT ret_t nvmlDeviceGetPcieThroughput(nvmlDevice_t d, u32 which, u32 *kbs) { DEV(d); return which > 1 ? E_ARG : put_u32(g, F_pcie_tx + which, kbs); }
static const u32 LANE_MBPS[] = {0, 2500, 5000, 8000, 16000, 32000, 64000};
EXPORT ret_t nvmlDeviceGetPcieSpeed(nvmlDevice_t d, u32 *s) { DEV(d); NEED(s); u32 x; ret_t r = put_u32(g, F_pcie_gen, &x); if (!r) *s = LANE_MBPS[x > 6 ? 6 : x]; return r; }
GET_U32(nvmlDeviceGetPcieLinkMaxSpeed, F_pcie_gen_max) /* the enum counts generations */

/* ---------------------------------------------------------------------------- topology, affinity */
EXPORT ret_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t d, nvmlDevice_t d2, u32 *level) {
    DEV(d);
    NEED(level && d2 >= handles && d2 < handles + MAXGPU);
    if (d2->index >= cur->ngpu) return E_ARG;
    *level = cur->topo[gi][d2->index];
    return OK;
}
EXPORT ret_t nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t d, u32 level, u32 *n, nvmlDevice_t *out) {
    DEV(d);
    NEED(n);
    u32 k = 0, room = *n;
    for (int j = 0; j < cur->ngpu; j++)
        if (j != gi && cur->topo[gi][j] == (int)level) { if (out && k < room) out[k] = &handles[j]; k++; }
    *n = k;
    return OK;
}
EXPORT ret_t nvmlDeviceGetP2PStatus(nvmlDevice_t d, nvmlDevice_t d2, u32 cap, u32 *status) {
    DEV(d);
    NEED(status && cap < 5 && d2 >= handles && d2 < handles + MAXGPU);
    *status = cur->p2p[gi][d2->index][cap];
    return OK;
}
EXPORT ret_t nvmlDeviceOnSameBoard(nvmlDevice_t d, nvmlDevice_t d2, int *same) { DEV(d); NEED(same); *same = d == d2; return OK; }
static ret_t affinity(const Gpu *g, u32 words, unsigned long *set) { /* cpus "0-47,96-143" */
    if (!*g->s[S_cpus]) return E_NOTSUP;
    NEED(set);
    memset(set, 0, words * sizeof *set);
    for (const char *p = g->s[S_cpus]; *p;) {
        int a, b, n = 0;
        if (sscanf(p, "%d-%d%n", &a, &b, &n) < 2) { if (sscanf(p, "%d%n", &a, &n) < 1) break; b = a; }
        for (; a <= b; a++) if ((u32)a / 64 < words) set[a / 64] |= 1ul << (a % 64);
        p += n;
        p += *p == ',';
    }
    return OK;
}
EXPORT ret_t nvmlDeviceGetCpuAffinity(nvmlDevice_t d, u32 n, unsigned long *s) { DEV(d); return affinity(g, n, s); }
EXPORT ret_t nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t d, u32 n, unsigned long *s, u32 scope) { DEV(d); (void)scope; return affinity(g, n, s); }
EXPORT ret_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t d, u32 n, unsigned long *s, u32 scope) {
    DEV(d);
    (void)scope;
    NEED(s && n);
    u32 node;
    ret_t r = put_u32(g, F_numa_node, &node);
    if (r) return r;
    memset(s, 0, n * sizeof *s);
    if (node / 64 < n) s[node / 64] = 1ul << (node % 64);
    return OK;
}
GET_U32(nvmlDeviceGetNumaNodeId, F_numa_node)

/* ------------------------------------------------------------------------------ NVLink, fabric */
static ret_t link_ok(const Gpu *g, u32 link) {
    u32 n;
    ret_t r = put_u32(g, F_nvlinks, &n);
    return r ? r : link < n && link < MAXLINK ? OK : E_ARG;
}
static int link_up(const Gpu *g, u32 l) { return strlen(g->link_state) <= l || g->link_state[l] == '1'; }
static int links_up(const Gpu *g) { int n = 0; for (u32 l = 0; l < num(g, F_nvlinks) && l < MAXLINK; l++) n += link_up(g, l); return n; }
#define LINK(d, l) DEV(d); do { ret_t r_ = link_ok(g, l); if (r_) return r_; } while (0)
EXPORT ret_t nvmlDeviceGetNvLinkState(nvmlDevice_t d, u32 l, u32 *s) { LINK(d, l); NEED(s); *s = link_up(g, l); return OK; }
EXPORT ret_t nvmlDeviceGetNvLinkVersion(nvmlDevice_t d, u32 l, u32 *v) { LINK(d, l); return put_u32(g, F_nvlink_version, v); }
EXPORT ret_t nvmlDeviceGetNvLinkCapability(nvmlDevice_t d, u32 l, u32 cap, u32 *v) { LINK(d, l); NEED(v && cap < 6); *v = cap != 4 && link_up(g, l); return OK; }
EXPORT ret_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t d, u32 l, nvmlPciInfo_t *p) {
    LINK(d, l);
    NEED(p);
    if (!link_up(g, l) || !*g->remote_pci[l]) return E_NOTSUP;
    fill_pci(g->remote_pci[l], 0, 0, p);
    return OK;
}
ALIAS(nvmlDeviceGetNvLinkRemotePciInfo, nvmlDeviceGetNvLinkRemotePciInfo_v2)
EXPORT ret_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t d, u32 l, u32 *t) { LINK(d, l); NEED(t); *t = link_up(g, l) ? g->remote_type[l] : 0xFF; return OK; }
EXPORT ret_t nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t d, u32 l, u32 kind, u64 *n) {
    LINK(d, l);
    NEED(n && kind < 5);
    double x;
    ret_t r = eval(&g->link_err[l][kind], &x);
    if (!r) *n = (u64)x;
    return r;
}
EXPORT ret_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t d, nvmlGpuFabricInfo_t *f) {
    DEV(d);
    NEED(f);
    memset(f, 0, sizeof *f);
    ret_t r = put_u32(g, F_fabric_state, &f->state);
    f->status = num(g, F_fabric_status);
    f->cliqueId = num(g, F_fabric_clique);
    return r;
}
EXPORT ret_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t d, nvmlGpuFabricInfo_v3_t *f) {
    DEV(d);
    NEED(f);
    if (f->version != 0x02000024 && f->version != 0x03000028) return E_VERSION;
    memset(f->clusterUuid, 0, 16);
    ret_t r = put_u32(g, F_fabric_state, &f->state);
    f->status = num(g, F_fabric_status);
    f->cliqueId = num(g, F_fabric_clique);
    f->healthMask = num(g, F_fabric_health);
    if (f->version == 0x03000028) f->healthSummary = f->healthMask ? 2 : 1;
    return r;
}

/* --------------------------------------------------------------------------------------- MIG */
EXPORT ret_t nvmlDeviceGetMigMode(nvmlDevice_t d, u32 *now_, u32 *next) {
    DEV(d);
    ret_t r = put_u32(g, F_mig_mode, now_);
    return r ? r : put_u32(g, F_mig_pending, next);
}
EXPORT ret_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t d, u32 *is) { PARTED(d); NEED(is); *is = part != NULL; return OK; }
EXPORT ret_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t d, u32 *n) { DEV(d); NEED(n); u32 m = 0; *n = put_u32(g, F_mig_mode, &m) ? 0 : 7; return OK; }
EXPORT ret_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t d, u32 i, nvmlDevice_t *out) {
    DEV(d);
    NEED(out);
    if (!num(g, F_mig_mode)) return E_NOTSUP;
    if (i >= (u32)g->npart) return E_NOTFOUND;
    *out = &parts[gi * MAXPART + (int)i];
    return OK;
}
EXPORT ret_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t d, u32 *id) { PARTED(d); NEED(id); if (!part) return E_NOTSUP; *id = part->gi; return OK; }
EXPORT ret_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t d, u32 *id) { PARTED(d); NEED(id); if (!part) return E_NOTSUP; *id = part->ci; return OK; }

/* ------------------------------------------------------------------------- samples, GPM */
EXPORT ret_t nvmlDeviceGetSamples(nvmlDevice_t d, u32 kind, u64 since, u32 *vtype, u32 *n, nvmlSample_t *out) {
    DEV(d);
    NEED(vtype && n);
    static const int F[] = {F_power, F_util_gpu, F_util_mem, F_util_enc, F_util_dec, F_clk_sm, F_clk_mem, F_power, F_util_jpg, F_util_ofa};
    if (kind > 9) return E_ARG;
    double step = 1.0 / 6, t = now(), from = since * 1e-6, x;
    ret_t r = eval(&g->v[F[kind]], &x);
    if (r) return r;
    if (from < t - 119 * step) from = t - 119 * step; /* the driver keeps about 120 samples */
    u32 k = 0, room = *n;
    *vtype = 1;
    for (double s = (floor(from / step) + 1) * step; s <= t; s += step, k++)
        if (out && k < room) {
            eval_at(cur, &g->v[F[kind]], s, &x);
            out[k].timeStamp = (u64)(s * 1e6);
            out[k].sampleValue.ullVal = (u64)llround(x);
        }
    *n = out && k > room ? room : k;
    return k ? OK : E_NOTFOUND;
}
typedef struct { double t; int gpu; } GpmSample;
EXPORT ret_t nvmlGpmQueryDeviceSupport(nvmlDevice_t d, nvmlGpmSupport_t *s) { DEV(d); NEED(s); s->isSupportedDevice = num(g, F_gpm_supported) != 0; return OK; }
EXPORT ret_t nvmlGpmSampleAlloc(GpmSample **s) { SYS(); NEED(s); *s = calloc(1, sizeof **s); return OK; }
EXPORT ret_t nvmlGpmSampleFree(GpmSample *s) { SYS(); NEED(s); free(s); return OK; }
EXPORT ret_t nvmlGpmSampleGet(nvmlDevice_t d, GpmSample *s) { DEV(d); NEED(s); if (!num(g, F_gpm_supported)) return E_NOTSUP; *s = (GpmSample){now(), gi}; return OK; }
EXPORT ret_t nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *m) {
    SYS();
    NEED(m && m->sample1 && m->sample2);
    if (m->version != 1) return E_VERSION;
    GpmSample *b = m->sample2;
    NEED(b->gpu < cur->ngpu);
    Gpu *g = cur->gpu[b->gpu];
    for (u32 i = 0; i < m->numMetrics; i++) {
        m->metrics[i].nvmlReturn = E_NOTSUP;
        for (int k = 0; k < g->ngpm; k++)
            if (g->gpm[k].id == m->metrics[i].metricId) m->metrics[i].nvmlReturn = eval_at(cur, &g->gpm[k].v, b->t, &m->metrics[i].value);
    }
    return OK;
}

/* ---------------------------------------------------------------------------- field values */
static ret_t link_sum(const Gpu *g, int k, u32 link, double *x) {
    double y;
    *x = 0;
    u32 n;
    ret_t r = put_u32(g, F_nvlinks, &n);
    if (r) return r;
    for (u32 l = 0; l < n && l < MAXLINK; l++)
        if (link == ~0u || l == link) { if ((r = eval(&g->link_err[l][k], &y))) return r; *x += y; }
    return OK;
}
/* the value types match what NVML documents: u64 for counters, u32 for the rest */
static ret_t field(const Gpu *g, u32 id, u32 scope, double *x, u32 *vt) {
    *vt = 1;
#define F32(i, f) case i: return eval(&g->v[f], x);
#define F64(i, f) case i: *vt = 3; return eval(&g->v[f], x);
#define ECC(i, c, t) case i: *vt = 3; { double s = 0; ret_t r = ecc_ready(g); if (r || (r = eval(&g->v[ecc_field(t, c)], x))) return r; \
        eval(&g->v[ecc_field(t, c) + 1], &s); *x += s; return OK; }
    switch (id) {
    F32(1, F_ecc_mode) F32(2, F_ecc_pending)
    ECC(3, 0, 0) ECC(4, 0, 1) ECC(5, 1, 0) ECC(6, 1, 1)
    F64(11, F_ecc_vol_corr_dram) F64(12, F_ecc_vol_unc_dram) F64(22, F_ecc_agg_corr_dram) F64(23, F_ecc_agg_unc_dram)
    F64(29, F_retired_sbe) F64(30, F_retired_dbe) F32(31, F_retired_pending)
    F64(74, F_viol_power) F64(75, F_viol_thermal) F64(76, F_viol_sync) F64(77, F_viol_board) F64(78, F_viol_lowutil)
    F64(79, F_viol_reliab) F64(80, F_viol_app) F64(81, F_viol_base)
    F64(269, F_viol_thermal) F64(270, F_viol_hw_thermal) F64(271, F_viol_power_brake)
    F32(82, F_temp_mem) F64(83, F_energy) F64(191, F_energy)
    F32(91, F_nvlinks) F32(90, F_nvlink_speed)
    F32(94, F_pcie_replay) F32(142, F_remap_corr) F32(143, F_remap_unc) F32(144, F_remap_pending) F32(145, F_remap_failure)
    F32(173, F_pcie_corr_errors) F32(180, F_pcie_fatal_errors)
    F32(185, F_power_avg) F32(186, F_power) F32(187, F_power_min) F32(188, F_power_max) F32(189, F_power_default)
    F32(190, F_power_enforced) F32(192, F_power_limit) F32(230, F_recovery_action)
    case 147: *x = 0; { u32 n; ret_t r = put_u32(g, F_nvlinks, &n); if (r) return r; } /* links to a switch */
        for (u32 l = 0; l < num(g, F_nvlinks) && l < MAXLINK; l++) *x += g->remote_type[l] == 2 && link_up(g, l);
        return OK;
    case 138: case 139: case 140: case 141: case 202: case 204: { /* KiB; 202/204 bytes; one link, or all with scope ~0 */
        *vt = 3;
        int up = links_up(g);
        if (scope != ~0u) { ret_t r = link_ok(g, scope); if (r) return r; }
        ret_t r = eval(&g->v[id == 138 || id == 140 || id == 202 ? F_nvlink_tx : F_nvlink_rx], x);
        if (r) return r;
        if (scope != ~0u) *x = up && link_up(g, scope) ? floor(*x / up) : 0;
        if (id > 200) *x *= 1024;
        return OK;
    }
    case 161: *vt = 3; return link_sum(g, 0, scope, x);
    case 162: *vt = 3; return link_sum(g, 1, scope, x);
    case 163: *vt = 3; return link_sum(g, 2, scope, x);
    case 38: *vt = 3; return link_sum(g, 2, ~0u, x);
    case 45: *vt = 3; return link_sum(g, 3, ~0u, x);
    case 52: *vt = 3; return link_sum(g, 0, ~0u, x);
    case 59: *vt = 3; return link_sum(g, 1, ~0u, x);
    case 160: *vt = 3; return link_sum(g, 4, ~0u, x);
    case 164: { ret_t r = link_ok(g, scope); if (r) return r; r = eval(&g->v[F_nvlink_speed], x); if (!link_up(g, scope)) *x = 0; return r; }
    case 165: { ret_t r = link_ok(g, scope); if (r) return r; *x = link_up(g, scope); return OK; }
    case 166: { ret_t r = link_ok(g, scope); return r ? r : eval(&g->v[F_nvlink_version], x); }
    }
    if (id >= 84 && id <= 89) { ret_t r = link_ok(g, id - 84); return r ? r : eval(&g->v[F_nvlink_speed], x); }
    if (id >= 132 && id <= 137) { ret_t r = link_ok(g, id - 126); return r ? r : eval(&g->v[F_nvlink_speed], x); }
    /* per-link error counters: four kinds, links 0-5 then 6-11 */
    static const struct { u32 lo, hi; int k; } E[] = {{32, 96, 2}, {39, 102, 3}, {46, 108, 0}, {53, 114, 1}};
    for (int i = 0; i < 4; i++)
        for (u32 l = 0; l < 12; l++)
            if (id == (l < 6 ? E[i].lo + l : E[i].hi + l - 6)) { *vt = 3; ret_t r = link_ok(g, l); return r ? r : link_sum(g, E[i].k, l, x); }
    return E_NOTSUP;
}
EXPORT ret_t nvmlDeviceGetFieldValues(nvmlDevice_t d, int n, nvmlFieldValue_t *v) {
    DEV(d);
    NEED(v && n > 0);
    for (int i = 0; i < n; i++) {
        double x = 0;
        u32 vt;
        v[i].nvmlReturn = field(g, v[i].fieldId, v[i].scopeId, &x, &vt);
        v[i].valueType = vt;
        v[i].timestamp = (int64_t)(now() * 1e6);
        v[i].latencyUsec = 1;
        v[i].value.ullVal = 0;
        if (!v[i].nvmlReturn) { if (vt == 3) v[i].value.ullVal = (u64)x; else v[i].value.uiVal = (u32)llround(x); }
    }
    return OK;
}

/* -------------------------------------------------------------------------------- events (XID) */
struct EventSet { u64 mask[MAXGPU], from[MAXGPU], done; };
static u64 last_seq(void) { u64 m = 0; for (int i = 0; i < cur->nevent; i++) if (cur->event[i].seq > m) m = cur->event[i].seq; return m; }
EXPORT ret_t nvmlEventSetCreate(nvmlEventSet_t *s) { SYS(); NEED(s); *s = calloc(1, sizeof **s); return OK; }
EXPORT ret_t nvmlEventSetFree(nvmlEventSet_t s) { SYS(); NEED(s); free(s); return OK; }
EXPORT ret_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t d, u64 *t) { DEV(d); NEED(t); *t = 0x19F; return OK; }
EXPORT ret_t nvmlDeviceRegisterEvents(nvmlDevice_t d, u64 types, nvmlEventSet_t s) {
    DEV(d);
    NEED(s);
    s->mask[gi] |= types;
    s->from[gi] = last_seq(); /* what was already in the file happened before the registration */
    return OK;
}
EXPORT ret_t nvmlEventSetWait_v2(nvmlEventSet_t s, nvmlEventData_t *out, u32 timeout_ms) {
    SYS();
    NEED(s && out);
    double end = now() + timeout_ms / 1000.0;
    for (;;) {
        Event *best = NULL;
        for (int i = 0; i < cur->nevent; i++) {
            Event *e = &cur->event[i];
            if (e->gpu < 0 || e->gpu >= MAXGPU || e->seq <= s->done || e->seq <= s->from[e->gpu] || !(e->type & s->mask[e->gpu])) continue;
            if (!best || e->seq < best->seq) best = e;
        }
        if (best) {
            *out = (nvmlEventData_t){&handles[best->gpu], best->type, best->data, 0xFFFFFFFF, 0xFFFFFFFF};
            s->done = best->seq;
            return OK;
        }
        double left = end - now();
        if (left <= 0) return E_TIMEOUT;
        struct timespec ts = {0, (long)((left < 0.2 ? left : 0.2) * 1e9)};
        pthread_mutex_unlock(&lock);
        nanosleep(&ts, NULL);
        pthread_mutex_lock(&lock);
        refresh(0);
    }
}
ALIAS(nvmlEventSetWait, nvmlEventSetWait_v2)

/* ------------------------------------------------------------------------------------ the rest
 * Every other name that nvidia-ml-py 13.615.71 looks up, so that callers get the driver's usual
 * NOT_SUPPORTED rather than "function not found". Names that change the machine answer
 * NO_PERMISSION, and are counted: a monitor must leave those counters at zero. */
static ret_t stub(const char *fn) {
    GUARD;
    ret_t r = enter(fn, 1);
    if (r) return r;
    static const char *CHANGES[] = {"*Set[A-Z]*", "*Reset*", "*Clear*", "*Freeze*", "*Remove*", "*Modify*",
                                    "*Create*", "*Destroy*", "*Activate*", "*Update*", "*Discover*"};
    for (size_t i = 0; i < sizeof CHANGES / sizeof *CHANGES; i++)
        if (!fnmatch(CHANGES[i], fn, 0)) return E_PERM;
    return E_NOTSUP;
}
#define STUB(fn) EXPORT ret_t fn(void) { return stub(__func__); }
STUB(nvmlComputeInstanceDestroy) STUB(nvmlComputeInstanceGetInfo_v2) STUB(nvmlDeviceClearAccountingPids)
STUB(nvmlDeviceClearCpuAffinity) STUB(nvmlDeviceClearEccErrorCounts) STUB(nvmlDeviceClearFieldValues)
STUB(nvmlDeviceCreateGpuInstance) STUB(nvmlDeviceCreateGpuInstanceWithPlacement) STUB(nvmlDeviceDiscoverGpus)
STUB(nvmlDeviceFreezeNvLinkUtilizationCounter) STUB(nvmlDeviceGetAPIRestriction)
STUB(nvmlDeviceGetAccountingBufferSize) STUB(nvmlDeviceGetAccountingMode) STUB(nvmlDeviceGetAccountingPids)
STUB(nvmlDeviceGetAccountingStats) STUB(nvmlDeviceGetAccountingStats_v2) STUB(nvmlDeviceGetActiveVgpus)
STUB(nvmlDeviceGetAdaptiveClockInfoStatus) STUB(nvmlDeviceGetAdaptiveTgpModeInfo_v1)
STUB(nvmlDeviceGetAddressingMode) STUB(nvmlDeviceGetAttributes_v2) STUB(nvmlDeviceGetAutoBoostedClocksEnabled)
STUB(nvmlDeviceGetBBXTimeData_v1) STUB(nvmlDeviceGetBankRemapperStatus_v1) STUB(nvmlDeviceGetBridgeChipInfo)
STUB(nvmlDeviceGetC2cModeInfoV) STUB(nvmlDeviceGetCapabilities) STUB(nvmlDeviceGetClkMonStatus)
STUB(nvmlDeviceGetClockOffsets)
STUB(nvmlDeviceGetConfComputeGpuAttestationReport) STUB(nvmlDeviceGetConfComputeGpuCertificate)
STUB(nvmlDeviceGetConfComputeMemSizeInfo) STUB(nvmlDeviceGetConfComputeProtectedMemoryUsage)
STUB(nvmlDeviceGetCoolerInfo) STUB(nvmlDeviceGetCreatableVgpus) STUB(nvmlDeviceGetCurrentClockFreqs)
STUB(nvmlDeviceGetDeviceHandleFromMigDeviceHandle) STUB(nvmlDeviceGetDramEncryptionMode)
STUB(nvmlDeviceGetDriverModel) STUB(nvmlDeviceGetDriverModel_v2) STUB(nvmlDeviceGetDynamicPstatesInfo)
STUB(nvmlDeviceGetEncoderCapacity) STUB(nvmlDeviceGetEncoderSessions) STUB(nvmlDeviceGetEncoderStats)
STUB(nvmlDeviceGetFBCSessions) STUB(nvmlDeviceGetFBCStats) STUB(nvmlDeviceGetFanControlPolicy_v2)
STUB(nvmlDeviceGetGpcClkMinMaxVfOffset) STUB(nvmlDeviceGetGpcClkVfOffset) STUB(nvmlDeviceGetGpuFabricInfo_v4)
STUB(nvmlDeviceGetGpuInstanceById)
STUB(nvmlDeviceGetGpuInstancePossiblePlacements_v2) STUB(nvmlDeviceGetGpuInstanceProfileInfo)
STUB(nvmlDeviceGetGpuInstanceProfileInfoByIdV) STUB(nvmlDeviceGetGpuInstanceProfileInfoV)
STUB(nvmlDeviceGetGpuInstanceRemainingCapacity) STUB(nvmlDeviceGetGpuInstances)
STUB(nvmlDeviceGetGpuOperationMode) STUB(nvmlDeviceGetGridLicensableFeatures_v4)
STUB(nvmlDeviceGetGspFirmwareMode) STUB(nvmlDeviceGetHandleByUUIDV) STUB(nvmlDeviceGetHostVgpuMode)
STUB(nvmlDeviceGetHostname_v1) STUB(nvmlDeviceGetInforomConfigurationChecksum)
STUB(nvmlDeviceGetInforomVersion) STUB(nvmlDeviceGetIrqNum) STUB(nvmlDeviceGetLastBBXFlushTime)
STUB(nvmlDeviceGetMemClkMinMaxVfOffset) STUB(nvmlDeviceGetMemClkVfOffset) STUB(nvmlDeviceGetMemoryLimits_v1)
STUB(nvmlDeviceGetMinMaxClockOfPState) STUB(nvmlDeviceGetMinMaxFanSpeed) STUB(nvmlDeviceGetNvLinkInfo)
STUB(nvmlDeviceGetNvLinkTelemetrySamples_v1) STUB(nvmlDeviceGetNvLinkUtilizationControl)
STUB(nvmlDeviceGetNvLinkUtilizationCounter) STUB(nvmlDeviceGetNvlinkBwMode)
STUB(nvmlDeviceGetNvlinkSupportedBwModes) STUB(nvmlDeviceGetPdi) STUB(nvmlDeviceGetPerformanceModes)
STUB(nvmlDeviceGetPgpuMetadataString) STUB(nvmlDeviceGetPlatformInfo) STUB(nvmlDeviceGetPowerMizerMode_v1)
STUB(nvmlDeviceGetRemappedRows_v2) STUB(nvmlDeviceGetRepairStatus)
STUB(nvmlDeviceGetSramUniqueUncorrectedEccErrorCounts) STUB(nvmlDeviceGetSupportedGraphicsClocks)
STUB(nvmlDeviceGetSupportedMemoryClocks) STUB(nvmlDeviceGetSupportedPerformanceStates)
STUB(nvmlDeviceGetSupportedVgpus) STUB(nvmlDeviceGetThermalSettings)
STUB(nvmlDeviceGetUnrepairableMemoryFlag_v1) STUB(nvmlDeviceGetVgpuCapabilities)
STUB(nvmlDeviceGetVgpuHeterogeneousMode) STUB(nvmlDeviceGetVgpuInstancesUtilizationInfo)
STUB(nvmlDeviceGetVgpuMetadata) STUB(nvmlDeviceGetVgpuProcessUtilization)
STUB(nvmlDeviceGetVgpuProcessesUtilizationInfo) STUB(nvmlDeviceGetVgpuSchedulerCapabilities)
STUB(nvmlDeviceGetVgpuSchedulerLog) STUB(nvmlDeviceGetVgpuSchedulerLog_v2)
STUB(nvmlDeviceGetVgpuSchedulerState) STUB(nvmlDeviceGetVgpuSchedulerState_v2)
STUB(nvmlDeviceGetVgpuTypeCreatablePlacements) STUB(nvmlDeviceGetVgpuTypeSupportedPlacements)
STUB(nvmlDeviceGetVgpuUtilization) STUB(nvmlDeviceModifyDrainState) STUB(nvmlDevicePerfMetricsGetSamples_v1)
STUB(nvmlDevicePowerSmoothingActivatePresetProfile) STUB(nvmlDevicePowerSmoothingSetState)
STUB(nvmlDevicePowerSmoothingUpdatePresetProfileParam) STUB(nvmlDeviceQueryDrainState)
STUB(nvmlDeviceReadPRMCounters_v1) STUB(nvmlDeviceReadWritePRM_v1) STUB(nvmlDeviceRemoveGpu)
STUB(nvmlDeviceResetApplicationsClocks) STUB(nvmlDeviceResetGpuLockedClocks)
STUB(nvmlDeviceResetMemoryLockedClocks) STUB(nvmlDeviceResetNvLinkErrorCounters)
STUB(nvmlDeviceResetNvLinkUtilizationCounter) STUB(nvmlDeviceSetAPIRestriction)
STUB(nvmlDeviceSetAccountingMode) STUB(nvmlDeviceSetAdaptiveTgpMode_v1) STUB(nvmlDeviceSetApplicationsClocks)
STUB(nvmlDeviceSetAutoBoostedClocksEnabled) STUB(nvmlDeviceSetClockOffsets) STUB(nvmlDeviceSetComputeMode)
STUB(nvmlDeviceSetConfComputeUnprotectedMemSize) STUB(nvmlDeviceSetCpuAffinity)
STUB(nvmlDeviceSetDefaultAutoBoostedClocksEnabled) STUB(nvmlDeviceSetDefaultFanSpeed_v2)
STUB(nvmlDeviceSetDramEncryptionMode) STUB(nvmlDeviceSetDriverModel) STUB(nvmlDeviceSetEccMode)
STUB(nvmlDeviceSetFanControlPolicy) STUB(nvmlDeviceSetFanSpeed_v2) STUB(nvmlDeviceSetGpcClkVfOffset)
STUB(nvmlDeviceSetGpuLockedClocks) STUB(nvmlDeviceSetGpuOperationMode) STUB(nvmlDeviceSetHostname_v1)
STUB(nvmlDeviceSetMemClkVfOffset) STUB(nvmlDeviceSetMemoryLimits_v1) STUB(nvmlDeviceSetMemoryLockedClocks)
STUB(nvmlDeviceSetMigMode) STUB(nvmlDeviceSetNvLinkDeviceLowPowerThreshold)
STUB(nvmlDeviceSetNvLinkUtilizationControl) STUB(nvmlDeviceSetNvlinkBwMode)
STUB(nvmlDeviceSetNvlinkBwModeAsync_v1) STUB(nvmlDeviceSetPersistenceMode)
STUB(nvmlDeviceSetPowerManagementLimit) STUB(nvmlDeviceSetPowerManagementLimit_v2)
STUB(nvmlDeviceSetPowerMizerMode_v1) STUB(nvmlDeviceSetRusdSettings_v1)
STUB(nvmlDeviceSetTemperatureThreshold) STUB(nvmlDeviceSetVgpuCapabilities)
STUB(nvmlDeviceSetVgpuHeterogeneousMode) STUB(nvmlDeviceSetVgpuSchedulerState)
STUB(nvmlDeviceSetVgpuSchedulerState_v2) STUB(nvmlDeviceSetVirtualizationMode) STUB(nvmlDeviceValidateInforom)
STUB(nvmlDeviceVgpuForceGspUnload) STUB(nvmlDeviceWorkloadPowerProfileClearRequestedProfiles)
STUB(nvmlDeviceWorkloadPowerProfileGetCurrentProfiles) STUB(nvmlDeviceWorkloadPowerProfileGetProfilesInfo)
STUB(nvmlDeviceWorkloadPowerProfileSetRequestedProfiles) STUB(nvmlDeviceWorkloadPowerProfileUpdateProfiles_v1)
STUB(nvmlEventSetGetContextCount_v1) STUB(nvmlEventSetGetContextData_v1) STUB(nvmlEventSetGetContextInfo_v1)
STUB(nvmlEventSetGetGpuOperationalEventContextLegacyXid_v1) STUB(nvmlEventSetRegisterGpuOperationalEvents_v1)
STUB(nvmlEventSetWait_v3) STUB(nvmlGetExcludedDeviceInfoByIndex) STUB(nvmlGetVgpuCompatibility)
STUB(nvmlGetVgpuDriverCapabilities) STUB(nvmlGetVgpuVersion) STUB(nvmlGpmMigSampleGet)
STUB(nvmlGpmQueryIfStreamingEnabled) STUB(nvmlGpmSetStreamingEnabled)
STUB(nvmlGpuInstanceCreateComputeInstance) STUB(nvmlGpuInstanceCreateComputeInstanceWithPlacement)
STUB(nvmlGpuInstanceDestroy) STUB(nvmlGpuInstanceGetActiveVgpus) STUB(nvmlGpuInstanceGetComputeInstanceById)
STUB(nvmlGpuInstanceGetComputeInstancePossiblePlacements) STUB(nvmlGpuInstanceGetComputeInstanceProfileInfo)
STUB(nvmlGpuInstanceGetComputeInstanceProfileInfoV) STUB(nvmlGpuInstanceGetComputeInstanceRemainingCapacity)
STUB(nvmlGpuInstanceGetComputeInstances) STUB(nvmlGpuInstanceGetCreatableVgpus) STUB(nvmlGpuInstanceGetInfo)
STUB(nvmlGpuInstanceGetVgpuHeterogeneousMode) STUB(nvmlGpuInstanceGetVgpuSchedulerLog)
STUB(nvmlGpuInstanceGetVgpuSchedulerLog_v2) STUB(nvmlGpuInstanceGetVgpuSchedulerState)
STUB(nvmlGpuInstanceGetVgpuSchedulerState_v2) STUB(nvmlGpuInstanceGetVgpuTypeCreatablePlacements)
STUB(nvmlGpuInstanceSetVgpuHeterogeneousMode) STUB(nvmlGpuInstanceSetVgpuSchedulerState)
STUB(nvmlGpuInstanceSetVgpuSchedulerState_v2) STUB(nvmlSetVgpuVersion) STUB(nvmlSystemEventSetCreate)
STUB(nvmlSystemEventSetFree) STUB(nvmlSystemEventSetWait) STUB(nvmlSystemGetCPER_v1)
STUB(nvmlSystemGetConfComputeCapabilities) STUB(nvmlSystemGetConfComputeGpusReadyState)
STUB(nvmlSystemGetConfComputeKeyRotationThresholdInfo) STUB(nvmlSystemGetConfComputeSettings)
STUB(nvmlSystemGetConfComputeState) STUB(nvmlSystemGetDriverBranch) STUB(nvmlSystemGetHicVersion)
STUB(nvmlSystemGetNvlinkBwMode) STUB(nvmlSystemGetTopologyGpuSet) STUB(nvmlSystemRegisterEvents)
STUB(nvmlSystemSetConfComputeGpusReadyState) STUB(nvmlSystemSetConfComputeKeyRotationThresholdInfo)
STUB(nvmlSystemSetNvlinkBwMode) STUB(nvmlUnitGetDevices) STUB(nvmlUnitGetFanSpeedInfo)
STUB(nvmlUnitGetHandleByIndex) STUB(nvmlUnitGetLedState) STUB(nvmlUnitGetPsuInfo) STUB(nvmlUnitGetTemperature)
STUB(nvmlUnitGetUnitInfo) STUB(nvmlUnitSetLedState) STUB(nvmlVgpuInstanceClearAccountingPids)
STUB(nvmlVgpuInstanceGetAccountingMode) STUB(nvmlVgpuInstanceGetAccountingPids)
STUB(nvmlVgpuInstanceGetAccountingStats) STUB(nvmlVgpuInstanceGetEccMode)
STUB(nvmlVgpuInstanceGetEncoderCapacity) STUB(nvmlVgpuInstanceGetEncoderSessions)
STUB(nvmlVgpuInstanceGetEncoderStats) STUB(nvmlVgpuInstanceGetFBCSessions) STUB(nvmlVgpuInstanceGetFBCStats)
STUB(nvmlVgpuInstanceGetFbUsage) STUB(nvmlVgpuInstanceGetFrameRateLimit)
STUB(nvmlVgpuInstanceGetGpuInstanceId) STUB(nvmlVgpuInstanceGetGpuPciId)
STUB(nvmlVgpuInstanceGetLicenseInfo_v2) STUB(nvmlVgpuInstanceGetLicenseStatus)
STUB(nvmlVgpuInstanceGetMdevUUID) STUB(nvmlVgpuInstanceGetMetadata) STUB(nvmlVgpuInstanceGetPlacementId)
STUB(nvmlVgpuInstanceGetRuntimeStateSize) STUB(nvmlVgpuInstanceGetType) STUB(nvmlVgpuInstanceGetUUID)
STUB(nvmlVgpuInstanceGetVmDriverVersion) STUB(nvmlVgpuInstanceGetVmID)
STUB(nvmlVgpuInstanceSetEncoderCapacity) STUB(nvmlVgpuTypeGetBAR1Info) STUB(nvmlVgpuTypeGetCapabilities)
STUB(nvmlVgpuTypeGetClass) STUB(nvmlVgpuTypeGetDeviceID) STUB(nvmlVgpuTypeGetFbReservation)
STUB(nvmlVgpuTypeGetFrameRateLimit) STUB(nvmlVgpuTypeGetFramebufferSize)
STUB(nvmlVgpuTypeGetGpuInstanceProfileId) STUB(nvmlVgpuTypeGetGspHeapSize) STUB(nvmlVgpuTypeGetLicense)
STUB(nvmlVgpuTypeGetMaxInstances) STUB(nvmlVgpuTypeGetMaxInstancesPerGpuInstance)
STUB(nvmlVgpuTypeGetMaxInstancesPerVm) STUB(nvmlVgpuTypeGetName) STUB(nvmlVgpuTypeGetNumDisplayHeads)
STUB(nvmlVgpuTypeGetResolution)
