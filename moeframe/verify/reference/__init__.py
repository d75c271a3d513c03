"""The composition that `verify` compares with: every part written as plainly as its definition, for one process.

It shares no code with the backends under proof, and is offered like any plugin: `moeframe.verify.reference.plugin`.
"""
