"""The handles of a worker: what `aiops.connect` gives, and what hangs on it besides its tables.

`connecting` makes a `worker`; `customer_handle` and `ring` are what it hands out; `tables` opens
its tables, and `identity`, `reports`, `rings` and `state` are the rest of it.
"""
