"""The contracts between core and plugins. Tier: provisional in 0.1.0. Importable without torch.

Shape legend used by every protocol, docstring and name suffix:

| letter | meaning |
|---|---|
| B | sequences in a micro-batch |
| S | tokens in a sequence |
| T | tokens of this rank in one call (B x S) |
| D | hidden size |
| K | experts chosen per token (top-k) |
| E | experts; in `counts_E` the experts this rank holds |
| R | rows this rank received: one per (token, local expert) pair |

Implementations inherit from the protocol: a member that is added with a body is theirs too.

"float32" means at least float32: in a float64 run it is float64.
"""
