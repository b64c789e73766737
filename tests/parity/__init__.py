"""Side-by-side runs against a real nats-server: same requests, replies compared field by field.

`python -m tests.parity` prints all differences; `test_parity.py` fails on those without a reason
in `differences.py`.
"""
