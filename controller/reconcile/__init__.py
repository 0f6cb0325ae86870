"""One pure plan and one thin shell per controller."""
