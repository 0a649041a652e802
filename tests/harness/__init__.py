"""What the integration tests stand on: a real PostgreSQL, the pooler in front of it, and a client that can misbehave.

# Layers      messages (bytes <-> tuples) < wire (one connection) < postgres, pooler (processes) < suite (what a test is given)
# Invariants  nothing here retries, reconnects or ignores a message: what a test sees is what was on the wire
# Why not     a driver: drivers hide order, never split a message, and refuse to send a wrong one
"""
