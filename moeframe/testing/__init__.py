"""Published test kits for plugin authors."""
