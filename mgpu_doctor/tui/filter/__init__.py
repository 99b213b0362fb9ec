"""The filter language of `top`: `rank:3 util<5 & mem>80%`.

    FIELD:TEXT    text that contains TEXT, in any case         name:h100  state:dead,hung
    FIELD=TEXT    the whole text, exact case                   host=node-a  state!=running
    FIELD<NUMBER  also <=  >  >=  =  !=, with a unit           util<5  mem>80%  wait>=20ms
    FIELD:LIST    numbers and ranges, ends included            gpu:0-3,6  temp:60-80
    FIELD=?       unknown values (also FIELD:unknown)          power=?
    WORD          any text field contains it                   h100
    & | ! ( )     also and, or, not; side by side means and    gpu:0-3 (util<5 | temp>80)

Text with blanks or special characters goes in quotes, `"` or `'`. `fields` lists the fields.

A filter is applied to **placements**: a rank paired with a GPU it computes on, a rank with no known
GPU, or a GPU with no known rank. A rank or a GPU is shown if one of its placements matches. So
`rank:3` keeps the GPU of rank 3, `util<5` keeps the ranks on idle GPUs, and `rank:3 util<5`
requires both of the same pair.

An unknown value matches no comparison, neither `<` nor `!=`; only `=?` matches it. `!` negates, so
`!util<5` matches an unknown utilization. A number after `=` matches the values that round to it:
`util=90` is 89.5 % to 90.5 %.
"""
