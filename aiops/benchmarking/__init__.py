"""What `aiops bench` measures, and against what.

Each kind of benchmark is a module here that returns rows; the command prints them. It is a package
of its own, not a part of `benchmarks/`, so that an installed aiops can measure the machine it runs
on. The other side of every measurement is a process of its own, and the raw socket that it is
compared with does the same work in the same run.
"""
