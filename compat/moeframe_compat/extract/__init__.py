"""From a release on disk, in git, in a wheel or on an index to a snapshot."""
