"""The schedule `overlap_1f1b`: dispatch and combine of one micro-batch hide behind the compute of another."""
