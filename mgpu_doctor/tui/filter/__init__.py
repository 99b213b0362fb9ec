"""The filter language of `top`: `rank:3 util<5 & mem>80%`.

    FIELD:TEXT    text that holds TEXT, in whatever case       name:h100  state:dead,hung
    FIELD=TEXT    the whole text, letter for letter            host=node-a  state!=running
    FIELD<NUMBER  also <=  >  >=  =  !=, with a unit           util<5  mem>80%  wait>=20ms
    FIELD:LIST    numbers and ranges of them, ends included    gpu:0-3,6  temp:60-80
    FIELD=?       what is not known (also FIELD:unknown)       power=?
    WORD          any text field holds it                      h100
    & | ! ( )     also and, or, not; side by side means and    gpu:0-3 (util<5 | temp>80)

Text with blanks or signs stands in quotes, `"` or `'`. The fields are in `fields`.

What a filter is asked of: **placements**. Each rank together with each GPU that it computes on is
one; so is a rank of which no GPU is known, and a GPU on which no rank is known. A rank is shown if
one of its placements matches, and so is a GPU. Hence `rank:3` leaves the GPU of rank 3, `util<5`
leaves the ranks on GPUs that idle, and `rank:3 util<5` asks both of the same pair.

What is not known matches no comparison, neither `<` nor `!=`; only `=?` finds it. `!` turns an
answer round, so `!util<5` holds where utilization is not known. A number after `=` matches what
rounds to it as it is written: `util=90` is 89.5 % to 90.5 %.
"""
