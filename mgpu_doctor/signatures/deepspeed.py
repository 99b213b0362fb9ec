"""What DeepSpeed reports of its settings, its kernels, its ranks and the loss scale."""

from __future__ import annotations

from mgpu_doctor.signatures.signature import Role, Signature

_LAUNCH = "source: launcher/launch.py of DeepSpeed 0.19"
_BUILDER = "source: op_builder/builder.py of DeepSpeed 0.19"

SIGNATURES: tuple[Signature, ...] = (
    Signature(
        id="deepspeed-batch",
        code="failed-deepspeed",
        role=Role.CAUSE,
        needle="train_batch_size is not equal to micro_batch_per_gpu",
        pattern=r"\btrain_batch_size is not equal to micro_batch_per_gpu \* gradient_acc_step \* "
        r"world_size ?(?P<total>\d+) != (?P<micro>\d+) \* (?P<steps>\d+) \* (?P<ranks>[\d.]+)",
        meaning="The batch sizes do not fit: train_batch_size is {total}, but {micro} a GPU x "
        "{steps} accumulation steps x {ranks} ranks is another number.",
        fix="Give two of train_batch_size, train_micro_batch_size_per_gpu and "
        "gradient_accumulation_steps and let DeepSpeed work out the third.",
        example="AssertionError: Check batch related parameters. train_batch_size is not equal to "
        "micro_batch_per_gpu * gradient_acc_step * world_size 32 != 4 * 1 * 4",
        origin="source: runtime/config.py of DeepSpeed 0.19",
        weight=0.95,
        mutual=True,
    ),
    Signature(
        id="deepspeed-batch-missing",
        code="failed-deepspeed",
        role=Role.CAUSE,
        needle="Either train_batch_size or train_micro_batch",
        pattern=r"Either train_batch_size or train_micro_batch_size_per_gpu needs to be provided",
        meaning="The DeepSpeed configuration gives no batch size.",
        fix='Add `"train_micro_batch_size_per_gpu"` to the configuration.',
        example="AssertionError: Either train_batch_size or train_micro_batch_size_per_gpu needs "
        "to be provided",
        origin="source: runtime/config.py of DeepSpeed 0.19",
        weight=0.95,
    ),
    Signature(
        id="deepspeed-loss-scale",
        code="loss-nan",
        role=Role.CAUSE,
        needle="Current loss scale already at minimum",
        pattern=r"Current loss scale already at minimum - cannot decrease scale anymore",
        meaning="Gradients overflowed in step after step until the loss scale could not get "
        "smaller: they are NaN or infinite for good, or too large for fp16.",
        fix='Train in bfloat16 (`"bf16": {"enabled": true}`); lower the learning rate, set '
        '`"gradient_clipping"`; a model made in bfloat16 often overflows in fp16.',
        example="Exception: Current loss scale already at minimum - cannot decrease scale "
        "anymore. Exiting run.",
        origin="source: runtime/fp16/loss_scaler.py of DeepSpeed 0.19",
        weight=0.95,
    ),
    Signature(
        id="deepspeed-rank-killed",
        code="failed-killed",
        role=Role.SYMPTOM,
        needle=" exits with return code = -9",
        pattern=r"exits with return code = -(?P<signal>9)\s*$",
        meaning="A rank was killed with SIGKILL; the launcher then ended the others. Usually the "
        "machine's memory ran out (offloading to the CPU needs much).",
        fix="`dmesg | grep -i 'killed process'`. Use fewer ranks or workers, or no CPU offload.",
        example="[2024-03-06 10:11:12,345] [ERROR] [launch.py:321:sigkill_handler] "
        "['/usr/bin/python3', '-u', 'train.py', '--local_rank=3'] exits with return code = -9",
        origin=_LAUNCH,
        weight=0.7,
        needle_tells=False,
    ),
    Signature(
        id="deepspeed-rank-crashed",
        code="failed-signal",
        role=Role.SYMPTOM,
        needle=" exits with return code = -",
        pattern=r"exits with return code = -(?P<signal>4|6|7|8|11)\s*$",
        meaning="A rank crashed with signal {signal}; the launcher then ended the others.",
        fix="7 is usually a full /dev/shm, 6 an abort with a message above; otherwise run with "
        "PYTHONFAULTHANDLER=1 to get the stack.",
        example="['/usr/bin/python3', '-u', 'train.py', '--local_rank=3'] exits with return code "
        "= -11",
        origin=_LAUNCH,
        weight=0.7,
        needle_tells=False,
    ),
    Signature(
        id="deepspeed-rank-failed",
        code="failed-exception",
        role=Role.SYMPTOM,
        needle=" exits with return code = ",
        pattern=r"\] exits with return code = (?P<exit_code>[1-9]\d{0,2})\s*$",
        meaning="A rank ended with exit code {exit_code}; the launcher then ended the others.",
        fix="Look for the first traceback above; `--enable_each_rank_log FOLDER` keeps one log a "
        "rank.",
        example="['/usr/bin/python3', '-u', 'train.py', '--local_rank=3'] exits with return code "
        "= 1",
        origin=_LAUNCH,
        weight=0.5,
        needle_tells=False,
    ),
    Signature(
        id="deepspeed-no-gpus",
        code="gpu-missing",
        role=Role.CAUSE,
        needle="Unable to proceed, no GPU resources available",
        pattern=r"Unable to proceed, no GPU resources available",
        meaning="The deepspeed launcher found no GPU on this machine.",
        fix="Check `nvidia-smi` and CUDA_VISIBLE_DEVICES.",
        example="RuntimeError: Unable to proceed, no GPU resources available",
        origin="source: launcher/runner.py of DeepSpeed 0.19",
        weight=0.95,
    ),
    Signature(
        id="deepspeed-no-slot",
        code="gpu-missing",
        role=Role.CAUSE,
        needle=" specified on host '",
        pattern=r"No slot '(?P<slot>\d+)' specified on host '(?P<host>[^']{1,128})'",
        meaning="GPU {slot} of {host} was asked for, but the launcher knows of no such GPU there.",
        fix="Let `--include`/`--exclude` fit `slots=` in the host file and the host's GPUs.",
        example="ValueError: No slot '4' specified on host 'localhost'",
        origin="source: launcher/runner.py of DeepSpeed 0.19",
        weight=0.95,
        needle_tells=False,
    ),
    Signature(
        id="deepspeed-no-master",
        code="failed-rendezvous",
        role=Role.CAUSE,
        needle="Unable to detect suitable master address via",
        pattern=r"Unable to detect suitable master address via .hostname -I.",
        meaning="The launcher could not ask the first host for its address over ssh.",
        fix="`deepspeed --master_addr ADDRESS`; `ssh HOST hostname -I` must work without a "
        "question.",
        example="Unable to detect suitable master address via 'hostname -I', please manually "
        "specify one via --master_addr",
        origin="source: launcher/runner.py of DeepSpeed 0.19",
    ),
    Signature(
        id="deepspeed-cuda-mismatch",
        code="failed-deepspeed",
        role=Role.CAUSE,
        needle="DeepSpeed Op Builder: Installed CUDA version",
        pattern=r"DeepSpeed Op Builder: Installed CUDA version (?P<toolkit>[\d.]+) does not match "
        r"the version torch was compiled with (?P<torch>[\d.]+)",
        meaning="DeepSpeed compiles its kernels with CUDA {toolkit}, but torch was made with "
        "{torch}.",
        fix="Point CUDA_HOME to a toolkit {torch}, or install the torch for {toolkit}.",
        example="deepspeed.ops.op_builder.builder.CUDAMismatchException: >- DeepSpeed Op Builder: "
        "Installed CUDA version 12.4 does not match the version torch was compiled with 12.1, "
        "unable to compile cuda/cpp extensions without a matching cuda version.",
        origin=_BUILDER,
        weight=0.95,
    ),
    Signature(
        id="deepspeed-no-toolkit",
        code="failed-deepspeed",
        role=Role.CAUSE,
        needle="CUDA_HOME does not exist, unable to compile",
        pattern=r"MissingCUDAException: CUDA_HOME does not exist, unable to compile CUDA op\(s\)",
        meaning="DeepSpeed must compile a kernel and finds no CUDA toolkit.",
        fix="Install a toolkit (with nvcc) and set CUDA_HOME, or use the optimizers of torch.",
        example="op_builder.builder.MissingCUDAException: CUDA_HOME does not exist, unable to "
        "compile CUDA op(s)",
        origin=_BUILDER,
        weight=0.95,
        needle_tells=False,
    ),
    Signature(
        id="deepspeed-no-ninja",
        code="failed-deepspeed",
        role=Role.CAUSE,
        needle=" op due to ninja not being installed",
        pattern=r"Unable to JIT load the (?P<operation>\w+) op due to ninja not being installed",
        meaning="DeepSpeed must compile {operation} and needs ninja for it.",
        fix="`pip install ninja`, and have it on the PATH of every rank.",
        example="RuntimeError: Unable to JIT load the cpu_adam op due to ninja not being "
        "installed.",
        origin=_BUILDER,
        weight=0.95,
    ),
    Signature(
        id="deepspeed-kernel-unfit",
        code="failed-deepspeed",
        role=Role.CAUSE,
        needle=" op due to it not being compatible due to",
        pattern=r"Unable to JIT load the (?P<operation>\w+) op due to it not being compatible due "
        r"to hardware/software issue\.",
        meaning="The kernel {operation} cannot run on this machine.",
        fix="`ds_report` shows what is missing; choose another optimizer or turn the feature off.",
        example="RuntimeError: Unable to JIT load the async_io op due to it not being compatible "
        "due to hardware/software issue. None",
        origin=_BUILDER,
        weight=0.95,
    ),
    Signature(
        id="deepspeed-other-world-size",
        code="failed-checkpoint",
        role=Role.CAUSE,
        needle="The checkpoint being loaded used a DP world",
        pattern=r"The checkpoint being loaded used a DP world size of (?P<saved>\d+) but the "
        r"current world size is (?P<now>\d+)",
        meaning="The ZeRO checkpoint is of {saved} ranks, the job has {now}.",
        fix="Convert it with `ds_to_universal.py` and load it as universal checkpoint, use "
        "{saved} ranks, or load the weights only (`zero_to_fp32.py`).",
        example="deepspeed.runtime.zero.utils.ZeRORuntimeException: The checkpoint being loaded "
        "used a DP world size of 8 but the current world size is 4. Automatic adjustment of "
        "ZeRO's optimizer state partitioning with a new world size is not currently supported.",
        origin="source: runtime/engine.py of DeepSpeed 0.19",
        weight=0.95,
    ),
    Signature(
        id="deepspeed-tag-differs",
        code="failed-checkpoint",
        role=Role.CAUSE,
        needle="is not consistent across all ranks.",
        pattern=r"AssertionError: \[rank=(?P<rank>\d+)\] The checkpoint tag name '"
        r"(?P<tag>[^']{1,120})' is not consistent across all ranks",
        meaning="Ranks save under different names ('{tag}' on rank {rank}), so the checkpoint "
        "would fall apart.",
        fix="Build the tag from the step only, not from rank, host or time.",
        example="AssertionError: [rank=1] The checkpoint tag name 'step10-rank1' is not "
        "consistent across all ranks. Including rank unique information in checkpoint tag could "
        "cause issues when restoring with different world sizes.",
        origin="source: runtime/engine.py of DeepSpeed 0.19",
        needle_tells=False,
    ),
    Signature(
        id="deepspeed-init-single",
        code="failed-deepspeed",
        role=Role.CAUSE,
        needle="zero.Init resolved a process group of world",
        pattern=r"zero\.Init resolved a process group of world_size=1, but the launcher "
        r"environment reports WORLD_SIZE=(?P<size>\d+)",
        meaning="The model was made before the {size} ranks were joined, so every rank would hold "
        "all of it.",
        fix="Call `deepspeed.init_distributed()` before the model is made.",
        example="RuntimeError: zero.Init resolved a process group of world_size=1, but the "
        "launcher environment reports WORLD_SIZE=8. A single-rank process group was likely "
        "initialized before zero.Init ran",
        origin="source: runtime/zero/partition_parameters.py of DeepSpeed 0.19",
        weight=0.95,
    ),
    Signature(
        id="deepspeed-untested-optimizer",
        code="failed-deepspeed",
        role=Role.CAUSE,
        needle="You are using an untested ZeRO Optimizer.",
        pattern=r"AssertionError: You are using an untested ZeRO Optimizer\.",
        meaning="ZeRO does not know this optimizer and refuses it.",
        fix='`"zero_allow_untested_optimizer": true` in the configuration, or take the optimizer '
        "from DeepSpeed's.",
        example="AssertionError: You are using an untested ZeRO Optimizer. Please add "
        '<"zero_allow_untested_optimizer": true> in the configuration file to use it.',
        origin="source: runtime/engine.py of DeepSpeed 0.19",
        weight=0.95,
    ),
    Signature(
        id="deepspeed-scale-stuck",
        code="loss-nan",
        role=Role.CAUSE,
        needle="Attempted loss scale: ",
        pattern=r"(?:OVERFLOW!|Overflow detected\.) .{0,60}?Attempted loss scale: 1(?:\.0)?, "
        r"reducing to 1(?:\.0)?(?![\d.])",
        meaning="Gradients overflow at step after step, and the loss scale cannot go below 1: no "
        "step is taken any more.",
        fix="Train in bf16, or go back to a checkpoint from before and lower the learning rate.",
        example="[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 1, reducing to "
        "1",
        origin="recalled: deepspeed/runtime/zero/stage_1_and_2.py of DeepSpeed 0.5",
        severity="warning",
        least=3,
        weight=0.85,
    ),
    Signature(
        id="deepspeed-scale-low",
        code="loss-nan",
        role=Role.CAUSE,
        needle="Attempted loss scale: ",
        pattern=r"(?:OVERFLOW!|Overflow detected\.) .{0,60}?Attempted loss scale: "
        r"(?P<scale>1?\d(?:\.0)?), reducing to (?!1(?:\.0)?(?![\d.]))",
        meaning="Gradients overflow again and again although the loss scale is down to {scale}: "
        "they are not finite at any scale, or soon will not be.",
        fix="Train in bf16, or go back to a checkpoint from before and lower the learning rate.",
        example="[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 16, reducing "
        "to 8",
        origin="recalled: deepspeed/runtime/fp16/loss_scaler.py of DeepSpeed 0.9",
        severity="warning",
        least=3,
        weight=0.6,
    ),
    Signature(
        id="deepspeed-no-configuration",
        code="failed-deepspeed",
        role=Role.CAUSE,
        needle="DeepSpeed requires --deepspeed_config",
        pattern=r"DeepSpeed requires --deepspeed_config to specify configuration file",
        meaning="DeepSpeed got no configuration.",
        fix="Pass `--deepspeed_config FILE`, or `config=` to `deepspeed.initialize`.",
        example="AssertionError: DeepSpeed requires --deepspeed_config to specify configuration "
        "file",
        origin="recalled: deepspeed/runtime/engine.py of DeepSpeed 0.14",
    ),
    Signature(
        id="deepspeed-adam-not-built",
        code="failed-deepspeed",
        role=Role.SYMPTOM,
        needle="object has no attribute 'ds_opt_adam'",
        pattern=r"'DeepSpeedCPUAdam' object has no attribute 'ds_opt_adam'",
        meaning="DeepSpeed's CPU optimizer could not be built or loaded.",
        fix="Look for the error above it: usually nvcc and torch are of different CUDA versions. "
        "`ds_report` shows what can be built.",
        example="AttributeError: 'DeepSpeedCPUAdam' object has no attribute 'ds_opt_adam'",
        origin="recalled: deepspeed/ops/adam/cpu_adam.py of DeepSpeed 0.14",
        weight=0.7,
    ),
    Signature(
        id="zero3-parameter-in-flight",
        code="failed-deepspeed",
        role=Role.CAUSE,
        needle="'status': 'INFLIGHT'",
        pattern=r"AssertionError: \{'id': \d{1,9}, 'status': 'INFLIGHT'",
        meaning="ZeRO-3 found a parameter that it had not finished gathering: modules run in "
        "another order than before, or not on all ranks.",
        fix="Let every rank run the same modules in the same order (also in generation and "
        "evaluation), and mark modules whose order changes with "
        "`deepspeed.utils.set_z3_leaf_modules`.",
        example="AssertionError: {'id': 0, 'status': 'INFLIGHT', 'numel': 262144}",
        origin="recalled: deepspeed/runtime/zero/partitioned_param_coordinator.py of DeepSpeed "
        "0.14",
        weight=0.85,
    ),
    Signature(
        id="zero3-parameter-unavailable",
        code="failed-deepspeed",
        role=Role.CAUSE,
        needle="ds_status == ZeroParamStatus.",
        pattern=r"assert param\.ds_status == ZeroParamStatus\.AVAILABLE, param\.ds_summary\(\)",
        meaning="ZeRO-3 used a parameter that it had not gathered: modules run in another order "
        "than before, not on all ranks, or a layer's weights are used outside its forward.",
        fix="Let every rank run the same modules in the same order, and gather weights that are "
        "used elsewhere with `deepspeed.zero.GatheredParameters` or "
        "`deepspeed.zero.register_external_parameter`.",
        example="    assert param.ds_status == ZeroParamStatus.AVAILABLE, param.ds_summary()",
        origin="recalled: deepspeed/runtime/zero/partitioned_param_coordinator.py of DeepSpeed "
        "0.14",
        weight=0.7,
        needle_tells=False,
    ),
    Signature(
        id="zero3-trace-changed",
        code="failed-deepspeed",
        role=Role.CAUSE,
        needle="in the parameter fetch queue to be",
        pattern=r"tracing error at step \d{1,9}: expected the next \d{1,9} parameters in the "
        r"parameter fetch queue to be",
        meaning="Modules run in another order than ZeRO-3 recorded.",
        fix="Let every rank run the same modules in the same order, and mark those whose order "
        "changes with `deepspeed.utils.set_z3_leaf_modules`.",
        example="RuntimeError: tracing error at step 42: expected the next 2 parameters in the "
        "parameter fetch queue to be",
        origin="recalled: deepspeed/runtime/zero/partitioned_param_coordinator.py of DeepSpeed "
        "0.14",
    ),
    Signature(
        id="zero-no-sync",
        code="failed-deepspeed",
        role=Role.CAUSE,
        needle="no_sync context manager is incompatible with",
        pattern=r"no_sync context manager is incompatible with gradient partitioning logic of ZeRO",
        meaning="`no_sync` was used with ZeRO stage 2 or 3, which share out gradients at once.",
        fix="Set `gradient_accumulation_steps` in DeepSpeed's configuration in place of "
        "`no_sync`, or use stage 1.",
        example="AssertionError: no_sync context manager is incompatible with gradient "
        "partitioning logic of ZeRO stage 2",
        origin="recalled: deepspeed/runtime/engine.py of DeepSpeed 0.16",
    ),
    Signature(
        id="deepspeed-config-error",
        code="failed-deepspeed",
        role=Role.CAUSE,
        needle="DeepSpeedConfigError",
        pattern=r"\bDeepSpeedConfigError\b",
        meaning="DeepSpeed rejected its configuration.",
        fix="Read the rest of the message, and compare the JSON with DeepSpeed's documentation.",
        example="deepspeed.runtime.config.DeepSpeedConfigError: Invalid fields",
        origin="source: deepspeed/runtime/config.py of DeepSpeed 0.16",
    ),
    Signature(
        id="deepspeed-config-differs",
        code="failed-deepspeed",
        role=Role.CAUSE,
        needle="Please correct the following DeepSpeed config values",
        pattern=r"Please correct the following DeepSpeed config values that mismatch "
        r"TrainingArguments",
        meaning="DeepSpeed's configuration and the trainer's arguments contradict each other.",
        fix='Write "auto" for these values in the JSON.',
        example="ValueError: Please correct the following DeepSpeed config values that mismatch "
        "TrainingArguments values:",
        origin="recalled: transformers/integrations/deepspeed.py of Transformers 4",
        weight=0.95,
    ),
    Signature(
        id="deepspeed-backend-not-set",
        code="failed-deepspeed",
        role=Role.CAUSE,
        needle="DeepSpeed backend not set, please initialize",
        pattern=r"DeepSpeed backend not set, please initialize",
        meaning="DeepSpeed was used before its process group exists.",
        fix="Call `deepspeed.init_distributed()` first.",
        example="AssertionError: DeepSpeed backend not set, please initialize it using "
        "init_process_group()",
        origin="recalled: deepspeed/comm/comm.py of DeepSpeed 0.10",
    ),
    Signature(
        id="zero-ranks-disagree",
        code="hang-collective-mismatch",
        role=Role.CAUSE,
        needle="disagreement between rank",
        pattern=r"RuntimeError: disagreement between rank(?P<first>\d{1,6}) and rank"
        r"(?P<second>\d{1,6}): ",
        meaning="ZeRO-3 found that rank {first} and rank {second} run other parts of the model, "
        "so their collectives do not fit.",
        fix="Let every rank run the same modules in each step: a batch without images, or an "
        "expert without tokens, still needs a dummy pass.",
        example="RuntimeError: disagreement between rank0 and rank3: rank0: [12, 44], rank3: [12, "
        "45]",
        origin="recalled: deepspeed/runtime/zero/utils.py of DeepSpeed 0.14",
        needle_tells=False,
        mutual=True,
    ),
)
