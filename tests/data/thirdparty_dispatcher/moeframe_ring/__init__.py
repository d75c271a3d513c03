"""A dispatcher for moeframe that sends rows around a ring."""
