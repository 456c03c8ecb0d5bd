"""The Kubernetes engine: each instance is a pod. See docs/design/kubernetes.md."""
