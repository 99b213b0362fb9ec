"""What Hugging Face Accelerate reports when a launch, a setting or a collective fails."""

from __future__ import annotations

from mgpu_doctor.signatures.signature import Role, Signature

SIGNATURES: tuple[Signature, ...] = (
    Signature(
        id="accelerate-script-failed",
        code="failed-exception",
        role=Role.SYMPTOM,
        needle="CalledProcessError: Command '[",
        pattern=r"CalledProcessError: Command '\[.{1,3000}\]' returned non-zero exit status "
        r"(?P<exit_code>\d{1,9})\.",
        meaning="The launcher's script ended with exit code {exit_code}; its own output, above "
        "this traceback, says why.",
        fix="Read the last traceback before the launcher's.",
        example="subprocess.CalledProcessError: Command '['/usr/bin/python3', 'train.py']' "
        "returned non-zero exit status 3.",
        origin="made: a script that exits with 3 under accelerate launch 1.15",
        weight=0.5,
    ),
    Signature(
        id="accelerate-script-killed",
        code="failed-killed",
        role=Role.SYMPTOM,
        needle="died with <Signals.",
        pattern=r"\bdied with <Signals\.(?P<signal>SIG(?:KILL|TERM)): \d{1,3}>",
        meaning="The launcher's script was ended with {signal}.",
        fix="SIGKILL: look in `dmesg` for the out-of-memory killer. Otherwise a person or the "
        "scheduler ended it.",
        example="subprocess.CalledProcessError: Command '['/usr/bin/python3', 'train.py']' died "
        "with <Signals.SIGKILL: 9>.",
        origin="made: a script that is killed under accelerate launch 1.15",
        weight=0.6,
    ),
    Signature(
        id="accelerate-script-crashed",
        code="failed-signal",
        role=Role.SYMPTOM,
        needle="died with <Signals.",
        pattern=r"\bdied with <Signals\.(?P<signal>SIG(?:SEGV|BUS|ABRT|ILL|FPE)): \d{1,3}>",
        meaning="The launcher's script crashed with {signal}.",
        fix="Run with PYTHONFAULTHANDLER=1 to get its stack.",
        example="subprocess.CalledProcessError: Command '['/usr/bin/python3', 'train.py']' died "
        "with <Signals.SIGSEGV: 11>.",
        origin="made: a script that crashes under accelerate launch 1.15",
        weight=0.6,
    ),
    Signature(
        id="accelerate-shapes",
        code="hang-collective-mismatch",
        role=Role.CAUSE,
        needle="Cannot apply desired operation due to shape",
        pattern=r"DistributedOperationException: Cannot apply desired operation due to shape "
        r"mismatches",
        meaning="Ranks brought tensors of different shape to one collective; the next lines list "
        "the shapes by rank.",
        fix="`accelerator.pad_across_processes` before `gather`, or `gather_for_metrics` for "
        "batches of unequal size.",
        example="accelerate.utils.operations.DistributedOperationException: Cannot apply desired "
        "operation due to shape mismatches. All shapes across devices must be valid.",
        origin="source: utils/operations.py of accelerate 1.15",
        weight=0.95,
    ),
    Signature(
        id="accelerate-split-batches",
        code="failed-shape-mismatch",
        role=Role.CAUSE,
        needle="needs to be a round multiple of the number",
        pattern=r"in `split_batches` mode, the batch size \((?P<batch>\d+)\) needs to be a round "
        r"multiple of the number of processes \((?P<ranks>\d+)\)",
        meaning="With `split_batches`, a batch of {batch} cannot be shared by {ranks} ranks.",
        fix="Choose a batch size that is a multiple of {ranks}.",
        example="ValueError: To use `BatchSamplerShard` in `split_batches` mode, the batch size "
        "(5) needs to be a round multiple of the number of processes (2).",
        origin="source: data_loader.py of accelerate 1.15",
        weight=0.95,
    ),
    Signature(
        id="accelerate-too-few-processes",
        code="failed-world-size",
        role=Role.CAUSE,
        needle="You need to use at least 2 processes to use",
        pattern=r"You need to use at least 2 processes to use `--multi_gpu`",
        meaning="A launch for several GPUs was given one process.",
        fix="`accelerate launch --multi_gpu --num_processes N`, with N the number of GPUs.",
        example="ValueError: You need to use at least 2 processes to use `--multi_gpu`.",
        origin="made: accelerate launch --multi_gpu --num_processes 1, accelerate 1.15",
        weight=0.95,
    ),
    Signature(
        id="accelerate-port-in-use",
        code="failed-port-in-use",
        role=Role.CAUSE,
        needle="Tried to launch distributed communication on",
        pattern=r"Tried to launch distributed communication on port `(?P<port>\d+)`, but another "
        r"process is utilizing it",
        meaning="Port {port} is taken: another job, or what is left of one.",
        fix="`accelerate launch --main_process_port 0` takes a free one; `ss -ltnp 'sport = "
        ":{port}'` shows who has this.",
        example="ConnectionError: Tried to launch distributed communication on port `29500`, but "
        "another process is utilizing it. Please specify a different port (such as using the "
        "`--main_process_port` flag or specifying a different `main_process_port` in your config "
        "file) and rerun your script.",
        origin="source: utils/launch.py of accelerate 1.15",
        weight=0.95,
    ),
    Signature(
        id="accelerate-no-address",
        code="failed-rendezvous",
        role=Role.CAUSE,
        needle="Tried to launch on distributed with multinod",
        pattern=r"Tried to launch on distributed with multinode, but `MASTER_ADDR` env was not set",
        meaning="A launch on several nodes does not know the address of rank 0.",
        fix="`--main_process_ip` with the host of rank 0 on every node, or export MASTER_ADDR.",
        example="ValueError: Tried to launch on distributed with multinode, but `MASTER_ADDR` env "
        "was not set, please try exporting rank 0's hostname as `MASTER_ADDR`",
        origin="source: state.py of accelerate 1.15",
        weight=0.95,
    ),
    Signature(
        id="accelerate-notebook-accelerator",
        code="failed-exception",
        role=Role.CAUSE,
        needle="training from your notebook, the `Accelerat",
        pattern=r"To launch a multi-(?:device|GPU) training from your notebook, the `Accelerator` "
        r"should only be initialized inside your training function",
        meaning="An `Accelerator` was made in the notebook before `notebook_launcher` started.",
        fix="Restart the notebook and make it inside the training function only.",
        example="ValueError: To launch a multi-device training from your notebook, the "
        "`Accelerator` should only be initialized inside your training function. Restart your "
        "notebook and make sure no cells initializes an `Accelerator`.",
        origin="source: launchers.py of accelerate 1.15",
        weight=0.95,
    ),
    Signature(
        id="accelerate-notebook-cuda",
        code="failed-exception",
        role=Role.CAUSE,
        needle="before the `notebook_launcher` could create",
        pattern=r"\b(?P<device>\w{1,40}) has been initialized before the `notebook_launcher` "
        r"could create a forked subprocess",
        meaning="{device} was used in the notebook before the ranks were started.",
        fix="Restart the notebook; use the GPU inside the training function only, and look for "
        "imports that use it.",
        example="RuntimeError: CUDA has been initialized before the `notebook_launcher` could "
        "create a forked subprocess. This likely stems from an outside import causing issues once "
        "the `notebook_launcher()` is called.",
        origin="source: launchers.py of accelerate 1.15",
        weight=0.95,
    ),
    Signature(
        id="accelerate-auto-device-map",
        code="failed-exception",
        role=Role.CAUSE,
        needle="You can't train a model that has been loaded",
        pattern=r"You can't train a model that has been loaded with `device_map='auto'` in any "
        r"distributed mode",
        meaning="A model spread over the GPUs by `device_map='auto'` cannot be trained by several "
        "ranks.",
        fix="Drop `device_map` (or `device_map={'': local_rank}`), or start one process.",
        example="ValueError: You can't train a model that has been loaded with "
        "`device_map='auto'` in any distributed mode. Please rerun your script specifying "
        "`--num_processes=1` or by launching with `python {{myscript.py}}`.",
        origin="source: accelerator.py of accelerate 1.15",
        weight=0.95,
    ),
    Signature(
        id="accelerate-no-batch-size",
        code="oom-device",
        role=Role.CAUSE,
        needle="No executable batch size found, reached zero",
        pattern=r"No executable batch size found, reached zero",
        meaning="Not even one sample fits into the device's memory: the search for a batch size "
        "went down to zero.",
        fix="Shard the model (FSDP, ZeRO-3), use activation checkpointing or a smaller model; and "
        "look who else uses the GPU (`nvidia-smi`).",
        example="RuntimeError: No executable batch size found, reached zero.",
        origin="source: utils/memory.py of accelerate 1.15",
    ),
    Signature(
        id="accelerate-wrap-class",
        code="failed-fsdp",
        role=Role.CAUSE,
        needle="Could not find the transformer layer class",
        pattern=r"Could not find the transformer layer class (?P<layer>\w+) in the model",
        meaning="FSDP is configured to wrap layers of class {layer}, which the model does not "
        "have.",
        fix="Set `fsdp_transformer_layer_cls_to_wrap` to the class in `print(model)`, or leave it "
        "out.",
        example="ValueError: Could not find the transformer layer class LlamaDecoderLayer in the "
        "model.",
        origin="source: utils/fsdp_utils.py of accelerate 1.15",
        weight=0.95,
    ),
)
