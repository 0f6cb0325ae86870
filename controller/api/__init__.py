"""The Kubernetes-shaped HTTP API over the registry."""
