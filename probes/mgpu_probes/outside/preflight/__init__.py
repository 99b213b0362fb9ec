"""Short tests of a host before a launch: standard library alone; torch only in a process of its
own."""
