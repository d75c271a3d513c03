"""A double of DeepEP for CPUs: the classes, signatures, layouts and refusals of the library, over gloo.

It mirrors the branches hybrid-ep (`Buffer`, `HybridEPBuffer`) and main (`ElasticBuffer`). Rows arrive in the order
(source rank, token), HybridEP's in the order (expert, source rank, token), as the kernels place them.
"""

from deep_ep.buffer import Buffer, Config, EventOverlap
from deep_ep.elastic import ElasticBuffer, EPHandle
from deep_ep.hybrid import HybridEPBuffer

__all__ = ["Buffer", "Config", "EPHandle", "ElasticBuffer", "EventOverlap", "HybridEPBuffer"]
