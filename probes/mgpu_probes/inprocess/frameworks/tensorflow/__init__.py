"""The adapter of TensorFlow and Keras: which of their modules are patched, and by which hooks.

The probe never imports TensorFlow. It takes what it needs from `sys.modules` once the user's
program has imported it.
"""

from __future__ import annotations

from ...framework_adapters import HookTable

ADAPTER = HookTable(
    "tensorflow",
    __name__,
    {
        "graph_stamps": {
            "tensorflow.python.framework.auto_control_deps": "patch",
        },
        "function_calls": {
            "tensorflow.python.eager.polymorphic_function.polymorphic_function": "patch",
        },
        "returned_stamps": {
            "tensorflow.python.eager.polymorphic_function.concrete_function": "patch",
        },
        "keras_optimizers": {
            "tensorflow.python.ops.resource_variable_ops": "patch_variables",
            "keras.src.backend.common.variables": "patch_variables",
            "keras.src.optimizers.base_optimizer": "patch",
            "tf_keras.src.optimizers.optimizer": "patch_legacy",
            "tf_keras.src.optimizers.legacy.optimizer_v2": "patch_legacy",
        },
        "replica_reductions": {
            "tf_keras.src.optimizers.utils": "patch_legacy",
        },
        "gradient_tapes": {
            "tensorflow.python.eager.backprop": "patch",
        },
        "dataset_iterators": {
            "tensorflow.python.data.ops.iterator_ops": "patch",
            "tensorflow.python.distribute.input_lib": "patch_distributed",
        },
        "tensorflow_metadata": {
            "tensorflow.python.distribute.distribute_lib": "patch",
        },
        "distribution_strategies": {
            "tensorflow.python.distribute.collective_all_reduce_strategy": "patch_collective",
        },
        "cluster_coordinator": {
            "tensorflow.python.distribute.coordinator.cluster_coordinator": "patch",
        },
        "tensorflow_checkpoints": {
            "tensorflow.python.checkpoint.checkpoint": "patch_checkpoint",
            "keras.src.saving.saving_api": "patch_keras",
            "keras.src.backend.tensorflow.trainer": "patch_trainer",
        },
    },
    metadata="tensorflow_metadata",
)
