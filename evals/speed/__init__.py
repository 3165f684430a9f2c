"""The speed of one engine on a CPU, compared with its lower bounds and with other programs."""
