"""What an error is about, by its words alone, for messages that are not known.

Each topic is a `Signature` whose pattern is searched, without regard to case, in lines that are
known to report an error (see `case/worded_errors.py`), never in others: `needle` is empty. The
first topic that fits counts, so their order matters: what ran out comes before who ran out of it,
and a library before its network. Their weights are low, because words can mislead.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from mgpu_doctor.signatures.signature import Role, Signature

CAUSE, CONSEQUENCE, ENDING = 0.5, 0.45, 0.4
"""Weights. Resources, devices and arguments fail by themselves; a connection often fails because of
another process; an exit code and a signal only say how a process ended."""

_GPU = (
    r"(?:cuda|\bgpus?\b|gpu\d|\bhip\w*|\bvram\b|\bhbm\b|\bnpu\b|\bmps\b|\bxpu\b|cublas|cudnn|nccl"
    r"|nvidia|accelerator|\bdevice\b|\[trt\])"
)
_MEMORY = (
    r"(?:out[ _-]?of[ _-]?memory|outofmemory|\boom\b|ran out of (?:\w+ ){0,2}memory|alloc_failed"
    r"|(?:not enough|insufficient|no (?:available|free|more)) (?:\w+ ){0,2}memory"
    r"|memory ?allocation|(?<!sys)malloc\w*(?:: | failed)|exceed\w* (?:\w+ ){0,4}memory"
    r"|(?:can(?:not|'t)|could not|unable to|fail(?:ed|ure) to) (?:\w+ ){0,2}(?:re|c)?alloc\w*"
    r"|alloc\w* (?:\w+ ){0,6}fail(?:ed|ure))"
)
_BAD = (
    r"(?:fail(?:ed|ure|s|ing)?|errors?|cannot|can't|could ?n[o']t|unable|refused|reset|closed|lost"
    r"|time[sd]?[ -]?out|timeout|aborted|unreachable|broken|denied|missing|not found|exited|died"
    r"|dead|crash(?:ed)?)"
)
_PEER = (
    r"(?:connect\w*|sockets?|peers?|host(?:s|name)?(?!=)|store|clients?|network|tcp|ssh|daemons?|grpc"
    r"|barrier|rpc)"
)
_COLLECTIVE = r"(?:[nrhx]ccl|collective|all_?reduce|all_?gather|broadcast)"
_NUMBERS = (
    r"(?:loss\w*|grad\w*|cost|norms?|outputs?|logits|weights?|activations?|tensor|values?|summary)"
)
_NOT_FINITE = r"(?:nans?|infs?|infinite|infinity|not finite|non-?finite|diverged)"
_PARALLEL = r"(?:tensor|pipeline|data|context|expert)[- _]?(?:model[- _])?parallel"
_CODE = r"(?:exit\w*|code|status)[ :=]*(?:with )?(?:code |status )?"


@dataclass(frozen=True, slots=True)
class _Topic:
    code: str
    subject: str
    """What the error is about, to follow `is about`."""
    words: str
    example: str
    weight: float = CAUSE
    is_hard: bool = False
    """Whether a message about it is seldom about something else."""


_TOPICS = (
    _Topic(
        "shm-exhausted",
        "shared memory",
        r"(?<!resource: )shared memory|/dev/shm|\bshm\b|</torch_\d|shmutils|shm\.h",
        "LoaderError: could not map shared memory segment 7",
        is_hard=True,
    ),
    _Topic(
        "failed-disk-full",
        "a file system that is full",
        r"no space left|disk (?:is )?full|disk ?quota|quota exceeded|not enough (?:\w+ )?(?:disk"
        r"|space)|storagefull|enospc|ephemeral[- ](?:local )?storage|file too large"
        r"|iostream error",
        "WriterError: shard 7 was not written: disk is full",
        is_hard=True,
    ),
    _Topic(
        "failed-open-files",
        "the limit of open files",
        r"too many open files|\be[mn]file\b|ancdata|file descriptors?",
        "IOException: EMFILE while opening shard 7",
        is_hard=True,
    ),
    _Topic(
        "loss-nan",
        "numbers that are not finite",
        rf"\b{_NUMBERS}\b.{{0,60}}\b{_NOT_FINITE}\b|\b{_NOT_FINITE}\b.{{0,40}}\b{_NUMBERS}\b"
        r"|loss scale.{0,40}minimum|minimum loss scale|invalid (?:loss|values)",
        "EvalError: norms of layer 7 are infinite",
        is_hard=True,
    ),
    _Topic(
        "failed-tf-resource-exhausted",
        "memory that TensorFlow or XLA ran out of",
        r"resource_?exhausted|oom when allocating|bfc.{0,20}ran out of memory"
        r"|(?:internal_?error|stream_?executor).{0,200}out[ _]of[ _]memo",
        "XlaError: RESOURCE_EXHAUSTED: arena of 3 GiB",
        is_hard=True,
    ),
    _Topic(
        "oom-device",
        "GPU memory",
        rf"{_GPU}.{{0,120}}{_MEMORY}|{_MEMORY}.{{0,120}}{_GPU}|\bkv[ _]cache\b|cache blocks"
        r"|(?<!java\.lang\.)(?<!ray\.exceptions\.)\bOutOfMemoryError\b(?!.{0,20}container)"
        r"|cublas_status_(?:alloc_failed|not_initialized)|out_of_resources",
        "EngineError: GPU 3 has insufficient free memory",
        is_hard=True,
    ),
    _Topic(
        "oom-host",
        "host memory",
        rf"{_MEMORY}|\bmemoryerror|bad_alloc|oom[ _-]?(?:kill|reap)\w*|rayoutofmemory"
        r"|memory\b.{0,40}\b(?:limits?|usage|budget|threshold|pressure)\b"
        r"|(?:limit|exceed\w*).{0,60}v?mem(?:ory)?\b|low on (?:resource: )?memory|paging file",
        "PoolError: unable to allocate 3 GiB for the buffer",
        is_hard=True,
    ),
    _Topic(
        "failed-permission",
        "missing permission",
        r"permission ?error|permission denied(?! \((?:publickey|password))|not permitted"
        r"|read-?only file ?system|access (?:is )?denied|\beacces\b",
        "StorageError: access denied: /data/run",
        is_hard=True,
    ),
    _Topic(
        "failed-port-in-use",
        "a network port that is in use",
        r"(?:address|port)\b.{0,60}(?:already|in use|occupied|taken|being used|utilizing)"
        r"|only one usage of each socket|eaddrinuse|failed to (?:bind|listen|add port)"
        r"|no address added",
        "ServerError: port 7077 is occupied",
        is_hard=True,
    ),
    _Topic(
        "nvlink-down",
        "NVLink",
        r"nv(?:link|switch)\b.{0,80}(?:error|fail|down|fatal|inactive)|\bsxid\b",
        "FabricError: NVLink 3 is down",
        is_hard=True,
    ),
    _Topic(
        "gpu-ecc",
        "errors in GPU memory",
        r"\becc\b|double.bit error|uncorrectable|row remap",
        "DeviceError: ECC fault on GPU 3",
        is_hard=True,
    ),
    _Topic(
        "gpu-xid",
        "an Xid error",
        r"\bxid\b",
        "DeviceError: Xid 7 on GPU 3",
        is_hard=True,
    ),
    _Topic(
        "gpu-lost",
        "a GPU that no longer answers",
        r"fall(?:en)? off the bus|gpu.{0,20}\b(?:lost|hang|hung)\b|device.?lost|device handle"
        r"|\bgsp\b|gpu (?:has )?(?:crashed|reset)|rminitadapter",
        "DeviceError: GPU 3 was lost",
        is_hard=True,
    ),
    _Topic(
        "failed-driver-too-old",
        "the GPU driver's version",
        r"driver\b.{0,80}(?:too old|insufficient|mismatch|updat\w+|unsupported|incompatible|newer)"
        r"|(?:mismatch|unsupported|insufficient|requirement).{0,60}\bdriver"
        r"|forward compatibility|nvml/rm",
        "DeviceError: driver 470 is incompatible with this toolkit",
        is_hard=True,
    ),
    _Topic(
        "failed-no-kernel-image",
        "code that was not built for this GPU",
        r"kernel image|\b(?:sm|compute)_\d\d|compute capability|not compiled with"
        r"|invalid device function|nobinary|no_binary|invalid_(?:ptx|image|source)|arch_mismatch"
        r"|unsupported (?:\w+ )?(?:arch\w*|toolchain)|gpu arch",
        "KernelError: compute capability 7.0 is not enough",
        is_hard=True,
    ),
    _Topic(
        "failed-device-assert",
        "a check inside a GPU kernel",
        r"device[-_ ]?side assert|block: \[\d+,\d+,\d+\]|assert_?triggered|device_?assert",
        "KernelError: device_assert in gather",
        is_hard=True,
    ),
    _Topic(
        "failed-tf-cudnn",
        "cuDNN or cuBLAS under TensorFlow",
        r"(?:tensorflow|stream_?executor|\bxla\b|conv_ops|internal_?error|unknown_?error"
        r"|failedprecondition\w*|check failed|ret_check)\b.{0,200}(?:cudnn|cublas|cusolver|\bdnn\b"
        r"|\bblas\b|convol)|dnn library|convolution algorithm|runtime cudnn library",
        "UnknownError: conv_ops.cc:7: cuDNN returned 7",
        is_hard=True,
    ),
    _Topic(
        "failed-illegal-access",
        "a GPU kernel that accessed invalid memory",
        r"illegal (?:memory|address)|misaligned (?:address|access)|(?:unspecified )?launch[_ ]fail"
        r"|illegal_?address|mmu fault|execution_failed|invalid (?:address space|program counter)"
        r"|memory access fault|memory_fault|hardware exception|invalid __\w+__ (?:read|write)",
        "KernelError: misaligned access in scatter",
        is_hard=True,
    ),
    _Topic(
        "failed-visible-devices",
        "the choice of a GPU",
        r"invalid (?:cuda )?device (?:id|ordinal|index|number)|cuda_visible_devices"
        r"|device (?:ordinal|id|index).{0,40}(?:invalid|range)|visible.device"
        r"|no (?:cuda|hip) gpus are available|busy or unavailable|invalid_?device|duplicate gpu",
        "LaunchError: device index 9 out of range",
        is_hard=True,
    ),
    _Topic(
        "gpu-missing",
        "GPUs that are not there",
        r"no (?:\w+[ -]){0,3}(?:gpus?|accelerators?|devices?|driver)\b.{0,40}(?:found|available"
        r"|detected|present|visible)|(?:gpus?|(?<!/)cuda|accelerators?)\b.{0,40}(?:not (?:available"
        r"|found|detected|accessible|usable)|unavailable)|(?:only|but).{0,40}\bgpus?\b.{0,30}"
        r"(?:available|visible|found|detected)|not enough gpus|insufficient nvidia|\bgres\b"
        r"|nvidia-smi.{0,40}(?:fail|not found)|no_?device|cdi devices|device driver .{0,40}gpu",
        "LaunchError: 4 GPUs requested, but only 2 GPUs found",
        is_hard=True,
    ),
    _Topic(
        "failed-horovod-stall",
        "ranks that Horovod waits for",
        r"\bhorovod\b.{0,120}\bstall|missing ranks|submitted to be reduced",
        "HorovodInternalError: horovod op 7 stalled",
        CONSEQUENCE,
    ),
    _Topic(
        "hang-collective-mismatch",
        "ranks that call different collectives",
        rf"mismatch\w*.{{0,40}}(?:{_COLLECTIVE}|operations)|(?:different|inconsistent|disagree\w*)"
        rf".{{0,60}}(?:{_COLLECTIVE}|between ranks)",
        "SyncError: inconsistent collective on rank 3",
    ),
    _Topic(
        "failed-exception",
        "a download or a service on the web",
        r"https?://|httpsconnectionpool|huggingface\.co|\burllib3?\.|\brequests\.exceptions"
        r"|\bwandb\.|status code \d{3}",
        "HubError: 404 for https://example.org/model",
    ),
    _Topic(
        "failed-rendezvous",
        "processes that could not find each other",
        r"rendezvous|dist(?:store|network)error|store.based barrier|tcp_?store|\betcd\b"
        r"|init\w*_process_group"
        r"|initializing (?:torch\.distributed|process group)|master_?(?:addr\w*|port)"
        r"|bootstrap (?:root|network)|clients joined",
        "StartError: rendezvous of 4 nodes did not complete",
        CONSEQUENCE,
    ),
    _Topic(
        "failed-rendezvous",
        "an address that does not answer",
        r"\[errno (?:10[1-4]|11[0-3])\]|connection_?refused|connection refused|\bgaierror\b"
        r"|no route to host|(?:name|service) (?:or service )?not known|temporary failure in name",
        "StartError: connection refused by 10.0.0.3",
        CONSEQUENCE,
        is_hard=True,
    ),
    _Topic(
        "failed-nccl-timeout",
        "a collective that did not complete",
        rf"(?:{_COLLECTIVE}|process ?group).{{0,160}}(?:time[sd]?[ -]?out|timeout|watchdog|stuck"
        rf"|hang|hung)|(?:time[sd]?[ -]?out|timeout|watchdog|stuck).{{0,120}}{_COLLECTIVE}",
        "CommError: RCCL watchdog gave up",
        CONSEQUENCE,
        is_hard=True,
    ),
    _Topic(
        "failed-nccl-init",
        "NCCL",
        r"[nrhx]ccl|infiniband|\bibv_|\bucx\b|\bucc\b",
        "CommError: ncclGroupEnd returned 3",
        CONSEQUENCE,
        is_hard=True,
    ),
    _Topic(
        "failed-gloo",
        "gloo",
        r"\bgloo\b|fullmesh|monitoredbarrier",
        "CommError: gloo pair 3 is in an invalid state",
        CONSEQUENCE,
        is_hard=True,
    ),
    _Topic(
        "failed-peer-to-peer",
        "direct access between GPUs",
        r"peer[- _](?:to[- _]peer|access)|\bp2p\b|cudaipc|ipc (?:mem|handle)",
        "DeviceError: peer_access from 0 to 3 was refused",
    ),
    _Topic(
        "failed-unused-parameters",
        "parameters without gradients",
        r"unused param|not used in producing|did not receive grad|find_unused_parameters"
        r"|parameter is unused",
        "ReducerError: unused parameter 7",
    ),
    _Topic(
        "failed-tf-config",
        "the description of TensorFlow's cluster",
        r"tf_config|cluster_?spec|cluster resolver|task_type|grpc server"
        r"|(?:task|job) .{0,40}not defined in",
        "ClusterError: TF_CONFIG lists worker 3 twice",
    ),
    _Topic(
        "failed-tf-worker-missing",
        "a task of TensorFlow's cluster",
        r"distributed_runtime.{0,200}\bunavailable\b"
        r"|/job:\w+.{0,80}(?:unavailable|is down|heartbeat|unhealthy|incarnation|connect|preempted"
        r"|lost)|createsession|failed to connect to all addresses|unavailable_?error"
        r"|(?:tasks?|workers?) .{0,40}(?:unhealthy|heartbeat)",
        "UnavailableError: worker 3",
        CONSEQUENCE,
    ),
    _Topic(
        "failed-tf-collective",
        "a collective of TensorFlow",
        r"collective ?ops?\b|collective(?:reduce|gather|bcast)|collective_param|per_?replica",
        "InternalError: CollectiveReduce 7 has no group",
        CONSEQUENCE,
    ),
    _Topic(
        "failed-tf-invalid-argument",
        "arguments of a TensorFlow operation",
        r"invalid[_ ]?argument(?:_?error)?: |outside the valid range|merge_call",
        "InvalidArgumentError: merge_call of op 7",
    ),
    _Topic(
        "failed-time-limit",
        "a time limit",
        r"time ?limit|wall ?(?:clock|time)|max\w* ?(?:run|execution) ?time|exceeded.{0,40}\bruntime"
        r"|longer than (?:the )?specified deadline",
        "BatchError: job 7 went over its wall clock",
    ),
    _Topic(
        "failed-preempted",
        "a machine that was taken away",
        r"preempt|spot (?:instance|vm|request)|evict(?:ed|ion)|node shutdown|requeue"
        r"|terminat\w* .{0,20}imminent|imminent .{0,20}terminat|interruption not(?:ice|ification)"
        r"|termination not(?:ice|ification)|(?:instance|vm|node|machine) .{0,40}reclaimed"
        r"|reclaimed .{0,40}(?:instance|vm|node|machine)",
        "CloudError: spot instance 7 is gone",
    ),
    _Topic(
        "failed-dataloader-worker",
        "the data loader",
        r"data ?loader\b.{0,80}(?:exit|kill|died|dead|crash|time[sd]?[ -]?out|gone)"
        r"|pin memory thread",
        "LoaderError: dataloader process 7 is gone",
        CONSEQUENCE,
    ),
    _Topic(
        "failed-checkpoint",
        "a checkpoint",
        r"checkpoint(?!error)(?!.utils)|state[_ ]?dict|safetensors|deserializ|unpickl|zip ?(?:file|"
        r"archive)|badzip|\.ckpt\b|\.pth?\b|sstable|save_path|pytorch file|corrupt"
        r"|unable to lock file"
        r"|(?:load|restor|sav|read|open)\w* .{0,60}(?:weights?|\bmodel\b|\.bin\b|\.h5\b|\.pkl\b)",
        "LoadError: restoring weights of layer 7 failed",
    ),
    _Topic(
        "failed-spawn-pickling",
        "an object that cannot be pickled",
        r"can(?:'t|not|not be) (?:be )?(?:pickled?|serialized?)|picklingerror|cannot serialize"
        r"|can't get local object",
        "SpawnError: the sampler cannot be pickled",
    ),
    _Topic(
        "failed-deepspeed",
        "DeepSpeed",
        r"deepspeed|\bzero[- ._]?(?:stage|offload|[123]|init|optimizer|_allow)|ds_config"
        r"|train_(?:micro_)?batch_size|op_builder",
        "ConfigError: ZeRO-3 and this optimizer exclude each other",
    ),
    _Topic(
        "failed-fsdp",
        "FSDP",
        r"fsdp|fully_?sharded|flat_?param|must flatten",
        "WrapError: FlatParameter 7 is empty",
    ),
    _Topic(
        "failed-device-mismatch",
        "tensors on different devices",
        r"(?:same|different) (?:devices?|gpus?)\b|\bdevices?\b.{0,60}\b(?:cuda|cpu|meta)\b.{0,60}"
        r"\b(?:but|and|not|instead)\b|(?:on|to) (?:the )?(?:cpu|gpu|cuda(?::\d)?)\b.{0,60}\b(?:but"
        r"|expected|instead)\b|expected (?:object of )?device|cpu tensor|must be cuda",
        "OpError: expected device cuda:3",
    ),
    _Topic(
        "failed-world-size",
        "the number of processes",
        r"world[_ ]?size|nproc|number of (?:processes|ranks|gpus|nodes|tasks|slots)"
        r"|num_(?:gpus|processes|nodes|machines)(?!.{0,40}must not be (?:given|passed|provided))"
        rf"|{_PARALLEL}\w*.{{0,40}}(?:size|degree|world)"
        r"|enough slots|\b(?:mp|tp|pp|dp)[_ ]size",
        "LaunchError: world size 3 does not fit the mesh",
    ),
    _Topic(
        "failed-shape-mismatch",
        "shapes or types of tensors",
        r"\bshapes?\b|\b(?:sizes?|dim\w*|length|channels)\b.{0,60}(?:mismatch|match|must|expect\w*"
        r"|equal|same|but got)|mismatch.{0,30}(?:size|dim)|invalid for input of size"
        r"|dimension out of range|expected .{0,60}(?:sizes?|dimensions?|channels)\b"
        r"|scalar type|same dtype|\b[0-6]d (?:tensor|or)",
        "OpError: channels of the input must be 3",
    ),
    _Topic(
        "failed-rendezvous",
        "a connection",
        rf"\b{_PEER}\b.{{0,80}}\b{_BAD}\b|\b{_BAD}\b.{{0,80}}\b{_PEER}\b|no route to host"
        r"|service not known|name resolution|getaddrinfo|can't resolve|deadline[_ ]exceeded"
        r"|broken pipe|reach each other|unable to (?:reach|communicate)|lost communication",
        "HostError: daemon on node 3 is unreachable",
        CONSEQUENCE,
    ),
    _Topic(
        "failed-interrupted",
        "an interrupt",
        rf"\bsigint\b|signal:? ?2\b|{_CODE}130\b",
        "LaunchError: child ended with exit code 130",
        ENDING,
    ),
    _Topic(
        "failed-signal",
        "a crash",
        r"\bline \d{1,5}: {1,4}\d{1,9} (?:aborted|segmentation|bus error|floating|illegal)"
        r"|segmentation fault|segfault|core dump|sig(?:segv|abrt|bus|fpe|ill)\b"
        rf"|signal:? ?(?:4|6|7|8|11)\b|{_CODE}(?:139|13[2456]|-11|-6|-7|-8|-4)\b"
        r"|\bbus error (?:\(|encountered)|^bus error$"
        r"|aborted \(|terminate called|\bsysmalloc\b|stack smashing|double free|illegal instruction"
        r"|access violation|protection fault",
        "LaunchError: child ended with exit code -11",
        ENDING,
        is_hard=True,
    ),
    _Topic(
        "failed-killed",
        "a process that was killed",
        rf"sigkill(?!_handler)|sigterm|signal:? ?(?:9|15)\b|{_CODE}(?:137|143|-9|-15)\b"
        r"|\b(?:process\w*|workers?|ranks?|tasks?|pid|containers?|job|pod|executor|child)\b.{0,80}"
        r"\bkilled\b|\bkilled (?:process|worker|container|by signal)\b|^killed$"
        r"|executor ?lost|died unexpectedly|node fail(?:ed|ure)|cancelled at",
        "LaunchError: child ended with status -9",
        ENDING,
        is_hard=True,
    ),
)


def _signature(topic: _Topic, number: int) -> Signature:
    return Signature(
        id=f"words-{number:02}-{topic.code}",
        code=topic.code,
        role=Role.CAUSE,
        needle="",
        pattern=f"(?i){topic.words}",
        meaning=f"The last error is about {topic.subject}. Its wording is not a known "
        "message, so its words alone were used.",
        fix="Read the error and what was printed before it; `mgpu-doctor explain "
        f"{topic.code}` lists the usual causes and fixes.",
        example=topic.example,
        origin="made: words of many messages of this kind",
        weight=topic.weight,
        needle_tells=False,
    )


TOPICS: tuple[Signature, ...] = tuple(
    _signature(topic, number) for number, topic in enumerate(_TOPICS)
)
CONNECTIONS = frozenset(
    topic.id for topic in TOPICS if re.search(r"a connection\.|does not answer\.", topic.meaning)
)
"""Topics of connections that a process may also lose later."""
HARD = frozenset(
    topic.id for topic, declared in zip(TOPICS, _TOPICS, strict=True) if declared.is_hard
)
"""Topics that also count for an exception whose type does not say what it is about: most exceptions
with a message of its own are mistakes of a script, whatever the message mentions."""
WORDED_CAUSES = frozenset(topic.id for topic in TOPICS if topic.weight == CAUSE)
"""Topics of errors that seldom follow from other ones."""
