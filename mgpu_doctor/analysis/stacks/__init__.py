"""What looks at a job's stacks tell: where each rank stands, who waits, and for whom. Pure.

frames    a stack without what says nothing
leaf      what a main thread does, by its innermost frames and its system call
postures  the same for every rank of a look, data-loader workers counted in
motion    what stood still from look to look
standing  who is waited for
sampling  in a job that moves: who works while the others wait
tree      all stacks as one prefix tree
"""
