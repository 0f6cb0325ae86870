"""What the operating system tells: RAM, footprints, libraries, process facts."""
