"""How Kubernetes, a container runtime or a cloud ends a job, and why it does not start one."""

from __future__ import annotations

from mgpu_doctor.signatures.signature import Role, Signature

_EVICTION = "source: pkg/kubelet/eviction/helpers.go of Kubernetes 1.31"

SIGNATURES: tuple[Signature, ...] = (
    Signature(
        id="pod-oom-killed",
        code="oom-host",
        role=Role.CAUSE,
        needle="OOMKilled",
        pattern=r"(?:^|[\s\"'=:(])OOMKilled(?:$|[\s\"',.)]|: true)",
        meaning="A container reached its memory limit and the kernel killed it.",
        fix="Raise `resources.limits.memory`, use fewer data-loader workers, or do not keep the "
        "data set in every rank.",
        example="      Reason:       OOMKilled",
        origin="source: `kubectl describe pod` of Kubernetes 1.31",
    ),
    Signature(
        id="pod-evicted-memory",
        code="oom-host",
        role=Role.CAUSE,
        needle="The node was low on resource: memory",
        pattern=r"The node was low on resource: memory\.",
        meaning="The node ran short of memory and Kubernetes removed the pod from it.",
        fix="Set `resources.requests.memory` to what the pod really uses, or use a larger node.",
        example="Message: The node was low on resource: memory. Container trainer was using 58Gi, "
        "which exceeds its request of 2Gi.",
        origin=_EVICTION,
        weight=0.95,
    ),
    Signature(
        id="pod-evicted-disk",
        code="failed-disk-full",
        role=Role.CAUSE,
        needle="The node was low on resource: ",
        pattern=r"The node was low on resource: (?P<resource>ephemeral-storage|inodes|nodefs|"
        r"imagefs)\.",
        meaning="The node's disk ran full ({resource}) and Kubernetes removed the pod from it.",
        fix="Write checkpoints and caches to a volume, not into the container; set "
        "`resources.limits.ephemeral-storage`.",
        example="The node was low on resource: ephemeral-storage. Threshold quantity: 1533718755, "
        "available: 1402332Ki.",
        origin=_EVICTION,
        weight=0.95,
        needle_tells=False,
    ),
    Signature(
        id="pod-ephemeral-limit",
        code="failed-disk-full",
        role=Role.CAUSE,
        needle="local storage usage exceeds the total limit",
        pattern=r"Pod ephemeral local storage usage exceeds the total limit of containers "
        r"(?P<limit>[\w.]{1,20})",
        meaning="The pod wrote more into its containers than {limit}, and was removed.",
        fix="Write checkpoints and caches to a volume, or raise "
        "`resources.limits.ephemeral-storage`.",
        example="Pod ephemeral local storage usage exceeds the total limit of containers 10Gi.",
        origin=_EVICTION,
        weight=0.95,
    ),
    Signature(
        id="pod-shm-limit",
        code="shm-exhausted",
        role=Role.CAUSE,
        needle="Usage of EmptyDir volume ",
        pattern=r"Usage of EmptyDir volume \"(?P<volume>[^\"]{0,40}shm[^\"]{0,40})\" exceeds the "
        r"limit \"(?P<limit>[^\"]{1,20})\"",
        meaning="The volume {volume} for shared memory grew over its limit of {limit}, and the "
        "pod was removed.",
        fix="Raise the `sizeLimit` of the emptyDir on /dev/shm, or use fewer data-loader workers.",
        example='Usage of EmptyDir volume "dshm" exceeds the limit "1Gi".',
        origin=_EVICTION,
        weight=0.95,
        needle_tells=False,
    ),
    Signature(
        id="pod-volume-limit",
        code="failed-disk-full",
        role=Role.CAUSE,
        needle="Usage of EmptyDir volume ",
        pattern=r"Usage of EmptyDir volume \"(?P<volume>(?![^\"]{0,40}shm)[^\"]{1,63})\" exceeds "
        r"the limit \"(?P<limit>[^\"]{1,20})\"",
        meaning="The volume {volume} grew over its limit of {limit}, and the pod was removed.",
        fix="Raise the volume's `sizeLimit`, or keep fewer checkpoints in it.",
        example='Usage of EmptyDir volume "data" exceeds the limit "4Gi".',
        origin=_EVICTION,
        weight=0.95,
        needle_tells=False,
    ),
    Signature(
        id="job-deadline",
        code="failed-time-limit",
        role=Role.CAUSE,
        needle="active longer than specified deadline",
        pattern=r"(?:Job|it) was active longer than specified deadline",
        meaning="The job ran longer than its `activeDeadlineSeconds`, and Kubernetes ended it.",
        fix="Raise `activeDeadlineSeconds`, and resume from a checkpoint.",
        example="Warning  DeadlineExceeded  job-controller  Job was active longer than specified "
        "deadline",
        origin="source: pkg/controller/job/job_controller.go of Kubernetes 1.31",
        weight=0.95,
    ),
    Signature(
        id="pod-deadline",
        code="failed-time-limit",
        role=Role.CAUSE,
        needle="Pod was active on the node longer than ",
        pattern=r"Pod was active on the node longer than (?:the )?specified deadline",
        meaning="The pod ran longer than its `activeDeadlineSeconds`, and Kubernetes ended it.",
        fix="Raise `activeDeadlineSeconds`, and resume from a checkpoint.",
        example="Pod was active on the node longer than the specified deadline",
        origin="source: pkg/kubelet/active_deadline.go of Kubernetes 1.31",
        weight=0.95,
    ),
    Signature(
        id="job-backoff-limit",
        code="failed-exception",
        role=Role.SYMPTOM,
        needle="reached the specified backoff limit",
        pattern=r"Job has reached the specified backoff limit",
        meaning="The job's pods failed too often, so Kubernetes gave up. The pods' own logs say "
        "why they failed.",
        fix="`kubectl logs POD --previous`.",
        example="Warning  BackoffLimitExceeded  job-controller  Job has reached the specified "
        "backoff limit",
        origin="source: pkg/controller/job/job_controller.go of Kubernetes 1.31",
        weight=0.5,
    ),
    Signature(
        id="container-restarting",
        code="failed-exception",
        role=Role.SYMPTOM,
        needle="Back-off restarting failed container",
        pattern=r"Back-off restarting failed container",
        meaning="A container fails again and again after its start.",
        fix="`kubectl logs POD --previous` shows its last words.",
        example="Warning  BackOff  33s (x70 over 15m)  kubelet  Back-off restarting failed "
        "container",
        origin="source: pkg/kubelet/kuberuntime/kuberuntime_manager.go of Kubernetes 1.31",
        weight=0.5,
    ),
    Signature(
        id="container-exit-137",
        code="failed-killed",
        role=Role.SYMPTOM,
        needle="Exit Code:",
        pattern=r"^\s*Exit Code:\s+137$",
        meaning="A container was killed with SIGKILL: for memory, or because it did not stop in "
        "time when asked to.",
        fix="Look at `Reason:` beside it in `kubectl describe pod` and at the node's `dmesg`.",
        example="      Exit Code:    137",
        origin="source: `kubectl describe pod` of Kubernetes 1.31",
        weight=0.5,
    ),
    Signature(
        id="pod-preempted",
        code="failed-preempted",
        role=Role.CAUSE,
        needle="Preempted ",
        pattern=r"Preempted (?:by (?:a )?pod(?: \S{1,64})? on node \S{1,128}|in order to admit "
        r"critical pod)",
        meaning="Kubernetes removed the pod to make room for one of higher priority.",
        fix="Give the job a higher `priorityClassName`, or resume from a checkpoint.",
        example="Normal  Preempted  Preempted by a pod on node gpu-worker-3",
        origin="source: pkg/scheduler/framework/preemption/preemption.go of Kubernetes 1.25",
        weight=0.95,
    ),
    Signature(
        id="node-shutdown",
        code="failed-preempted",
        role=Role.CAUSE,
        needle="in response to imminent node shutdown",
        pattern=r"Pod was terminated in response to imminent node shutdown",
        meaning="The node was shut down, as spot and preemptible machines are when taken back.",
        fix="Save checkpoints often, or on SIGTERM, and let the job resume.",
        example="Message:        Pod was terminated in response to imminent node shutdown.",
        origin="source: pkg/kubelet/nodeshutdown/nodeshutdown_manager.go of Kubernetes 1.31",
        weight=0.95,
    ),
    Signature(
        id="cloud-instance-preempted",
        code="failed-preempted",
        role=Role.CAUSE,
        needle="Instance was preempted.",
        pattern=r"(?:^|[\s\":])Instance was preempted\.",
        meaning="The cloud took back the spot or preemptible machine.",
        fix="Save checkpoints often, or on the notice, and let the job resume.",
        example='      "message": "Instance was preempted."',
        origin="source: the audit log of Google Compute Engine",
        weight=0.95,
    ),
    Signature(
        id="cluster-lacks-gpus",
        code="gpu-missing",
        role=Role.CAUSE,
        needle=" nodes are available: ",
        pattern=r"\d{1,9}/(?P<nodes>\d+) nodes are available: .{0,300}\bInsufficient (?P<resource>"
        r"(?:nvidia|amd)\.com/[\w.-]{1,40})",
        meaning="No node of the cluster has enough free {resource}, so the pod waits.",
        fix="Ask for fewer GPUs a pod, wait, or add nodes; without the vendor's device plugin a "
        "node offers none.",
        example="0/7 nodes are available: 3 Insufficient nvidia.com/gpu, 4 node(s) didn't match "
        "Pod's node affinity/selector.",
        origin="source: pkg/scheduler/framework/types.go of Kubernetes 1.31",
        needle_tells=False,
    ),
    Signature(
        id="docker-without-gpus",
        code="gpu-missing",
        role=Role.CAUSE,
        needle="could not select device driver ",
        pattern=r"could not select device driver \S{0,10} with capabilities: \[\[gpu",
        meaning="Docker cannot hand GPUs to a container: the NVIDIA container toolkit is missing.",
        fix="Install nvidia-container-toolkit, run `nvidia-ctk runtime configure "
        "--runtime=docker`, restart Docker.",
        example='docker: Error response from daemon: could not select device driver "" with '
        "capabilities: [[gpu]].",
        origin="source: daemon/devices.go of Docker 27",
        weight=0.95,
    ),
    Signature(
        id="nvidia-container-failed",
        code="gpu-missing",
        role=Role.CAUSE,
        needle="nvidia-container-cli: ",
        pattern=r"nvidia-container-cli: (?:initialization|device|requirement) error: (?P<reason>"
        r"(?!unsatisfied condition)[^\\\n]{1,160})",
        meaning="The container got no GPU: {reason}.",
        fix="`nvidia-smi` on the host must work first. After a driver update reboot; for "
        "`requirement error` use an image for an older CUDA or update the driver.",
        example="nvidia-container-cli: initialization error: nvml error: driver not loaded",
        origin="source: libnvidia-container 1.17",
        needle_tells=False,
    ),
    Signature(
        id="container-exit-139",
        code="failed-signal",
        role=Role.SYMPTOM,
        needle="Exit Code:",
        pattern=r"^\s*Exit Code:\s+139$",
        meaning="A container crashed with SIGSEGV.",
        fix="Run it with PYTHONFAULTHANDLER=1 to get the Python stack of the crash.",
        example="      Exit Code:    139",
        origin="recalled: `kubectl describe pod` of Kubernetes 1.31",
        weight=0.5,
    ),
    Signature(
        id="node-disk-pressure",
        code="failed-disk-full",
        role=Role.CAUSE,
        needle="The node had condition: [DiskPressure",
        pattern=r"The node had condition: \[DiskPressure\b",
        meaning="Kubernetes evicted or refused the pod: the disk of its node was nearly full.",
        fix="Free space on the node, or set `resources.requests.ephemeral-storage`, so that the "
        "pod is placed where there is enough.",
        example="Pod The node had condition: [DiskPressure]. ",
        origin="source: pkg/kubelet/eviction/helpers.go of Kubernetes",
        weight=0.85,
    ),
    Signature(
        id="node-memory-pressure",
        code="oom-host",
        role=Role.CAUSE,
        needle="The node had condition: [MemoryPressure",
        pattern=r"The node had condition: \[MemoryPressure\b",
        meaning="Kubernetes evicted or refused the pod: the memory of its node was nearly full.",
        fix="Set `resources.requests.memory` to what the pod needs, so that it is placed where "
        "there is enough.",
        example="Pod The node had condition: [MemoryPressure]. ",
        origin="source: pkg/kubelet/eviction/helpers.go of Kubernetes",
        weight=0.85,
    ),
)
