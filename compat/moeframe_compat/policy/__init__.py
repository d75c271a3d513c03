"""What is done about findings: settings, suppressions, the ledger of declared changes, version advice."""
