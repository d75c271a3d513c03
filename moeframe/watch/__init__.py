"""Where every rank is, seen from outside: beacons, the watchdog that reads them, and its verdicts. Imports no torch."""
