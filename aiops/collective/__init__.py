"""Collectives: all-reduce and its relatives, among ranks that all make the same calls.

Start reading at `steps.py` and `schedule.py`: a collective is data, a tuple of steps for each rank.
"""
