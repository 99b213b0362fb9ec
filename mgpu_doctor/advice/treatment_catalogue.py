"""All treatments, by name. They were tried on CPUs; none has been tried on a GPU yet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mgpu_doctor.advice.treatment import DDP, Effect, Situation, Treatment, Value, Way
from mgpu_doctor.formatting import format_share

MOST_WORKERS = 4
"""Workers per rank that are proposed at most. A choice; try others by `--try loader-workers=N`."""
COLLECTING_COSTS = 0.005
"""Share of the time in garbage collections from which treating them is proposed. A choice: less
gain could not be shown by short trials."""
COLLECT_EVERY = 500
MIB = 1 << 20
DEFAULT_CAP, LARGE_CAP = 25, 100
"""MiB. torch's default size of a bucket; one for models whose buckets are many."""
FUSED_OPTIMIZERS = frozenset({"SGD", "Adam", "AdamW", "Adagrad"})


def _workers(job: Situation) -> Value | str:
    loader = job.metadata.loader
    if loader.workers is None:
        return "no data loader was seen"
    if loader.workers:
        return f"its loader has {loader.workers} workers already"
    if loader.dataset_length is None:
        return "its dataset is iterable: each worker would load the same samples"
    return int(min(MOST_WORKERS, max(1.0, job.cores or MOST_WORKERS)))


def _prefetch(job: Situation) -> Value | str:
    loader = job.metadata.loader
    return 2 * (loader.prefetch or 2) if loader.workers else "its loader has no workers"


def _persistent(job: Situation) -> Value | str:
    loader = job.metadata.loader
    if not loader.workers:
        return "its loader has no workers"
    return "its workers are persistent already" if loader.persistent else True


def _no_search(job: Situation) -> Value | str:
    ddp = job.metadata.ddp
    if ddp is None or not ddp.find_unused:
        return "it does not search for unused parameters"
    if ddp.unused_bytes or ddp.graph_varies:
        return "some parameters are unused in some passes"
    return True


def _bucket_view(job: Situation) -> Value | str:
    ddp = job.metadata.ddp
    return "gradients are views of buckets already" if ddp and ddp.bucket_view else True


def _static_graph(job: Situation) -> Value | str:
    ddp = job.metadata.ddp
    if ddp is not None and (ddp.graph_varies or ddp.unused_bytes):
        return "its graph varies, or has unused parameters"
    return "its graph is static already" if ddp and ddp.static_graph else True


def _bucket_size(job: Situation) -> Value | str:
    ddp = job.metadata.ddp
    if ddp is None or not ddp.parameter_bytes or ddp.bucket_cap_bytes is None:
        return "the size of its gradients is unknown"
    if ddp.bucket_cap_bytes > DEFAULT_CAP * MIB and ddp.parameter_bytes > DEFAULT_CAP * MIB:
        return DEFAULT_CAP
    if ddp.parameter_bytes > 2 * DEFAULT_CAP * MIB:
        return LARGE_CAP
    return "its gradients fit into one or two buckets"


def _no_sync(job: Situation) -> Value | str:
    ddp, passes = job.metadata.ddp, job.micro_batches
    if ddp is None or passes is None or passes < 2:
        return "it does not accumulate gradients"
    if not ddp.forwards or ddp.synced is None or ddp.synced * passes < 1.5 * ddp.forwards:
        return "it exchanges gradients once per update already"
    return passes


def _fused(job: Situation) -> Value | str:
    kinds = {optimizer.kind for optimizer in job.metadata.optimizers}
    return True if kinds & FUSED_OPTIMIZERS else "its optimizer has no fused implementation"


def _foreach(job: Situation) -> Value | str:
    if not str(job.metadata.device or "cpu").startswith("cpu"):
        return "torch does this on GPUs already"
    return _fused(job)


def _collecting(value: Value, job: Situation) -> Value | str:
    share = job.garbage_share
    if share is None or share < COLLECTING_COSTS:
        return f"garbage collection takes {format_share(share)} of the time"
    return value


def _autocast(job: Situation) -> Value | str:
    precision = job.metadata.precision or "float32"
    return True if precision == "float32" else f"it computes in {precision} already"


def _threads(job: Situation) -> Value | str:
    if job.cores is None or job.metadata.threads is None:
        return "the number of its cores or threads is unknown"
    fitting = max(1, int(job.cores))
    return f"each rank has {fitting} already" if job.metadata.threads == fitting else fitting


