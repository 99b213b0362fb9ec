"""What kinds of operations do with memory, as their kernels say (`forward_input…`, `set_output`).

What is not listed makes new buffers: an operation that would reuse one costs too much here, never
too little.
"""

from __future__ import annotations

from mgpu_doctor.analysis.memory.liveness import Use

_PASS = """CheckNumerics EnsureShape ExpandDims Identity IdentityN PreventGradient Reshape Snapshot
Squeeze StopGradient"""

_REUSE = """Abs Add AddN AddV2 BiasAdd ClipByValue Cos Div DivNoNan Elu EluGrad Erf Erfc Exp Expm1
FusedBatchNormGradV3 InvGrad LeakyRelu LeakyReluGrad Log Log1p LogSoftmax LogicalNot Maximum Minimum
Mul MulNoNan Neg OnesLike Pow RealDiv Reciprocal ReciprocalGrad Relu Relu6 Relu6Grad ReluGrad Rsqrt
RsqrtGrad Select SelectV2 Selu SeluGrad Sigmoid SigmoidGrad Sign Sin Softmax Softplus SoftplusGrad
Sqrt SqrtGrad Square SquaredDifference Sub Tanh TanhGrad Xdivy Xlogy ZerosLike"""

USES = {
    **dict.fromkeys(_PASS.split(), Use.PASSES),
    **dict.fromkeys(_REUSE.split(), Use.REUSES),
    "ReadVariableOp": Use.READS,
    "AssignVariableOp": Use.ASSIGNS,
    "AssignAddVariableOp": Use.UPDATES,
    "AssignSubVariableOp": Use.UPDATES,
}
CALLS = {"PartitionedCall", "StatefulPartitionedCall"}
LOOPS = {"While", "StatelessWhile", "If", "StatelessIf", "Case", "StatelessCase", "Enter", "Merge"}
"""Control flow: how often what is inside runs is not in the graph."""
SMALL = 4096
"""Constants and whole numbers of fewer bytes are folded away, or are on the host."""
