"""Schedules as pure data: actions, simulation, timelines. Importable without torch."""
