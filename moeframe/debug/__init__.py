"""Costly checks of a running job: poisoned memory, and a ledger of collectives."""
