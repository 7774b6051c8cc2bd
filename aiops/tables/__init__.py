"""The handles of tables, from a worker's side: what a push or a pull becomes, and what is kept.

`table` and `sparse_table` are what users call. `core` is what the parts of one handle share:
`layout` and `key_layout` (where elements are), `writes`, `reads`, `rounds` (the worker's place in
them), `calls`, `compression`, `replica` and `staleness`. `local_copy` and `updates` keep a copy.
Sending and waiting are the customer's, in `aiops.runtime`.
"""
