"""What Lightning reports when it cannot start, loses a rank or is asked to stop."""

from __future__ import annotations

from mgpu_doctor.signatures.signature import Role, Signature

SIGNATURES: tuple[Signature, ...] = (
    Signature(
        id="lightning-no-accelerator",
        code="gpu-missing",
        role=Role.CAUSE,
        needle="No supported gpu backend found!",
        pattern=r"MisconfigurationException: No supported gpu backend found!",
        meaning="The Trainer is configured to use GPUs, but torch sees none.",
        fix="Check `python -c 'import torch; print(torch.cuda.is_available(), "
        "torch.version.cuda)'` and CUDA_VISIBLE_DEVICES: a torch for the CPU, a driver or the "
        "container may be at fault.",
        example="lightning.fabric.utilities.exceptions.MisconfigurationException: No supported "
        "gpu backend found!",
        origin="made: Trainer(accelerator='gpu') on a machine without GPUs, Lightning 2.6",
        weight=0.95,
    ),
    Signature(
        id="lightning-accelerator-unavailable",
        code="gpu-missing",
        role=Role.CAUSE,
        needle="can not run on your system since the acc",
        pattern=r"`(?P<accelerator>\w+)` can not run on your system since the accelerator is not "
        r"available",
        meaning="{accelerator} was asked for, and torch sees no such device.",
        fix="Check `python -c 'import torch; print(torch.cuda.is_available())'` and "
        "CUDA_VISIBLE_DEVICES.",
        example="MisconfigurationException: `CUDAAccelerator` can not run on your system since "
        "the accelerator is not available. The following accelerator(s) is available and can be "
        "passed into `accelerator` argument of `Trainer`: ['cpu'].",
        origin="source: pytorch/trainer/connectors/accelerator_connector.py of Lightning 2.6",
        weight=0.95,
    ),
    Signature(
        id="lightning-gpus-missing",
        code="gpu-missing",
        role=Role.CAUSE,
        needle="MisconfigurationException: You requested gpu",
        pattern=r"MisconfigurationException: You requested gpu: \[(?P<asked>[\d, ]+)\]",
        meaning="The Trainer asks for GPUs {asked}, and this process does not have them all.",
        fix="Let `devices` fit CUDA_VISIBLE_DEVICES and the GPUs that the scheduler gave.",
        example="lightning.fabric.utilities.exceptions.MisconfigurationException: You requested "
        "gpu: [0, 1, 2, 3]",
        origin="source: fabric/utilities/device_parser.py of Lightning 2.6",
        weight=0.95,
    ),
    Signature(
        id="lightning-slurm-tasks",
        code="failed-world-size",
        role=Role.CAUSE,
        needle="configured in SLURM `--",
        pattern=r"You set `(?P<setting>devices|num_nodes)=(?P<given>\d+)` in Lightning, but the "
        r"number of (?:tasks per node|nodes) configured in SLURM `(?P<option>--[\w-]+)="
        r"(?P<slurm>\d+)` does not match",
        meaning="The Trainer has {setting}={given}, Slurm has {option}={slurm}.",
        fix="Make them equal: one Slurm task per GPU, so `--ntasks-per-node` = `devices` and "
        "`--nodes` = `num_nodes`.",
        example="ValueError: You set `devices=4` in Lightning, but the number of tasks per node "
        "configured in SLURM `--ntasks-per-node=8` does not match. HINT: Set `devices=8`.",
        origin="made: Trainer(devices=4) with SLURM_NTASKS_PER_NODE=8, Lightning 2.6",
        weight=0.95,
    ),
    Signature(
        id="lightning-world-size",
        code="failed-world-size",
        role=Role.CAUSE,
        needle=" does not match the world size (",
        pattern=r"You set `devices=(?P<devices>\d+)` and `num_nodes=(?P<nodes>\d+)` in Lightning, "
        r"but the product \(.{1,24}\) does not match the world size \((?P<size>\d{1,9})\)",
        meaning="torchrun started {size} ranks, but the Trainer expects {devices} on each of "
        "{nodes} nodes.",
        fix="`--nproc-per-node` = `devices` and `--nnodes` = `num_nodes`.",
        example="ValueError: You set `devices=4` and `num_nodes=1` in Lightning, but the product "
        "(4 * 1) does not match the world size (2).",
        origin="made: Trainer(devices=4) under torchrun with two ranks, Lightning 2.6",
        weight=0.95,
        more_heads=(" in Lightning, but the product",),
    ),
    Signature(
        id="lightning-slurm-ntasks",
        code="failed-world-size",
        role=Role.CAUSE,
        needle="in your SLURM bash script, but this variable",
        pattern=r"You set `--ntasks=(?P<tasks>\d+)` in your SLURM bash script, but this variable "
        r"is not supported",
        meaning="Lightning needs the number of tasks on each node, not in total ({tasks}).",
        fix="Use `--ntasks-per-node` in the batch script.",
        example="RuntimeError: You set `--ntasks=8` in your SLURM bash script, but this variable "
        "is not supported. HINT: Use `--ntasks-per-node=8` instead.",
        origin="source: fabric/plugins/environments/slurm.py of Lightning 2.6",
        weight=0.95,
    ),
    Signature(
        id="lightning-unused-parameters",
        code="failed-unused-parameters",
        role=Role.CAUSE,
        needle="It looks like your LightningModule has param",
        pattern=r"It looks like your LightningModule has parameters that were not used in "
        r"producing the loss",
        meaning="Some parameters had no part in the loss, so DDP waits for gradients that never "
        "arrive.",
        fix="Use or freeze them; or `strategy='ddp_find_unused_parameters_true'`, which costs "
        "time in every step.",
        example="RuntimeError: It looks like your LightningModule has parameters that were not "
        "used in producing the loss returned by training_step. If this is intentional, you must "
        "enable the detection of unused parameters in DDP, either by setting the string value "
        "`strategy='ddp_find_unused_parameters_true'` or by setting the flag in the strategy with "
        "`strategy=DDPStrategy(find_unused_parameters=True)`.",
        origin="made: a module with an unused layer on two ranks, Lightning 2.6",
        weight=0.95,
    ),
    Signature(
        id="lightning-child-ended",
        code="failed-exception",
        role=Role.SYMPTOM,
        needle=" Forcefully terminating all other processes",
        pattern=r"(?:\[rank: (?P<rank>\d+)\] )?Child process with PID (?P<pid>\d+) terminated "
        r"with code (?P<exit_code>-?\d+)\. Forcefully terminating all other processes",
        meaning="The rank with pid {pid} ended with code {exit_code}; Lightning ended the others.",
        fix="Look at that rank's own output. -9 is a kill: look in `dmesg` for the out-of-memory "
        "killer; -11 a crash: run with PYTHONFAULTHANDLER=1.",
        example="[rank: 1] Child process with PID 4711 terminated with code 1. Forcefully "
        "terminating all other processes to avoid zombies",
        origin="source: fabric/strategies/launchers/subprocess_script.py of Lightning 2.6",
        weight=0.7,
    ),
    Signature(
        id="lightning-sigterm",
        code="failed-killed",
        role=Role.SYMPTOM,
        needle="] Received SIGTERM: ",
        pattern=r"^(?:\[rank: (?P<rank>\d+)\] )?Received SIGTERM: (?P<signal>\d+)",
        meaning="This rank was asked to end: by the scheduler, a person, or the launcher after "
        "another rank had failed.",
        fix="If another rank failed before, that is the cause. Otherwise ask the scheduler "
        "(`scontrol show job`, `kubectl describe pod`).",
        example="[rank: 0] Received SIGTERM: 15",
        origin="made: SIGTERM during fit, Lightning 2.6",
        weight=0.5,
    ),
    Signature(
        id="lightning-requeue",
        code="failed-preempted",
        role=Role.CAUSE,
        needle="Handling auto-requeue signal: ",
        pattern=r"Handling auto-requeue signal: (?:Signals\.)?(?P<signal>\w+)",
        meaning="Slurm announced the job's end (signal {signal}); Lightning saved a checkpoint "
        "and puts the job back into the queue.",
        fix="Nothing, if it resumes. Ask for more time (`--time`) if it happens often.",
        example="Handling auto-requeue signal: 10",
        origin="source: pytorch/trainer/connectors/signal_connector.py of Lightning 2.6",
        severity="warning",
    ),
    Signature(
        id="lightning-interrupted",
        code="failed-interrupted",
        role=Role.CAUSE,
        needle="Detected KeyboardInterrupt, attempting",
        pattern=r"Detected KeyboardInterrupt, attempting graceful shutdown",
        meaning="The training was interrupted (Ctrl-C or SIGINT).",
        fix="Nothing to fix if you did it. A scheduler may send SIGINT too.",
        example="Detected KeyboardInterrupt, attempting graceful shutdown ...",
        origin="made: SIGINT during fit, Lightning 2.6",
        severity="info",
        weight=0.8,
    ),
    Signature(
        id="lightning-metric-non-finite",
        code="loss-nan",
        role=Role.CAUSE,
        needle=" is not finite. Previous best value was ",
        pattern=r"Monitored metric (?P<metric>\S{1,100}) = (?P<value>-?nan|-?inf) is not finite\.",
        meaning="{metric} became {value}, and EarlyStopping ended the training.",
        fix="Lower the learning rate, set `gradient_clip_val`, check the data; "
        "`Trainer(detect_anomaly=True)` names the operation.",
        example="Monitored metric loss = nan is not finite. Previous best value was inf. "
        "Signaling Trainer to stop.",
        origin="made: a loss of NaN with EarlyStopping(check_finite=True), Lightning 2.6",
        weight=0.95,
    ),
    Signature(
        id="lightning-cuda-before-fork",
        code="failed-exception",
        role=Role.CAUSE,
        needle="Lightning can't create new processes if CUDA",
        pattern=r"Lightning can't create new processes if CUDA is already initialized",
        meaning="Something used CUDA in the main process before Lightning started the ranks.",
        fix="Do not touch `torch.cuda` before `fit`; use `strategy='ddp'` in a script, or "
        "`ddp_spawn`.",
        example="RuntimeError: Lightning can't create new processes if CUDA is already "
        "initialized. Did you manually call `torch.cuda.*` functions, have moved the model to the "
        "device, or allocated memory on the GPU any other way?",
        origin="source: fabric/strategies/launchers/multiprocessing.py of Lightning 2.6",
        weight=0.95,
    ),
    Signature(
        id="lightning-notebook-strategy",
        code="failed-exception",
        role=Role.CAUSE,
        needle=" is not compatible with an interactive ",
        pattern=r"`(?:Trainer|Fabric)\(strategy=(?P<strategy>.{1,60}?)\)` is not compatible with "
        r"an interactive environment",
        meaning="The strategy {strategy} starts scripts, which a notebook is not.",
        fix="`strategy='ddp_notebook'`, or run it as a script.",
        example="MisconfigurationException: `Trainer(strategy='ddp')` is not compatible with an "
        "interactive environment. Run your code as a script, or choose a notebook-compatible "
        "strategy: `Trainer(strategy='ddp_notebook')`.",
        origin="source: pytorch/trainer/connectors/accelerator_connector.py of Lightning 2.6",
        weight=0.95,
    ),
    Signature(
        id="lightning-monitor-missing",
        code="failed-exception",
        role=Role.CAUSE,
        needle="MisconfigurationException: `ModelCheckpoint(",
        pattern=r"MisconfigurationException: `ModelCheckpoint\(monitor='"
        r"(?P<metric>[^']{1,100})'\)` could not find the monitored key",
        meaning="The checkpoint callback watches {metric}, which was never logged.",
        fix="Call `self.log('{metric}', value)` in `validation_step`, or change `monitor`.",
        example="MisconfigurationException: `ModelCheckpoint(monitor='val_loss')` could not find "
        "the monitored key in the returned metrics: ['loss', 'epoch', 'step']. HINT: Did you call "
        "`log('val_loss', value)` in the `LightningModule`?",
        origin="source: pytorch/callbacks/model_checkpoint.py of Lightning 2.6",
    ),
    Signature(
        id="lightning-checkpoint-absent",
        code="failed-checkpoint",
        role=Role.CAUSE,
        needle="Error: Checkpoint file not found: ",
        pattern=r"FileNotFoundError: Checkpoint file not found: (?P<file>.{1,300})",
        meaning="There is no checkpoint {file}.",
        fix="Give `ckpt_path` a file that every rank sees, or `ckpt_path='last'`.",
        example="FileNotFoundError: Checkpoint file not found: /data/none.ckpt",
        origin="made: fit(ckpt_path=...) of a file that is not there, Lightning 2.6",
        weight=0.95,
    ),
    Signature(
        id="lightning-misconfigured",
        code="failed-exception",
        role=Role.CAUSE,
        needle="MisconfigurationException: ",
        pattern=r"(?:^|\.)MisconfigurationException: (?P<message>(?!No supported gpu|You "
        r"requested gpu|`ModelCheckpoint|`\w{1,60}` can not run|`\w{1,60}\(strategy=).{1,300})",
        meaning="Lightning refuses these settings: {message}",
        fix="Change the Trainer's arguments accordingly.",
        example="lightning.fabric.utilities.exceptions.MisconfigurationException: "
        "`Trainer(devices=0)` value is not a valid input using cpu accelerator.",
        origin="made: Trainer(devices=0), Lightning 2.6",
        weight=0.7,
    ),
    Signature(
        id="lightning-gpus-found",
        code="gpu-missing",
        role=Role.CAUSE,
        needle="But your machine only has: ",
        pattern=r"\bBut your machine only has: \[(?P<found>[\d, ]*)\]",
        meaning="The Trainer asks for other GPUs than this process has: it has [{found}].",
        fix="Let `devices` fit CUDA_VISIBLE_DEVICES and the GPUs that the scheduler gave.",
        example=" But your machine only has: [0, 1]",
        origin="source: fabric/utilities/device_parser.py of Lightning 2.6",
        weight=0.95,
    ),
    Signature(
        id="lightning-sigterm-exception",
        code="failed-killed",
        role=Role.SYMPTOM,
        needle="SIGTERMException",
        pattern=r"^(?:\w{1,40}\.){1,6}SIGTERMException\b",
        meaning="Lightning stopped because somebody asked the job to end (SIGTERM): the scheduler "
        "at a limit, or a person.",
        fix="Look at the scheduler's reason (`scontrol show job`, `kubectl describe pod`); save "
        "checkpoints on SIGTERM.",
        example="lightning.fabric.utilities.exceptions.SIGTERMException",
        origin="source: lightning/pytorch/trainer/connectors/signal_connector.py of Lightning 2.4",
        weight=0.6,
    ),
)
