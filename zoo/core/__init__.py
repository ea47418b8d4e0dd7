"""What every algorithm and every environment shares; knows none of them by name."""
