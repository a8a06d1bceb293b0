"""Several hosts: how host 0 and the agents of the others find, trust, watch and talk to each other."""
