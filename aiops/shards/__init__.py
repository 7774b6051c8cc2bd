"""A server's part of the tables: arrays and arithmetic, which know no workers, clocks or frames.

`shard` is a range of a dense table, `contribution` what one worker gave to the open round,
`reduction` what all of them become, `replica` what workers have when pulls are compressed; `sparse`
is the same for rows that are created when they are first changed.
"""
