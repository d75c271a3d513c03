"""Times compositions on the machine at hand. Importable without torch."""
