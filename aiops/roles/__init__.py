"""The roles as plain state machines: events and the time in, actions out.

No event loop, no clock, no sockets, no logger in here. The shells in `aiops.runtime` perform
the actions over real connections; the tests call the same cores directly.
"""
