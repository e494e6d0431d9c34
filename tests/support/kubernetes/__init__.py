"""A stand-in for Kubernetes on which KubeRay's own autoscaler runs, on one machine.

`json_patch`       change a document by the operations of RFC 6902
`label_selector`   read a label selector and match labels against it
`resource_store`   the objects of one namespace, with resource versions
`certificates`     an authority and a server certificate of the stand-in's own
`api_server`       the store over HTTPS, with a bearer token
`ray_cluster`      read a RayCluster, and derive pods and `ray start` commands from it
`kuberay_operator` create and delete pods until they match the RayCluster
`namespaces`       private namespaces, or why there can be none
`pod_process`      one pod as processes in namespaces of their own
`kubelet`          run the pods of the store, and write their status
`machine`          the process that holds all of these in private namespaces
`cluster`          what a test uses: start a machine, look at it, hurt it, run programs on it
`plain_actors`     a driver whose actors ask for a group's resource, for tests of the stand-in
`port_forward`     a port of the cluster's network on the test's side of it
`service`          the overlay `laptop` of `k8s/` with `neve serve`, on such a cluster

The autoscaler is `ray kuberay-autoscaler` as Ray ships it. Nothing here takes a part of
it out or puts another in its place.
"""
