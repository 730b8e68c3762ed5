"""How a store is mounted and opened, and what its refusals mean.

Doors: `mount` (mounts and paths), `access` (what opens a store), `failures` (a refusal in one sentence), and
`renewal` (a credential that changes while a query runs).
"""
