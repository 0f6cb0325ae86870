"""The agent against the controller: register, renew, watch, reconcile, report."""
