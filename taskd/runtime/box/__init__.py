"""The shim's library and the black box that it keeps: written in a rank's process, read by its agent and offline."""
