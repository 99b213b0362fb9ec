"""Analysis of a job's stacks: where each rank is, which ranks wait, and for which rank. Pure.

frames           a stack without wrappers; whose code a frame is
wait_classifier  what a main thread is doing, by its innermost frames and its system call
thread_states    the same for every rank of a snapshot, data-loader workers included
progress         what has not moved between snapshots, and for how long
hang_analysis    which rank the others wait for in a blocked job
stack_sampling   which rank works while the others wait in a job that moves
prefix_tree      all stacks as one prefix tree
"""
