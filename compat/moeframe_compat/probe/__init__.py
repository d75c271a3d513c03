"""The isolated process that imports a release, with heavy imports stubbed, where reading it is not enough."""
