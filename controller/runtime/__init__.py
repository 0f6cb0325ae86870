"""Work queue, informer and reconcile loop, as controllers are built from."""