_TREATMENTS = (
    Treatment(
        name="loader-workers",
        summary="Load batches in worker processes of the data loader, and keep these",
        framework="torch",
        strategies=frozenset(),
        way=Way.PATCH,
        effect=Effect.NOTHING,
        lines="DataLoader(..., num_workers={value}, persistent_workers=True)",
        needs="The dataset is map-style and can be used in another process. Random numbers that it "
        "draws differ.",
        propose=_workers,
        fixes=("load-in-background",),
        codes=("input-bound", "straggler-input"),
        least=1,
        most=64,
    ),
    Treatment(
        name="loader-prefetch",
        summary="Prepare more batches in advance",
        framework="torch",
        strategies=frozenset(),
        way=Way.PATCH,
        effect=Effect.NOTHING,
        lines="DataLoader(..., prefetch_factor={value})",
        needs="The data loader has workers. Each holds more batches in memory.",
        propose=_prefetch,
        fixes=("load-in-background",),
        codes=("input-bound", "straggler-input"),
        least=1,
        most=64,
    ),
    Treatment(
        name="loader-persistent",
        summary="Keep the workers of the data loader between epochs",
        framework="torch",
        strategies=frozenset(),
        way=Way.PATCH,
        effect=Effect.NOTHING,
        lines="DataLoader(..., persistent_workers=True)",
        needs="The data loader has workers, and an epoch ends within the trial.",
        propose=_persistent,
    ),
    Treatment(
        name="ddp-no-search",
        summary="Do not search for unused parameters",
        framework="torch",
        strategies=DDP,
        way=Way.PATCH,
        effect=Effect.NOTHING,
        lines="DistributedDataParallel(..., find_unused_parameters=False)",
        needs="Every parameter is used in every pass; otherwise the job fails.",
        propose=_no_search,
        fixes=("no-search",),
        codes=("unused-parameter-scan",),
    ),
    Treatment(
        name="ddp-bucket-view",
        summary="Let gradients be views of the communication buckets instead of copies",
        framework="torch",
        strategies=DDP,
        way=Way.PATCH,
        effect=Effect.NOTHING,
        lines="DistributedDataParallel(..., gradient_as_bucket_view=True)",
        needs="The script does not detach gradients in place.",
        propose=_bucket_view,
    ),
    Treatment(
        name="ddp-static-graph",
        summary="Tell DistributedDataParallel that the graph never changes",
        framework="torch",
        strategies=DDP,
        way=Way.PATCH,
        effect=Effect.NOTHING,
        lines="DistributedDataParallel(..., static_graph=True)",
        needs="The same parameters are used in every pass.",
        propose=_static_graph,
    ),
    Treatment(
        name="ddp-bucket-size",
        summary="Exchange gradients in buckets of another size",
        framework="torch",
        strategies=DDP,
        way=Way.PATCH,
        effect=Effect.ROUNDING,
        lines="DistributedDataParallel(..., bucket_cap_mb={value})",
        needs="DistributedDataParallel.",
        propose=_bucket_size,
        fixes=("smaller-buckets",),
        codes=("overlap-poor",),
        least=1,
        most=10_000,
    ),
    Treatment(
        name="ddp-no-sync",
        summary="Exchange gradients only in the last micro-batch of an update",
        framework="torch",
        strategies=DDP,
        way=Way.PATCH,
        effect=Effect.ROUNDING,
        lines="with model.no_sync(): around forward and backward of all but the last of {value} "
        "micro-batches",
        needs="One such module, and as many micro-batches in every update.",
        propose=_no_sync,
        switches=True,
        fixes=("no-sync",),
        codes=("accumulation-syncs",),
        least=2,
        most=1024,
    ),
    Treatment(
        name="optimizer-fused",
        summary="Update all parameters in one fused operation",
        framework="torch",
        strategies=frozenset(),
        way=Way.PATCH,
        effect=Effect.ROUNDING,
        lines="torch.optim.AdamW(..., fused=True)",
        needs="SGD, Adam, AdamW or Adagrad.",
        propose=_fused,
        excludes=frozenset({"optimizer-foreach"}),
    ),
    Treatment(
        name="optimizer-foreach",
        summary="Update parameters in groups instead of one by one",
        framework="torch",
        strategies=frozenset(),
        way=Way.PATCH,
        effect=Effect.ROUNDING,
        lines="torch.optim.AdamW(..., foreach=True)",
        needs="SGD, Adam, AdamW or Adagrad, on the CPU.",
        propose=_foreach,
        excludes=frozenset({"optimizer-fused"}),
    ),
    Treatment(
        name="drop-gradients",
        summary="Drop gradients after an update instead of filling them with zeros",
        framework="torch",
        strategies=frozenset(),
        way=Way.PATCH,
        effect=Effect.NOTHING,
        lines="optimizer.zero_grad(set_to_none=True)",
        needs="The script calls zero_grad(set_to_none=False), which few do.",
        propose=lambda _: True,
        switches=True,
        waits_to_be_named=True,
    ),
    Treatment(
        name="gc-freeze",
        summary="Exclude the objects that exist after five steps from garbage collection",
        framework=None,
        strategies=frozenset(),
        way=Way.PATCH,
        effect=Effect.NOTHING,
        lines="gc.collect(); gc.freeze()  # once, before the training loop",
        needs="Nothing.",
        propose=lambda job: _collecting(True, job),
        switches=True,
        fixes=("gc-freeze",),
        codes=("gc-pauses",),
    ),
    Treatment(
        name="gc-together",
        summary="Collect only young garbage, every so many updates, on all ranks at once",
        framework="torch",
        strategies=frozenset(),
        way=Way.PATCH,
        effect=Effect.NOTHING,
        lines="gc.disable()  # before the loop; in it: if step % {value} == 0: gc.collect(1)",
        needs="Memory for garbage in reference cycles, which lives longer.",
        propose=lambda job: _collecting(COLLECT_EVERY, job),
        switches=True,
        fixes=("gc-together",),
        codes=("gc-pauses",),
        least=10,
        most=100_000,
    ),
    Treatment(
        name="autocast-bf16",
        summary="Compute the forward pass in bfloat16",
        framework="torch",
        strategies=DDP,
        way=Way.PATCH,
        effect=Effect.CONVERGENCE,
        lines='with torch.autocast("cuda", torch.bfloat16): around forward and loss',
        needs="Hardware that computes in bfloat16.",
        propose=_autocast,
        switches=True,
        fixes=("autocast",),
        codes=("precision-full",),
        waits_to_be_named=True,
    ),
    Treatment(
        name="threads",
        summary="Give each rank as many computing threads as it has cores",
        framework=None,
        strategies=frozenset(),
        way=Way.ENVIRONMENT,
        effect=Effect.ROUNDING,
        lines="OMP_NUM_THREADS={value}",
        needs="The script does not set the number of threads itself.",
        propose=_threads,
        fixes=("fewer-threads",),
        codes=("cpu-oversubscribed", "straggler-host"),
        least=1,
        most=1024,
        variable="OMP_NUM_THREADS",
    ),
)
TREATMENTS: Mapping[str, Treatment] = {treatment.name: treatment for treatment in _TREATMENTS}
"""By name, in the order in which they are listed."""
_BY_FIX = {fix: treatment for treatment in reversed(_TREATMENTS) for fix in treatment.fixes}


def find_by_fix(fix_id: str) -> Treatment | None:
    """The treatment that applies a finding's fix; None: there is none."""
    return _BY_FIX.get(fix_id)


def find_by_code(code: str) -> list[Treatment]:
    """The treatments that apply fixes of a finding."""
    return [treatment for treatment in _TREATMENTS if code in treatment.codes]


def split_by_way(
    values: Mapping[str, Value],
) -> tuple[dict[str, Value], dict[str, str]]:
    """The values that the probe applies, and the environment variables to set."""
    patches = {name: value for name, value in values.items() if TREATMENTS[name].way is Way.PATCH}
    variables = {
        variable: str(values[name])
        for name in values
        if (variable := TREATMENTS[name].variable) is not None
    }
    return patches, variables


def check_values(values: Iterable[tuple[str, object]]) -> dict[str, Value]:
    """Values of a file, checked. Raises ValueError with one sentence."""
    checked: dict[str, Value] = {}
    for name, value in values:
        if name not in TREATMENTS:
            raise ValueError(f"there is no treatment {name!r}: see `mgpu-doctor treat --list`.")
        checked[name] = TREATMENTS[name].check_value(value)
    return checked
